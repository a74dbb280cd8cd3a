"""RocketMQ's code still encodes frames as stored in tests/golden/remoting."""

from __future__ import annotations

import pytest

from store.model.codes import Language, Serialization
from store.remoting.command import decode, encode
from tests.rocketmq.harness import RocketMQ
from tests.store.remoting.golden import LINES

pytestmark = pytest.mark.rocketmq


def test_frames_are_read_and_written_as_rocketmq_does(rocketmq5: RocketMQ) -> None:
    codes, *frames = rocketmq5.frames()
    assert all(codes[kind].items() >= LINES[0][kind].items() for kind in ("requests", "responses", "languages"))
    assert len(frames) == len(LINES) - 1
    for line in frames:
        frame = bytes.fromhex(line["frame"])
        command = decode(frame[4:])
        assert (command.code, command.opaque, command.flag) == (line["code"], line["opaque"], line["flag"])
        assert (command.version, command.language) == (line["version"], Language[line["language"]])
        assert (command.fields, command.remark) == (line["fields"], line["remark"])
        assert command.body == bytes.fromhex(line["body"])
        assert command.serialization is Serialization[line["serialization"]]
        if rocketmq5.line == "5.3":
            assert encode(command) == frame
