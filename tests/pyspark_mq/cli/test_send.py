import json
import os
import re
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.cli.json_lines import json_line, message
from store import Message, MessageStore
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, bodies, run, started, succeed, tailing
from tests.waiting import until


def test_send_arguments_with_tags_keys_and_queue(path: Path) -> None:
    out = succeed("send", path, "orders", "one", "zwei €", "--tags", "paid", "--keys", "o-1 o-2", "--queue", 1)
    assert out == "2 sent to orders\n"
    expected = {"tags": "paid", "keys": "o-1 o-2", "queueId": 1}
    assert bodies(path, ("body", "tags", "keys", "queueId")) == [
        {"body": b"one", **expected},
        {"body": "zwei €".encode(), **expected},
    ]


def test_send_lines_of_a_file_and_of_standard_input(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"from a file\r\nwith no end of line")
    assert succeed("send", path, "orders", "--file", file, "--queue", 0) == "2 sent to orders\n"
    assert succeed("send", path, "orders", "--queue", 0, stdin=b"piped\n") == "1 sent to orders\n"
    assert [row["body"] for row in bodies(path)] == [b"from a file", b"with no end of line", b"piped"]


def test_send_keeps_every_line_of_a_long_input(path: Path) -> None:
    lines = [b"%d " % number + b"x" * (number % 300) for number in range(20_000)]
    assert succeed("send", path, "orders", stdin=b"\n".join(lines)) == "20,000 sent to orders\n"
    assert sorted(row["body"] for row in bodies(path)) == sorted(lines)  # type: ignore[type-var]


