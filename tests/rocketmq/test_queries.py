from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store import MessageStore
from store.disk.commit_log import CommitLog
from store.model.log_protocol import Boundary
from store.read.query import message_at, offset_of_id
from tests import seen
from tests.rocketmq.golden import GOLDEN, SIZES, config_of
from tests.rocketmq.harness import Json, RocketMQ

pytestmark = pytest.mark.rocketmq

NAMES = ("clean", "index-5.3", "hosts-5.3")


def answers(rocketmq: RocketMQ, name: str, queries: list[Json], folder: Path) -> list[Json]:
    copy = shutil.copytree(GOLDEN / name, folder / name)
    lines = rocketmq.read(copy, config_of(name), queries)
    return [line for line in lines if line["kind"] in ("time", "id")]


@pytest.mark.parametrize("name", NAMES)
def test_lookups_by_time_equal_rocketmqs(name: str, rocketmq5: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ 4 has no boundary parameter and returns the nearest message."""
    queues = seen.golden(GOLDEN / f"{name}.jsonl")
    queries = [
        {"topic": topic, "queueId": queue_id, "time": row["storeTimestamp"] + step, "boundary": boundary.name}
        for (topic, queue_id), queue in queues.items()
        for row in queue.rows
        for step in (-1, 0, 1)
        for boundary in Boundary
    ]
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        for line in answers(rocketmq5, name, queries, tmp_path):
            ours = store.offset_by_time(line["topic"], line["queueId"], line["time"], Boundary[line["boundary"]])
            assert line["offset"] == ours, line


@pytest.mark.parametrize("name", NAMES)
def test_lookups_by_id_equal_rocketmqs(name: str, rocketmq: RocketMQ, tmp_path: Path) -> None:
    if rocketmq.line < "5" and name == "clean":
        pytest.skip(f"RocketMQ {rocketmq.line} knows no V2 records and ends the log at the first")
    if rocketmq.line == "4.3" and name == "hosts-5.3":
        pytest.skip("RocketMQ 4.3 knows no IPv6 hosts")
    rows = [row for queue in seen.golden(GOLDEN / f"{name}.jsonl").values() for row in queue.rows]
    ids = [f"7F00000100002A9F{row['physicalOffset']:016X}" for row in rows]
    log = CommitLog(GOLDEN / name, SIZES["mappedFileSizeCommitLog"], writable=False)
    end = max(row["physicalOffset"] for row in rows) + SIZES["mappedFileSizeCommitLog"]
    for line in answers(rocketmq, name, [{"id": one} for one in ids], tmp_path):
        ours = message_at(log, offset_of_id(line["id"]), end)
        assert (ours.topic, ours.queue_id, ours.queue_offset) == (line["topic"], line["queueId"], line["queueOffset"])
