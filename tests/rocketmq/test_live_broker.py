from __future__ import annotations

from pathlib import Path

import pytest

from store import MessageStore, StoreLocked
from store.upkeep.verify import verify
from tests import seen
from tests.rocketmq.harness import RocketMQ
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

MESSAGES = 2000
SMALL = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}


def test_acknowledged_messages_of_a_broker_are_visible(rocketmq: RocketMQ, tmp_path: Path) -> None:
    directory, read = tmp_path / "theirs", {}
    with rocketmq.broker(directory, SMALL, topic="live", queues=4, bodyBytes=150) as lines:
        lines.ask("send", messages=MESSAGES, perSecond=1000)
        assert next(lines)["kind"] == "sent"
        with MessageStore.open(directory, read_only=True) as store:
            with pytest.raises(StoreLocked):
                MessageStore.open(directory)
            ends = dict.fromkeys(range(4), 0)
            for number, line in enumerate(lines, 1):
                if line["kind"] == "done":
                    break
                assert (line["kind"], line["status"]) == ("sent", "SEND_OK")
                read[line["queueId"], line["queueOffset"]] = line
                if number % 100 == 0 or number == MESSAGES - 1:
                    queue_id, end = line["queueId"], line["queueOffset"] + 1
                    until(lambda: store.max_offset("live", queue_id) >= end)  # noqa: B023
                    ends = {queue: check(store, queue, ends[queue], read) for queue in ends}
                    assert verify(directory).findings == []
        with MessageStore.open(directory, read_only=True) as store:
            ours = seen.by_scan(store)
    assert sum(len(queue.rows) for name, queue in ours.items() if name[0] == "live") == MESSAGES
    theirs = seen.by_rocketmq(rocketmq.read(directory))
    seen.assert_same({name: ours[name] for name in ours if name in theirs}, theirs)


def check(store: MessageStore, queue_id: int, start: int, sent: dict[tuple[int, int], dict[str, object]]) -> int:
    """Check that a queue's new messages are the sent ones, each once; return the new end."""
    end = store.max_offset("live", queue_id)
    offset = start
    for batch in store.scan("live", queue_id, start, end, columns=("queueOffset", "msgId", "tags", "body")):
        for row in batch.to_pylist():
            assert row["queueOffset"] == offset
            line = sent.get((queue_id, offset))
            if line is not None:  # the first line has passed, and the newest may be incomplete
                assert row["msgId"] == line["msgId"]
                assert row["body"][:4] == int(str(line["number"])).to_bytes(4, "little")
            offset += 1
    assert offset == end
    return end
