from __future__ import annotations

import time
from typing import Any

import pytest

from store.format.strict_json import Int, Long, decode, decode_fastjson, decode_unique, encode

DIGITS = "9" * 40_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "-Infinity",
        "1e999",
        DIGITS,
        f'{{"a":{DIGITS}}}',
        f"{{{DIGITS}:1}}",
        f"{{1:{DIGITS}}}",
        f"{{{DIGITS}",
        "," * 40_000,
        "{" + " " * 40_000,
        '"' + '\\"' * 40_000,
        '"\\ud800"',
        "[" * 100_000,
        '{"a":' * 100_000,
        "{a:1}",
        "{1:1} 1",
    ],
)
def test_invalid_json_is_refused_fast(text: str) -> None:
    since = time.process_time()
    for refuse in (decode, decode_fastjson):
        with pytest.raises(ValueError, match=r"JSON|range|deep|truncated"):
            refuse(text.encode())
    assert time.process_time() - since < 1


@pytest.mark.parametrize("value", ["2147483648", "1.0", '"1"', "true", "null"])
def test_value_of_a_wrong_type_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"Expected `int`"):
        decode(value, Int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Expected `int`"):
        decode_fastjson(f"{{1:{value.replace('2147483648', str(1 << 63))}}}".encode(), dict[str, Long])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:{-1:[]}}', {"0": "a", "1": {"-1": []}}),
        ('{ 0 : "{1:2}", "b,3:" : {\n7 :5}}', {"0": "{1:2}", "b,3:": {"7": 5}}),
        ('{"a\\\\":1, "\\",2:":3}', {"a\\": 1, '",2:': 3}),
    ],
)
def test_fastjson_writes_integer_keys_without_quotes(text: str, value: Any) -> None:
    assert decode_fastjson(text.encode()) == value
    assert decode_fastjson(encode(value)) == value


def test_repeated_name_is_refused_in_a_users_file() -> None:
    assert decode('{"a":1,"a":2}') == {"a": 2}
    with pytest.raises(ValueError, match="'a' occurs twice in one object"):
        decode_unique('{"a":1,"a":2}')


def test_lone_surrogate_is_written_as_a_question_mark() -> None:
    assert encode({"a": "\ud800é"}) == '{"a":"?é"}'.encode()
