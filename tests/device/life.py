"""Random calls of a store by one or two writers, and the guarantees of each call."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

from store import Append, AppendResult, Message, MessageStore, StoreConfig, StoreError
from store.format.record_copies import CopyDestinations
from store.upkeep.verify import verify
from tests.device.history import History, Sent, Steps, everything
from tests.device.recorder import Recorder
from tests.store.format.test_columns import in_a_log
from tests.store.format.test_record_copies import copies_of

T = TypeVar("T")
NEVER = sys.maxsize
_TOPICS = ("a", "b")
_QUEUES = 2
_BODY = pa.schema([("body", pa.binary())])


def small(flush: str) -> StoreConfig:
    """Settings with only a few messages per file, and flushes only by calls."""
    return StoreConfig(
        mappedFileSizeCommitLog=8192,
        mappedFileSizeConsumeQueue=400,
        maxHashSlotNum=20,
        maxIndexNum=40,
        flushIntervalCommitLog=3_600_000,
        deleteFileBatchMax=2,
        flushDiskType=flush,
    )


class _Stop(Exception):
    pass


def _stop() -> Iterator[pa.RecordBatch]:
    raise _Stop
    yield


def _table(sent: list[Sent]) -> pa.Table:
    bodies, tags, keys = ([getattr(each, name) for each in sent] for name in ("body", "tags", "keys"))
    return pa.table({"body": bodies, "tags": tags, "keys": pa.array(map(list, keys), pa.list_(pa.string()))})


def _places(result: AppendResult) -> list[tuple[int, int, int]]:
    numbers = result.queue_ids.tolist(), result.queue_offsets.tolist(), result.physical_offsets.tolist()
    return list(zip(*numbers, strict=True))


class Life:
    """One life of the machine: a store in `path`; `recorder` counts its changes."""

    def __init__(self, path: Path, recorder: Recorder, chance: random.Random, history: History, flush: str) -> None:
        self.history = history
        self._path = path
        self._recorder = recorder
        self._chance = chance
        self._config = small(flush)
        self._stores: list[MessageStore] = []
        self._dead: list[MessageStore] = []
        self._names = (f"{chance.getrandbits(32):08x}-{number}" for number in itertools.count())

    def begin(self, cut: int | None = None) -> None:
        """Open the store; after a crash at change `cut` of `history`, check the guarantees."""
        if cut is None:
            with self._maybe_refused():
                self._stores.append(MessageStore.open(self._path, config=self._config))
            return
        self._stores.append(MessageStore.open(self._path, config=self._config))
        store = self._stores[0]
        opened = self._recorder.look()
        found = everything(store)
        end = self.history.check(found, cut)
        self.history.check_names(store, cut)
        report = verify(self._path)
        assert not report.findings, report.findings
        self._check_queries(found)
        self.history = self.history.goes_on(store, found, end, cut)
        self.history.must.append((opened, end))
        for topic, queue_id in {(each.topic, each.queue_id) for each in self.history.sent} - {("", None)}:
            assert queue_id is not None
            assert store.max_offset(topic, queue_id) == self.history.next_offset(topic, queue_id)

    def go_on(self, verbs: int) -> None:
        chosen = self._chance.choices(
            (
                self._put,
                self._put_table,
                self._publish,
                self._publish_in_vain,
                self._flush,
                self._commit,
                self._topic,
                self._clean,
                self._come_or_go,
                self._put_a_brokers_again,
                self._die,
            ),
            (54, 8, 8, 4, 8, 6, 4, 4, 10, 3, 3),
            k=verbs,
        )
        for verb in chosen:
            with self._maybe_refused():
                if not self._stores:
                    self._stores.append(MessageStore.open(self._path, config=self._config))
                verb()

    @contextmanager
    def _maybe_refused(self) -> Iterator[None]:
        """Accept errors only after the device failed."""
        answered = len(self.history.sent)
        try:
            yield
        except (StoreError, OSError):
            if not self._recorder.struck:
                raise
            self.history.refuse(answered)

    def end(self) -> None:
        while self._stores:
            with self._maybe_refused():
                self._close()

    def abandon(self) -> None:
        """Close the open stores after the machine crashed; their files are no longer checked."""
        for store in self._stores:
            with self._maybe_refused():
                store.close()

    def _put(self) -> None:
        store = self._any()
        topics = list(store.topics())
        if not topics:
            self._topic()
            return
        sent = [self._message(self._chance.choice(topics)) for _ in range(self._chance.choice((1, 1, 1, 2, 5, 12)))]
        messages = [
            Message(
                each.topic,
                each.body,
                tags=each.tags,
                keys=each.keys,
                queue_id=self._chance.choice((None, *range(store.topics()[each.topic]))),
            )
            for each in sent
        ]
        begun = self._begin(sent)
        results = store.put_many(messages)
        places = [(result.queue_id, result.queue_offset, result.physical_offset) for result in results]
        self._answered(begun, sent, places)

    def _put_table(self) -> None:
        store = self._any()
        topics = list(store.topics())
        if not topics:
            self._topic()
            return
        topic = self._chance.choice(topics)
        sent = [self._message(topic) for _ in range(self._chance.choice((1, 3, 20)))]
        begun = self._begin(sent)
        self._answered(begun, sent, _places(store.append_table(topic, _table(sent))))

    def _publish(self) -> None:
        """Publish an append of several parts, usually over several segments."""
        store, flush = self._any(), self._chance.random() < 0.5
        append, sent = self._added(store)
        begun = self._begin(sent, whole=flush)
        self._answered(begun, sent, _places(append.publish(flush=flush)))
        if flush:
            self._promise()

    def _publish_in_vain(self) -> None:
        """Fail in the last part of an append. A crash may still reveal it if it was not flushed."""
        store, flush = self._any(), self._chance.random() < 0.5
        append, sent = self._added(store)
        if not sent:
            return
        unseen = self.history.never if flush or self._config.sync_flush else self.history.refused
        unseen.update(each.body for each in sent)
        append.add(sent[0].topic, pa.RecordBatchReader.from_batches(_BODY, _stop()))
        with pytest.raises(_Stop):
            append.publish(flush=flush)

    def _added(self, store: MessageStore) -> tuple[Append, list[Sent]]:
        """Begin an append with some parts; without messages if no topic exists."""
        append, topics, sent = store.begin(), list(store.topics()), []
        for _ in range(self._chance.choice((1, 2, 5)) if topics else 0):
            topic = self._chance.choice(topics)
            part = [self._message(topic) for _ in range(self._chance.choice((1, 1, 4, 12)))]
            append.add(topic, _table(part))
            sent += part
        return append, sent

    def _put_a_brokers_again(self) -> None:
        """Append a copy of a record that only a broker accepts: its properties look like lost sectors."""
        store = self._any()
        for topic, queues in list(store.topics().items())[:1]:
            sent = self._message(topic)
            content, _, _ = in_a_log([Message(topic, sent.body, sent.tags, sent.keys)], 0)
            copies = copies_of(content)
            (properties,) = copies.properties.to_pylist()
            zeros = properties + b"zeros\1" + bytes(self._chance.choice((512, 800, 2000))) + b"\2"
            append, places = store.begin(), CopyDestinations(topic, np.array([self._chance.randrange(queues)]))
            append.add_copies(replace(copies, properties=pa.array([zeros], pa.binary())), places)
            begun = self._begin([sent])
            self._answered(begun, [sent], _places(append.publish()))

    def _die(self) -> None:
        """Kill a writer, possibly within an append; the other writers flush the messages that it published."""
        store = self._stores.pop(self._chance.randrange(len(self._stores)))
        writer = store._writer
        assert writer is not None
        store._is_over = True
        writer._flusher._stop.set()
        writer._lock.close()
        self._dead.append(store)

    def _flush(self) -> None:
        self._any().flush()
        self._promise()

    def _topic(self) -> None:
        store, topic = self._any(), self._chance.choice(_TOPICS)
        begun = self._recorder.look()
        queues = store.topics().get(topic, _QUEUES - 1) + 1 if self._chance.random() < 0.2 else _QUEUES
        queues = max(queues, store.topics().get(topic, 0))
        with self._begun(self.history.topics[topic], begun, queues):
            store.create_topic(topic, queues)

    def _commit(self) -> None:
        store = self._any()
        for topic in list(store.topics())[:1]:
            begun, offset = self._recorder.look(), self._chance.randint(0, store.max_offset(topic, 0))
            with self._begun(self.history.groups[topic, 0], begun, offset):
                store.commit_offsets("g", topic, {0: offset})

    def _clean(self) -> None:
        begun = self._recorder.look()
        try:
            self._any().clean(forced=True)
        finally:
            left = [int(file.name) for file in (self._path / "commitlog").iterdir()]
            self.history.gone.append((begun, min(left, default=0)))

    def _come_or_go(self) -> None:
        if len(self._stores) == 1 and self._chance.random() < 0.5:
            self._stores.append(MessageStore.open(self._path, config=self._config))
            return
        self._close()

    def _close(self) -> None:
        self._stores.pop(self._chance.randrange(len(self._stores))).close()
        self._promise()

    def _any(self) -> MessageStore:
        return self._chance.choice(self._stores)

    def _message(self, topic: str) -> Sent:
        name = next(self._names)
        keys = tuple(key for key in (f"k{name}", "all") if self._chance.random() < 0.6)
        body = f"{name} ".encode() + b"." * self._chance.choice((0, 50, 200, 700))
        return Sent(topic, body, self._chance.choice((None, "x", "y")), keys)

    def _begin(self, sent: list[Sent], *, whole: bool = False) -> int:
        begun, first = self._recorder.look(), len(self.history.sent)
        if whole or self._config.sync_flush:
            self.history.wholes.append((first, first + len(sent)))
        self.history.may.append((begun, len(self.history.sent) + len(sent)))
        self.history.sent += sent
        return begun

    @contextmanager
    def _begun(self, steps: Steps[T], begun: int, value: T) -> Iterator[None]:
        """Record the replacement of a value, which is certain only if the call returns."""
        done = NEVER
        try:
            yield
            done = self._recorder.look()
        finally:
            steps.steps.append((begun, done, value))

    def _answered(self, begun: int, sent: list[Sent], places: list[tuple[int, int, int]]) -> None:
        first = len(self.history.sent) - len(sent)
        for number, (message, place) in enumerate(zip(sent, places, strict=True), first):
            expected = self.history.next_offset(message.topic, place[0])
            assert place[1] == expected or (self.history.refused and place[1] > expected)
            self.history.sent[number] = message.placed(*place)
        if self._config.sync_flush:
            self._promise()

    def _promise(self) -> None:
        self.history.must.append((self._recorder.look(), len(self.history.sent)))

    def _check_queries(self, found: list[Sent]) -> None:
        store = self._stores[0]
        for message in self._chance.sample(found, min(3, len(found))):
            assert message.queue_id is not None
            for key in message.keys:
                having = [each for each in found if key in each.keys and each.topic == message.topic]
                answered = store.query(message.topic, key, max_messages=len(having) + 1)
                assert [each.body for each in answered] == [
                    each.body for each in sorted(having, key=lambda each: each.physical_offset or 0)
                ]
            (got,) = store.get_message("g", message.topic, message.queue_id, message.queue_offset or 0, 1).messages
            assert got.body == message.body
            at = store.offset_by_time(message.topic, message.queue_id, got.store_timestamp)
            earlier = store.get_message("g", message.topic, message.queue_id, at, 1).messages[0]
            assert at <= (message.queue_offset or 0)
            assert earlier.store_timestamp == got.store_timestamp
