"""RocketMQ opens our directories after machine crashes (see `tests/device`), before and after our recovery."""

from __future__ import annotations

import base64
import os
import random
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.device.disk import Disk, restore
from tests.device.history import History, Sent, everything
from tests.device.life import small
from tests.device.test_crashes import STORE, lived, up_again
from tests.rocketmq.harness import RocketMQ

pytestmark = pytest.mark.rocketmq

CRASHES = int(os.environ.get("CRASHES", "3"))
Place = tuple[str, int | None, int | None, bytes]  # topic, queue id, queue offset, body


def seen_by(rocketmq: RocketMQ, path: Path, flush: str, *, deleting: bool = False) -> set[Place]:
    """Return everything that RocketMQ's reader sees.

    deleting: old segments were being deleted. Queue files may remain whose records are all deleted; RocketMQ looks for
    the first valid entry only in a queue's first file, and skips such queues until it deletes the files itself.
    """
    sizes = small(flush)
    lines = rocketmq.read(path, {"maxHashSlotNum": sizes.maxHashSlotNum, "maxIndexNum": sizes.maxIndexNum})
    assert deleting or not [line for line in lines if line["kind"] == "gap"]
    return {
        (line["topic"], line["queueId"], line["queueOffset"], base64.b64decode(line["body"]))
        for line in lines
        if line["kind"] == "message"
    }


def places(messages: list[Sent]) -> set[Place]:
    return {(each.topic, each.queue_id, each.queue_offset, each.body) for each in messages}


@pytest.mark.parametrize("number", range(CRASHES))
def test_rocketmq_sees_flushed_and_recovered_messages(rocketmq: RocketMQ, tmp_path: Path, number: int) -> None:
    chance = random.Random(f"{rocketmq.line} {number}")
    flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
    changes, history = lived(tmp_path / "live", {}, chance, flush, History(), None)
    cut = chance.randint(0, len(changes))
    restore(up_again(Disk({}, changes[:cut], chance).after_power_loss(chance)), tmp_path / "crashed")
    path, copy = tmp_path / "crashed" / STORE, tmp_path / "copy"
    must = max((count for since, count in history.must if since <= cut), default=0)
    gone = max((offset for since, offset in history.gone if since <= cut), default=0)
    if not path.exists():
        assert must == 0
        return
    shutil.copytree(path, copy)
    at_once = seen_by(rocketmq, copy, flush, deleting=gone > 0)
    promised = [each for each in history.sent[:must] if (each.physical_offset or 0) >= gone]
    assert places(promised) <= at_once
    bodies = {each.body for each in history.sent}
    assert {body for *_, body in at_once} <= bodies, "a torn message was served"
    with MessageStore.open(path, config=small(flush)) as store:
        history.check(everything(store), cut)
        for topic in store.topics():
            store.put(Message(topic, b"next", queue_id=0))
        recovered = everything(store)
    assert seen_by(rocketmq, path, flush) == places(recovered)
