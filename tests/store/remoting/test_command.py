from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.model.codes import Language, Serialization
from store.model.errors import BadFrame
from store.remoting.command import MAX_FRAME_BYTES, MAX_HEADER_BYTES, Command, decode, encode, encode_head, parse_json
from tests.store.remoting.golden import FRAMES, name_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
COMMANDS = st.builds(
    Command,
    code=st.integers(0, (1 << 15) - 1),
    fields=st.dictionaries(TEXTS, TEXTS, max_size=5),
    body=st.binary(max_size=50),
    remark=st.none() | TEXTS.filter(bool),
    opaque=INTS,
    flag=INTS,
    language=st.sampled_from(Language),
    version=st.integers(-(1 << 15), (1 << 15) - 1),
    serialization=st.sampled_from(Serialization),
)


@pytest.mark.parametrize("line", FRAMES, ids=name_of)
def test_frames_of_rocketmq_are_decoded_and_encoded(line: dict[str, Any]) -> None:
    frame = bytes.fromhex(line["frame"])
    command = decode(frame[4:])
    assert command == Command(
        code=line["code"],
        fields=line["fields"],
        body=bytes.fromhex(line["body"]),
        remark=line["remark"],
        opaque=line["opaque"],
        flag=line["flag"],
        language=Language[line["language"]],
        version=line["version"],
        serialization=Serialization[line["serialization"]],
    )
    assert encode(command) == frame


def test_frame_of_another_language_is_decoded() -> None:
    frame = bytes.fromhex(
        "000000320100002B00690301DF0000000700000002000000026869000000140005746F70696300000009546F70696354657374010203"
    )
    command = decode(frame[4:])
    assert (command.code, command.language, command.opaque, command.remark) == (105, Language.PYTHON, 7, "hi")
    assert (command.fields, command.body) == ({"topic": "TopicTest"}, b"\1\2\3")
    assert command.is_oneway
    assert not command.is_response
    assert encode(command) == frame


@given(COMMANDS)
def test_command_survives_encoding(command: Command) -> None:
    frame = encode(command)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(frame[4:]) == command


@given(COMMANDS, st.data())
def test_changed_frame_is_a_command_or_refused(command: Command, data: st.DataObject) -> None:
    frame = bytearray(encode(command)[4:])
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=4)):
        frame[at] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(0, len(frame)))]
    try:
        changed = decode(frame)
    except BadFrame:
        return
    changed.serialization = Serialization.JSON
    assert decode(encode(changed)[4:]) == changed


def json_frame(header: bytes) -> bytes:
    return struct.pack(">i", len(header)) + header


def test_fields_become_texts_and_unknown_languages_other() -> None:
    header = {"code": 1, "language": "COBOL", "extFields": {"a": 7, "b": True, "c": None, "d": ""}}
    command = decode(json_frame(json.dumps(header).encode()))
    assert command.fields == {"a": "7", "b": "true", "d": ""}
    assert command.language is Language.OTHER


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "only 0 bytes"),
        (struct.pack(">i", 100) + b"{}", "a header of 100 bytes"),
        (struct.pack(">i", MAX_HEADER_BYTES + 1) + bytes(MAX_HEADER_BYTES + 1), "at most"),
        (struct.pack(">i", 7 << 24 | 2) + b"{}", "kind 7"),
        (struct.pack(">i", -1) + b"{}", "a header of"),
        (json_frame(b"[" * 100_000), "no JSON"),
        (json_frame(b'{"a":' * 100_000), "no JSON"),
        (json_frame(b'{"code":' + b"9" * 100_000 + b"}"), "no JSON"),
        (json_frame(b'{"code":NaN}'), "no JSON"),
        (json_frame(b'{"code":1e5}'), "code`"),
        (json_frame(b'{"code":2147483648}'), "code`"),
        (json_frame(b'{"opaque":true}'), "opaque`"),
        (json_frame(b"[]"), "Expected `object`"),
        (json_frame(b'{"extFields":[]}'), "extFields`"),
        (json_frame(b'{"extFields":{"a":{}}}'), "extFields"),
        (json_frame(b'{"remark":1}'), "remark`"),
        (json_frame(b'{"remark":"\\ud800"}'), "no JSON"),
        (json_frame(b"\xff\xfe"), "no JSON"),
        (struct.pack(">i", 1 << 24 | 3) + bytes(3), "only 3 bytes"),
        (struct.pack(">i", 1 << 24 | 21) + bytes(13) + struct.pack(">ii", -1, 0), "announced"),
        (struct.pack(">i", 1 << 24 | 21) + bytes(13) + struct.pack(">ii", 0, 1 << 30), "announced"),
        (struct.pack(">i", 1 << 24 | 22) + bytes(13) + struct.pack(">ii", 0, 0) + b"x", "behind"),
        (struct.pack(">i", 1 << 24 | 22) + bytes(13) + struct.pack(">i", 1) + b"\xff" + bytes(4), "UTF-8"),
    ],
)
def test_wrong_frames_are_refused(frame: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        decode(frame)


def test_wrong_language_becomes_other() -> None:
    assert decode(json_frame(b'{"language":[]}')).language == Language.OTHER


def test_too_large_command_is_refused() -> None:
    assert len(encode_head(Command(1), MAX_FRAME_BYTES - 200)) < 200
    with pytest.raises(BadFrame, match="at most"):
        encode_head(Command(1), MAX_FRAME_BYTES)
    with pytest.raises(BadFrame, match="at most"):
        encode(Command(1, {"a": "b" * MAX_HEADER_BYTES}))
    with pytest.raises(BadFrame, match="use JSON"):
        encode(Command(200_050, serialization=Serialization.ROCKETMQ))
    with pytest.raises(BadFrame, match="a name of"):
        encode(Command(1, {"b" * 40_000: "a"}, serialization=Serialization.ROCKETMQ))


def test_deeply_nested_object_is_refused() -> None:
    with pytest.raises(BadFrame):
        parse_json(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", dict[str, Any])
