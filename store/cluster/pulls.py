"""Pipelined pulls of a range of one queue, and their records as Arrow batches.

Queue offsets have no gaps, so the next pull can be sent before the last one is answered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from store.cluster.address import REQUEST_SECONDS
from store.cluster.broker_refusals import explained, is_temporary
from store.cluster.brokers import Brokers
from store.cluster.route_table import Broker
from store.disk.config import StoreConfig
from store.disk.dispatch import split_records
from store.format.columns import Block, BlockRows
from store.format.layout import RECORD_HEADER, field_offset
from store.format.records import gather
from store.model.codes import RequestCode, ResponseCode
from store.model.errors import (
    BadFrame,
    BrokerMissing,
    CorruptRecord,
    OffsetLost,
    RemotingError,
    RequestRefused,
    UnknownTopic,
    Unreachable,
    UnsupportedStore,
    Untrusted,
)
from store.model.log_protocol import MissingBroker, QueueRange, ReadSpec
from store.read.scan import Decoding, batch_bounds
from store.remoting.client import Pipe
from store.remoting.command import Command
from store.remoting.headers import Pulled, PullMessage

SUSPEND, SUBSCRIPTION = 2, 4  # PullSysFlag
PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
_MOST_UNDER_WAY, _BYTES_UNDER_WAY = 256, 16 << 20
_FIRST_WIDTH, _MOST_WIDTH = 32, 1024  # brokers return 32 messages by default
_WIDEN_AFTER = 8  # full answers
_EVERYTHING, _FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = "*", 0.05, 1.0


class PulledRecords(NamedTuple):
    """Messages [start, end) of a queue. data: their records, concatenated."""

    start: int
    end: int
    data: bytes


def pull_header(group: str, wanted: QueueRange, seconds: float = 0.0) -> PullMessage:
    """Return the header of a pull. seconds: how long a broker may hold the pull if there is no message."""
    flags = SUBSCRIPTION | (SUSPEND if seconds > 0 else 0)
    begin, count = wanted.start, wanted.length
    queue_id, milliseconds = wanted.queue.queue_id, int(seconds * 1000)
    return PullMessage(group, wanted.queue.topic, queue_id, begin, count, flags, 0, milliseconds, 0, _EVERYTHING, "TAG")


def pull(brokers: Brokers, wanted: QueueRange) -> Iterator[PulledRecords]:
    """Yield the messages of a range, in order. The range must exist.

    A failed pull is repeated, also at the broker's slaves. Raises `OffsetLost`, `UnknownTopic`, `Unreachable`,
    `RequestRefused`.
    """
    given, attempt = wanted.start, 0
    missing: MissingBroker | None = None
    pause = _FIRST_PAUSE_SECONDS
    while given < wanted.end:
        broker = brokers.routes.readable([wanted.queue]).get(wanted.queue)
        if broker is None:
            raise UnknownTopic(f"{brokers.address}: {wanted.queue} was deleted: no broker has it")
        try:
            for records in _Pulls(brokers, broker.next(attempt), wanted._replace(start=given)):
                yield records
                given = records.end
                missing, pause = None, _FIRST_PAUSE_SECONDS
        except RemotingError as error:
            if not is_temporary(error):
                raise
            now = time.time()
            missing = missing or MissingBroker(broker.name, now, str(error))
            if now >= missing.since + brokers.address.broker_timeout:
                raise BrokerMissing.of(brokers.address, [missing]) from error
            time.sleep(pause)
            brokers.routes.refresh([wanted.queue.topic])
            pause, attempt = _PAUSE_SECONDS, attempt + 1


class _Pulls:
    """Iterates over the records of a range, in order, on one connection."""

    def __init__(self, brokers: Brokers, broker: Broker, wanted: QueueRange) -> None:
        self._group, self._credentials, self._tls = (
            brokers.address.consumer_group,
            brokers.address.credentials,
            brokers.tls,
        )
        self._address = broker.readable
        self._is_slave = broker.is_slave
        self._who = f"broker {broker.name} at {self._address}"
        self._wanted = wanted
        self._unasked = [wanted]  # a stack: the next range is the last item
        self._asked: dict[int, QueueRange] = {}  # by opaque
        self._answered: dict[int, PulledRecords] = {}  # by the offset of the first message
        self._width, self._full, self._opaque = _FIRST_WIDTH, 0, 0
        self._largest = 1  # size of the largest answer, in bytes

    def __iter__(self) -> Iterator[PulledRecords]:
        try:
            if not self._address:
                raise Unreachable("an unknown address: no name server lists one. Check that the broker runs")
            with closing(Pipe(self._address, REQUEST_SECONDS, self._tls)) as pipe:
                yield from self._through(pipe)
        except (Unreachable, Untrusted) as error:
            raise type(error)(f"{self._who.removesuffix(self._address)}{error}") from error

    def _through(self, pipe: Pipe) -> Iterator[PulledRecords]:
        given = self._wanted.start
        while given < self._wanted.end:
            pipe.send(self._next_pulls())
            for answer in pipe.receive():
                self._accept(answer)
            while records := self._answered.pop(given, None):
                given = records.end
                yield records

    def _next_pulls(self) -> list[Command]:
        """Return the next pulls to send. The missing parts of short answers come first."""
        commands = []
        most = min(_MOST_UNDER_WAY, _BYTES_UNDER_WAY // self._largest)
        while (self._unasked and len(self._asked) + len(self._answered) < most) or self._is_stuck():
            left = self._unasked.pop()
            now = left._replace(end=min(left.end, left.start + self._width))
            if now.end < left.end:
                self._unasked.append(left._replace(start=now.end))
            commands.append(self._command(now))
        return commands

    def _is_stuck(self) -> bool:
        """Return whether no pull is under way although ranges are left: all answers so far are for later ranges."""
        return bool(self._unasked) and not self._asked

    def _command(self, wanted: QueueRange) -> Command:
        self._opaque += 1
        self._asked[self._opaque] = wanted
        fields = pull_header(self._group, wanted).texts()
        if self._credentials is not None:
            fields = self._credentials.signed(fields)
        return Command(RequestCode.PULL_MESSAGE, fields, opaque=self._opaque)

    def _accept(self, answer: Command) -> None:
        wanted = self._asked.pop(answer.opaque, None)
        if wanted is None:
            raise BadFrame(
                f"{self._who}: it answered request {answer.opaque}, which was not sent. Check that it is RocketMQ"
            )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST and self._is_slave:
            raise Unreachable(
                f"{self._address}: this slave does not know topic {wanted.queue.topic}, and its master does not "
                "answer. Start the master"
            )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise UnknownTopic(f"{self._who}: topic {wanted.queue.topic} was deleted")
        if answer.code not in PULLED:
            raise explained(answer, self._who, RequestCode.PULL_MESSAGE, wanted.queue)
        header = Pulled.of(answer.fields)
        if answer.code != ResponseCode.SUCCESS:
            raise self._missing(wanted, header)
        end = min(header.next_begin_offset, wanted.end)
        if end <= wanted.start:
            raise BadFrame(
                f"{self._who}: {wanted.queue}, offset {wanted.start}: the broker sent messages, but its next offset "
                f"is {header.next_begin_offset}, which is not after that. See the broker's log"
            )
        self._largest = max(self._largest, len(answer.body))
        self._answered[wanted.start] = PulledRecords(wanted.start, end, bytes(answer.body))
        if end < wanted.end:
            self._unasked.append(wanted._replace(start=end))
            self._width, self._full = max(1, end - wanted.start), 0
        else:
            self._full += 1
            if self._full >= _WIDEN_AFTER:
                self._width, self._full = min(2 * self._width, _MOST_WIDTH), 0

    def _missing(self, wanted: QueueRange, header: Pulled) -> OffsetLost | RequestRefused:
        if header.min_offset > wanted.start and not self._is_slave:  # only the master knows whether they were deleted
            return OffsetLost(
                f"{self._who}: {wanted.queue}: offset {wanted.start} was deleted. Begin at offset {header.min_offset}, "
                "the oldest one"
            )
        return RequestRefused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"no messages of {wanted.queue} from {wanted.start} on, although the queue has offsets "
            f"{header.min_offset} to {header.max_offset}: the broker is a slave with less than its master, or must "
            "not be read (slaveReadEnable=false), or it is deleting files",
            f"{self._who}: ",
        )


_ONE_PIECE = 1 << 62
_PHYSICAL_OFFSET = field_offset(RECORD_HEADER, "physical_offset")
_MAX_BODY_BYTES = StoreConfig().maxDecompressedMessageSize


def decoded(pieces: Iterable[PulledRecords], wanted: QueueRange, spec: ReadSpec) -> Iterator[pa.RecordBatch]:
    """Yield the messages that match. Raises `CorruptRecord`, `UnreadableBody`, `UnsupportedStore`."""
    decoding = Decoding(spec, _MAX_BODY_BYTES)
    for records in _gathered(pieces, spec.max_rows, spec.max_bytes):
        positions, sizes, end = (np.array(each, np.int64) for each in split_records(records.data))
        if end != len(records.data) or len(sizes) != records.end - records.start:
            raise _no_such_records(wanted, records, len(sizes), int(end))
        view = np.frombuffer(records.data, np.uint8)
        physical = gather(view, positions + _PHYSICAL_OFFSET, ">i8").astype(np.int64)
        offsets = np.arange(records.start, records.end)
        for first, last in batch_bounds(positions, sizes, _ONE_PIECE, spec.max_rows, spec.max_bytes):
            rows = slice(first, last)
            block = Block(
                wanted.queue,
                view,
                physical[rows] - positions[rows],
                BlockRows(offsets[rows], physical[rows], sizes[rows]),
                with_bodies=decoding.with_bodies,
                with_trailers=decoding.with_trailers,
            )
            yield from decoding.batches(block)


def _gathered(pieces: Iterable[PulledRecords], max_rows: int, max_bytes: int) -> Iterator[PulledRecords]:
    waiting: list[PulledRecords] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece.data)
        if size >= max_bytes or piece.end - waiting[0].start >= max_rows:
            yield _together(waiting)
            waiting, size = [], 0
    if waiting:
        yield _together(waiting)


def _together(pieces: list[PulledRecords]) -> PulledRecords:
    return PulledRecords(pieces[0].start, pieces[-1].end, b"".join(piece.data for piece in pieces))


def _no_such_records(
    wanted: QueueRange, records: PulledRecords, count: int, end: int
) -> CorruptRecord | UnsupportedStore:
    where = f"{wanted.queue}, offsets {records.start} to {records.end}"
    if end != len(records.data):
        return CorruptRecord(
            f"{where}: the broker sent {len(records.data):,} bytes, in which no record begins at byte "
            f"{end:,}. See the broker's log"
        )
    return UnsupportedStore(
        f"{where}: the broker sent {count} records for these offsets. Batch topics (queue.type=BatchCQ) and "
        "compacted topics (cleanup.policy=COMPACTION) cannot be read. Read them with RocketMQ's own client"
    )
