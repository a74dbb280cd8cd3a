from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.browsing import Row, between, follow, newest, rows_of
from store import Message, MessageStore, OffsetLost, OffsetNotYet, TagFilter, message_filter
from store.archive.archive_log import ArchiveAddress
from store.client.log_kinds import address_at
from store.directory.directory_log import DirectoryAddress, DirectoryLog
from store.model.log_protocol import MessageFilter, Queue
from store.read.filters import EVERYTHING
from tests.filled import Filled
from tests.restarted import delete_as_broker

COLUMNS = ("queueOffset", "body")


QUEUE = Queue("t", 0)


def test_range_with_deleted_offsets_is_refused(tmp_path: Path) -> None:
    filled, spec = Filled(tmp_path / "mq", {"t": 1}), rows_of(COLUMNS, EVERYTHING)
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        filled.put("t", 0, 250, size=1000)
        store.clean(forced=True)
        first = store.min_offset("t", 0)
        found = [row["queueOffset"] for row in between(log, {QUEUE: first}, {QUEUE: 250}, spec)]
        assert found == list(range(first, 250))
        with pytest.raises(OffsetLost):
            list(between(log, {QUEUE: first - 10}, {QUEUE: 250}, spec))
        with pytest.raises(OffsetNotYet, match=r"offset 251 does not exist yet\. The next message gets offset 250"):
            list(between(log, {QUEUE: 251}, {QUEUE: 250}, spec))


def test_range_of_an_archived_topic_is_not_mixed_with_a_new_one(tmp_path: Path) -> None:
    filled, spec, url = Filled(tmp_path / "mq", {"t": 1}), rows_of(COLUMNS, EVERYTHING), str(tmp_path / "archive")
    with filled.store as store:
        filled.put("t", 0, 5)
        store.archive(url)
        with ArchiveAddress(url).open() as log:
            found = between(log, {QUEUE: 0}, {QUEUE: 5}, spec)
            delete_as_broker(filled.path, "t")
            store.create_topic("t", 1)
            filled.put("t", 0, 7)
            store.archive(forget=["t"])
            with pytest.raises(OffsetLost):
                list(found)


def test_new_queue_is_followed_from_its_first_message(tmp_path: Path) -> None:
    filled, spec = Filled(tmp_path / "mq", {"t": 1}), rows_of(COLUMNS, EVERYTHING)
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        filled.put("t", 0, 250, size=1000)
        store.clean(forced=True)
        first = store.min_offset("t", 0)
        rounds = follow(log, "t", {}, None, spec, {})
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[first:]]
        store.create_topic("t", 2)
        filled.put("t", 1, 3)
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[250:]]


def test_queue_that_was_missing_continues_at_its_offset(tmp_path: Path) -> None:
    """As after a broker was down for longer than the retry limit: otherwise all messages are returned again."""

    class Leaving(DirectoryLog):
        away = False

        def topics(self, *how: Any) -> Mapping[str, tuple[Queue, ...]]:
            return {"t": (QUEUE,) if self.away else (QUEUE, Queue("t", 1))}

    filled, spec = Filled(tmp_path / "mq", {"t": 2}), rows_of(COLUMNS, EVERYTHING)
    filled.put("t", 1, 5)
    with filled.store, Leaving(MessageStore.open(filled.path, read_only=True)) as log:
        rounds = follow(log, "t", {}, None, spec, {})
        assert bodies(next(rounds)) == [row[3] for row in filled.rows]
        log.away = True
        filled.put("t", 1, 2)
        assert bodies(next(rounds)) == []
        log.away = False
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[5:]]