def test_lines_are_sent_while_the_input_is_still_open(path: Path) -> None:
    with (
        tailing(path, "orders", "--from", "earliest", "--count", 1) as tail,
        subprocess.Popen([SCRIPT, "send", path, "orders"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as send,
    ):
        assert send.stdin is not None
        send.stdin.write(b"first\n")
        send.stdin.flush()
        assert tail.communicate(timeout=TIMEOUT_SECONDS)[0] == "first\n"
        send.communicate(b"second\n", timeout=TIMEOUT_SECONDS)
    assert sorted(str(row["body"]) for row in bodies(path)) == ["b'first'", "b'second'"]


def test_nonblocking_input_is_read_to_its_end(path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with started("send", path, "orders", stdin=read) as send:
        until(lambda: os.get_blocking(read) or send.poll() is not None)
        os.close(read)
        with open(write, "wb") as pipe:
            pipe.write(b"later\n")
        assert send.communicate(timeout=TIMEOUT_SECONDS)[0] == b"1 sent to orders\n"


MESSAGES = [
    Message("orders", b"plain"),
    Message("orders", "€ and \n a line's end".encode(), tags="paid", keys=("o-1", "o-2"), queue_id=1),
    Message("orders", b"\xff\x00 not UTF-8", properties={"region": "eu", "UNIQ_KEY": "7F01"}, flag=-5),
    Message("orders", b"", sharding_key="customer 7", born_timestamp=1_234_567_890_123),
    Message("orders", b'{"json": true}\r', tags="a b", properties={"a": "=", "blank": " "}, queue_id=0),
]
KEPT = ("body", "tags", "keys", "properties", "queueId", "flag", "bornTimestamp")


def test_send_restores_messages_from_tails_output(path: Path, tmp_path: Path) -> None:
    with MessageStore.open(path) as store:
        store.put_many(MESSAGES)
    printed = succeed("tail", path, "orders", "--until-end", "--json")
    copy = tmp_path / "copy"
    succeed("topic", "create", copy, "orders", "--queues", 2)
    assert succeed("send", copy, "orders", "--json", stdin=printed.encode()) == "5 sent to orders\n"

    def kept(of: Path) -> list[dict[str, object]]:
        return [{**row, "properties": dict(row["properties"])} for row in bodies(of, KEPT)]  # type: ignore[call-overload]

    assert kept(copy) == kept(path)
    again = succeed("tail", copy, "orders", "--until-end", "--json")
    given_by_store = ("msgId", "queueOffset", "storeTimestamp")
    both = [
        [{name: value for name, value in json.loads(line).items() if name not in given_by_store} for line in text]
        for text in (again.splitlines(), printed.splitlines())
    ]
    assert both[0] == both[1]


def test_lines_may_have_different_fields(path: Path) -> None:
    lines = ['{"body": "bare"}', '{"body": "full", "flag": 7, "bornTimestamp": "2013-01-31T06:00+00:00"}']
    assert succeed("send", path, "orders", "--json", "--queue", 0, *lines) == "2 sent to orders\n"
    bare, full = bodies(path, ("flag", "bornTimestamp", "storeTimestamp"))
    assert (bare["flag"], full["flag"]) == (0, 7)
    assert full["bornTimestamp"] == datetime(2013, 1, 31, 6, tzinfo=UTC)
    assert full["bornTimestamp"] < bare["bornTimestamp"] <= bare["storeTimestamp"]  # type: ignore[operator]


def test_spread_chooses_queues_by_sharding_key(path: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"body": f"{n}", "queueId": 7, "shardingKey": "always the same"}) for n in range(20)]
    refused = run("send", path, "orders", "--json", stdin="\n".join(lines).encode())
    assert re.search(r"line 1: .*topic .orders. has queues 0 to 1, not 7", refused.stderr)
    succeed("send", path, "orders", "--json", "--spread", stdin="\n".join(lines).encode())
    assert len({row["queueId"] for row in bodies(path, ("queueId",))}) == 1


def test_keys_and_tags_come_from_fields_of_the_lines(path: Path) -> None:
    lines = b'{"id": 17, "type": "paid", "also": ["x", "y"]}\n{"id": "b", "type": null}\n'
    fields = ("--key-field", "id", "--key-field", "also", "--tag-field", "type")
    succeed("send", path, "orders", "--queue", 0, "--keys", "all", *fields, stdin=lines)
    found = bodies(path, ("body", "keys", "tags"))
    assert [row["body"] for row in found] == lines.splitlines()
    assert [(row["keys"], row["tags"]) for row in found] == [("all 17 x y", "paid"), ("all b", None)]
    assert succeed("query", path, "orders", "--key", "y") == lines.decode().splitlines()[0] + "\n"


def test_property_option_applies_to_all_messages(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "--queue", 0, "--property", "region=eu", "--property", "x=1=2")
    assert [row["properties"] for row in bodies(path, ("properties",))] == [[("region", "eu"), ("x", "1=2")]] * 2
    line = b'{"body": "c", "properties": {"own": "1", "region": "us"}}'
    succeed("send", path, "orders", "--json", "--queue", 1, "--property", "region=eu", stdin=line)
    assert dict(bodies(path, ("properties",))[2]["properties"]) == {"own": "1", "region": "eu"}  # type: ignore[call-overload]


GOOD = '{"body": "x"}'


@pytest.mark.parametrize(
    ("arguments", "line", "words"),
    [
        (["--json"], "hello", "line 2: the line is no JSON: Expecting value"),
        (["--json"], "[1]", "line 2: the line is a JSON list, not an object"),
        (["--json"], '{"tags": "a"}', "line 2: give exactly one of the fields 'body' and 'bodyBase64'"),
        (
            ["--json"],
            '{"body": "a", "bodyBase64": ""}',
            "line 2: give exactly one of the fields 'body' and 'bodyBase64'",
        ),
        (["--json"], '{"bodyBase64": "?"}', "line 2: 'bodyBase64' is no base64"),
        (["--json"], '{"body": 17}', "line 2: 'body' is 17, not a text; give bytes in 'bodyBase64'"),
        (["--json"], '{"body": "a", "tag": "b"}', "line 2: unknown field 'tag'; did you mean 'tags'?"),
        (["--json"], '{"body": "a", "customer": 7}', "unknown field 'customer'; put it into 'properties'"),
        (["--json"], '{"body": "a", "properties": {"n": 7}}', "properties: 'n' is 7, not a text"),
        (["--json"], '{"body": "a", "bornTimestamp": "now"}', "Invalid isoformat string: 'now'"),
        (["--json"], '{"body": "a", "bornTimestamp": "0001-01-01T00:00+14:00"}', "line 2: 'bornTimestamp' is"),
        (["--json"], '{"body": "a", "queueId": true}', "'queueId' is true, not a whole number"),
        (
            ["--json"],
            '{"body": "a", "tags": "\\ud800"}',
            "line 2: tags has '\\ud800', which UTF-8 cannot encode",
        ),
        (["--json"], '{"body": "\\ud800"}', "line 2: body has '\\ud800', which UTF-8 cannot encode"),
        (
            ["--json"],
            '{"body": "a", "properties": {"\\ud800": "b"}}',
            "line 2: properties has '\\ud800', which UTF-8 cannot encode",
        ),
        (
            ["--json"],
            '{"body": "a", "flag": 123456789012345678901}',
            "line 2: 'flag' is 123456789012345678901, not a whole",
        ),
        (["--tag-field", "id"], '{"id": "\\udfff"}', "line 2: field 'id' has '\\udfff', which UTF-8 cannot encode"),
        (["--key-field", "id"], '{"id": "a b"}', "line 2: field 'id' is 'a b', and a key must not contain spaces"),
        (
            ["--tag-field", "id"],
            '{"id": {}}',
            "line 2: field 'id' is {}, and a tag or a key must be a text or a number",
        ),
    ],
)
def test_wrong_line_is_named_and_earlier_lines_are_sent(
    path: Path, arguments: list[str], line: str, words: str
) -> None:
    done = run("send", path, "orders", GOOD, line, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert words in done.stderr
    assert done.stderr.endswith(" (1 sent to orders)\n")
    assert len(bodies(path)) == 1


def test_line_that_the_store_refuses_is_named(path: Path) -> None:
    lines = [json.dumps({"body": str(number), "queueId": 0}) for number in range(1000)]
    lines[700] = json.dumps({"body": "x", "queueId": 0, "tags": "a|b"})
    done = run("send", path, "orders", "--json", stdin="\n".join(lines).encode())
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: line 701: .*tag 'a\|b'.* \(700 sent to orders\)\n", done.stderr)
    assert [row["body"] for row in bodies(path)] == [str(number).encode() for number in range(700)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["x", "--json", "--key-field", "id"],
        ["x", "--spread"],
        ["x", "--json", "--spread", "--queue", "1"],
        ["x", "--property", "region"],
        ["x", "--property", "region=eu", "--property", "region=us"],
        ["x", "--property", "region=\udcff"],
        ["x", "--tags", "\udcff"],
    ],
)
def test_wrong_usage_is_refused(path: Path, arguments: list[str]) -> None:
    done = run("send", path, "orders", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_ctrl_c_says_how_many_were_sent(path: Path) -> None:
    with started("send", path, "orders", stdin=subprocess.PIPE) as send:
        assert send.stdin is not None
        send.stdin.write(b"one\ntwo\nhalf")
        send.stdin.flush()
        until(lambda: len(bodies(path)) == 2)
        send.send_signal(signal.SIGINT)
        out, err = send.communicate(timeout=TIMEOUT_SECONDS)
    assert (send.returncode, out, err) == (130, b"", b"Interrupted: 2 sent to orders\n")
    assert len(bodies(path)) == 2


@given(
    st.text(), st.binary(max_size=50), st.dictionaries(st.text(min_size=1), st.text()), st.integers(-(2**31), 2**31 - 1)
)
def test_message_survives_json_lines(text: str, body: bytes, properties: dict[str, str], flag: int) -> None:
    row = {"queueId": 1, "queueOffset": 5, "msgId": "m", "tags": text, "keys": None, "bornTimestamp": None}
    row |= {"storeTimestamp": None, "body": body, "flag": flag, "properties": list(properties.items())}
    line = json_line(row)
    assert b"\n" not in line
    found = message(line)
    without = {name: value for name, value in properties.items() if name not in ("TAGS", "KEYS", "__SHARDINGKEY")}
    assert (found["tags"], found["body"], found["flag"], found["properties"]) == (text, body, flag, without)
