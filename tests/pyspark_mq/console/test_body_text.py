import pytest

from pyspark_mq.console.body_text import SHOWN_BYTES, hex_dump, preview, shown_body


@pytest.mark.parametrize(
    ("body", "form", "text"),
    [
        (b'{"a": [1, "\xc3\xa9"]}', "json", '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        (b"plain", "text", "plain"),
        (b"12", "text", "12"),
        (b"{not json", "text", "{not json"),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b"", "text", ""),
        (b"\xff\x00", "hex", hex_dump(b"\xff\x00")),
        (b"line\n\tline", "text", "line\n\tline"),
    ],
)
def test_body_is_shown_in_the_first_form_that_fits(body: bytes, form: str, text: str) -> None:
    assert shown_body(body)[:2] == (form, text)


def test_note_says_that_the_requested_form_does_not_fit() -> None:
    assert shown_body(b"plain", "json").note == "The body is not JSON. "
    assert shown_body(b"\xff", "text").note == "The body is not UTF-8. "
    assert shown_body(b"{}", "hex").form == "hex"


def test_large_body_is_cut_between_characters() -> None:
    shown = shown_body(b"x" + "é".encode() * SHOWN_BYTES)
    assert (shown.form, len(shown.text)) == ("text", SHOWN_BYTES // 2)
    assert "Only the first 256 KiB" in shown.note


def test_hex_dump_has_offsets_bytes_and_ascii() -> None:
    assert hex_dump(b"0123456789abcdef<\n").splitlines() == [
        "00000000  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  0123456789abcdef",
        "00000010  3c 0a                                            <.",
    ]


def test_preview_is_one_short_line() -> None:
    assert preview(b"a\n b\tc") == "a b c"
    assert preview(b"\xff\x01") == "ff 01"
    assert len(preview(b"word " * 1_000)) < 200
