"""A directory that RocketMQ's tiered store wrote, compared with RocketMQ's reading of it."""

from __future__ import annotations

import base64
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store import CorruptSegment
from store.archive.archive_log import ArchiveAddress
from store.archive.catalog import INDEX, METADATA, Catalog, cluster_folder
from store.model.log_protocol import Bounds, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING
from store.read.query import KeyQuery

GOLDEN = Path(__file__).parents[2] / "golden"
ARCHIVE = GOLDEN / "tiered" / "5.5"
COLUMNS = ("body", "queueOffset", "physicalOffset", "storeTimestamp", "bodyCRC", "properties", "topic", "queueId")


def lines(kind: str) -> list[dict[str, Any]]:
    every = map(json.loads, (GOLDEN / "tiered" / "5.5.jsonl").read_text("utf-8").splitlines())
    return [line for line in every if line["kind"] == kind]


def test_queues_equal_rocketmqs() -> None:
    with ArchiveAddress(str(ARCHIVE)).open() as log:
        theirs = {Queue(each["topic"], each["queueId"]): Bounds(each["min"], each["max"]) for each in lines("queue")}
        assert log.bounds([queue for queues in log.topics().values() for queue in queues]) == theirs


def test_messages_equal_rocketmqs() -> None:
    ours = []
    with ArchiveAddress(str(ARCHIVE)).open() as log:
        for queue, bounds in log.bounds([queue for queues in log.topics().values() for queue in queues]).items():
            for batch in log.scan(QueueRange(queue, *bounds), ReadSpec(COLUMNS, EVERYTHING)):
                ours += batch.to_pylist()
    # RocketMQ's reader returns bodies as stored here; the mixes of other directories compare them.
    theirs = [
        (each["topic"], each["queueId"], each["queueOffset"], each["physicalOffset"], each["bodyCRC"])
        for each in lines("message")
    ]
    assert [(r["topic"], r["queueId"], r["queueOffset"], r["physicalOffset"], r["bodyCRC"]) for r in ours] == theirs
    plain = {(r["topic"], r["queueId"], r["queueOffset"]): r for r in ours if r["topic"] == "hosts"}
    for each in lines("message"):
        if each["topic"] == "hosts":
            row = plain[each["topic"], each["queueId"], each["queueOffset"]]
            assert row["body"] == base64.b64decode(each["body"])
            assert dict(row["properties"]).items() >= {}.items()
            assert {k: v for k, v in row["properties"] if k in each["properties"]} == each["properties"]


def test_lookups_by_key_equal_rocketmqs(tmp_path: Path) -> None:
    said = [json.loads(line) for line in (GOLDEN / "tiered" / "5.5-index.jsonl").read_text("utf-8").splitlines()]
    theirs = {(each["key"], each["queueId"], each["queueOffset"]) for each in said if "queueId" in each}
    keys = [each["key"] for each in said if "queueId" not in each]
    assert len(theirs) > 80
    copy = shutil.copytree(GOLDEN / "tiered" / "5.5-index", tmp_path / "archive")
    with ArchiveAddress(str(copy)).open() as log:
        found = {(key, each.queue_id, each.queue_offset) for key in keys for each in log.query(KeyQuery("keyed", key))}
        assert found == theirs
        (index,) = copy.rglob(f"{INDEX}/*")
        (queues,) = (copy / cluster_folder("DefaultCluster") / "broker-a").glob("keyed")
        queues.rename(tmp_path / "away")
        assert log.query(KeyQuery("keyed", "none")) == []
        os.truncate(index, 100)
        with pytest.raises(CorruptSegment, match="this object ends before byte"):
            log.query(KeyQuery("keyed", "none"))


def test_rocketmqs_metadata_survives_a_rewrite() -> None:
    read = Catalog.parse("its metadata", (ARCHIVE / METADATA).read_bytes())
    assert read is not None
    assert Catalog.parse("ours", read.text()) == read


def test_queue_begins_at_the_later_of_log_and_entries(tmp_path: Path) -> None:
    """A broker deletes the oldest segments of log and entries independently, each by its own times."""
    copy = shutil.copytree(ARCHIVE, tmp_path / "archive")
    read = Catalog.parse("its metadata", (copy / METADATA).read_bytes())
    assert read is not None
    queue = Queue("compressed", 0)
    first, *left = read.queues[queue].log
    (copy / METADATA).write_bytes(read.having(queue, replace(read.queues[queue], log=tuple(left))).text())
    theirs = [each["queueOffset"] for each in lines("message") if Queue(each["topic"], each["queueId"]) == queue]
    kept = [
        each["queueOffset"]
        for each in lines("message")
        if Queue(each["topic"], each["queueId"]) == queue and each["physicalOffset"] >= first.stop
    ]
    assert 0 < len(kept) < len(theirs)
    with ArchiveAddress(str(copy)).open() as log:
        assert log.bounds([queue]) == {queue: (kept[0], kept[-1] + 1)}
        batches = log.scan(QueueRange(queue, kept[0], kept[-1] + 1), ReadSpec(("queueOffset",), EVERYTHING))
        assert [offset for batch in batches for offset in batch["queueOffset"].to_pylist()] == kept