@pytest.mark.parametrize("more", [-1, 0, 3])
def test_recreated_topic_is_followed_from_its_first_message(tmp_path: Path, more: int) -> None:
    filled, spec = Filled(tmp_path / "mq", {"t": 1}), rows_of(COLUMNS, EVERYTHING)
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        filled.put("t", 0, 5)
        rounds = follow(log, "t", {QUEUE: 2}, None, spec, log.fingerprints({QUEUE: 2}))
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[2:]]
        delete_as_broker(filled.path, "t")
        store.create_topic("t", 1)
        filled.put("t", 0, 5 + more)
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[5:]]
        filled.put("t", 0, 1)
        assert bodies(next(rounds)) == [filled.rows[-1][3]]


@pytest.mark.parametrize("more", [0, 3])
def test_empty_topic_recreated_is_followed_from_its_start(tmp_path: Path, more: int) -> None:
    filled, spec = Filled(tmp_path / "mq", {"t": 1, "other": 1}), rows_of(COLUMNS, EVERYTHING)
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        filled.put("t", 0, 5)
        filled.put("other", 0, 300, size=1000)
        store.clean(forced=True)
        assert store.offsets("t", 0) == (5, 5)
        rounds = follow(log, "t", {QUEUE: 5}, None, spec, log.fingerprints({QUEUE: 5}))
        assert bodies(next(rounds)) == []
        delete_as_broker(filled.path, "t")
        store.create_topic("t", 1)
        filled.put("t", 0, 5 + more)
        assert bodies(next(rounds)) == [row[3] for row in filled.rows[305:]]


def bodies(found: Iterable[Row]) -> list[bytes]:
    return [row["body"] for row in found]


@pytest.mark.parametrize("count", [1, 2, 7, 1500, 3000])
@pytest.mark.parametrize("accept", [EVERYTHING, TagFilter(("A",)), message_filter("TAGS = 'A'", "SQL92")])
def test_newest_messages_are_the_last_ones(tmp_path: Path, count: int, accept: MessageFilter) -> None:
    filled = Filled(tmp_path / "mq", {"t": 3})
    with filled.store, DirectoryAddress(filled.path).open() as log:
        filled.put("t", 0, 1000)
        filled.put("t", 1, 1100)
        filled.put("t", 0, 31)
        spec, queues = rows_of(COLUMNS, accept), [Queue("t", queue_id) for queue_id in range(3)]
        begin, end = (dict(zip(queues, offsets, strict=True)) for offsets in ((3, 0, 0), (1030, 1100, 0)))
        everything = bodies(between(log, begin, end, spec))
        assert bodies(newest(log, begin, end, count, spec)) == everything[-count:]


def test_newest_messages_of_an_archive_were_stored_last(tmp_path: Path) -> None:
    """Each archived queue has its own log, so log offsets of different queues cannot be compared."""
    filled, url = Filled(tmp_path / "mq", {"t": 2}), str(tmp_path / "archive")
    spec, queues = rows_of(COLUMNS, EVERYTHING), [Queue("t", queue_id) for queue_id in range(2)]
    with filled.store as store:
        for queue_id, count in ((0, 300), (1, 2), (0, 1), (1, 1)):
            filled.put("t", queue_id, count, 1000)
        store.archive(url)
        assert store.clean(forced=True).log
        put = [row[3] for row in filled.rows]
        for address in (ArchiveAddress(url), address_at(filled.path)):
            with address.open() as log:
                begin, end = dict.fromkeys(queues, 0), {queues[0]: 301, queues[1]: 3}
                assert bodies(between(log, begin, end, spec)) == put
                assert bodies(newest(log, begin, end, 3, spec)) == put[-3:]


def test_newest_messages_of_a_rare_tag_are_found(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    spec = rows_of(COLUMNS, TagFilter(("rare",)))
    with filled.store as store, DirectoryAddress(filled.path).open() as log:
        store.put_many([Message("t", b"rare", tags="rare"), *(Message("t", b"x") for _ in range(5000))])
        assert bodies(newest(log, {QUEUE: 0}, {QUEUE: 5001}, 3, spec)) == [b"rare"]
        assert bodies(newest(log, {QUEUE: 1}, {QUEUE: 5001}, 3, spec)) == []
