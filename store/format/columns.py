"""Decode columns of one queue's messages from commit log bytes to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import Bytes, arrow, constant, numbers, pc, texts
from store.format.entering import are_in_light_queue, are_wrong_codes
from store.format.layout import (
    IPV4_BYTES,
    IPV6_BYTES,
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_HEADER,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
)
from store.format.properties import PropertyColumns
from store.format.record_view import Ints, Mask, RecordView, crc_matches, moved_records
from store.format.records import gather_rows
from store.format.stored_message import host_text
from store.model.errors import CorruptRecord, InvalidColumns
from store.model.log_protocol import Queue

TIMESTAMP = pa.timestamp("us", "UTC")
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # years 1 to 9999, as in Spark and Python

COLUMNS: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "msgId": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "body": pa.binary(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "properties": pa.map_(pa.string(), pa.string()),
    "physicalOffset": pa.int64(),
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "brokerName": pa.string(),
    "bodyError": pa.string(),
}
"""All columns of messages: name to Arrow type."""

PROPERTY_COLUMNS = frozenset(("msgId", "tags", "keys", "properties"))  # in the properties, after the body

_COPY_OR_SKIP = "restore the segment from a copy, or read on from the next offset"
_EITHER = "run 'pyspark-mq verify': it says whether the queue or the log is damaged, and what to do"


def are_out_of_range(times: Ints) -> Mask:
    """Return a mask of times (ms) that a timestamp cannot have."""
    outside: Mask = (times < FIRST_MS) | (times > LAST_MS)
    return outside


DEFAULT_COLUMNS = tuple(COLUMNS)[:9]


def check_columns(columns: Sequence[str]) -> None:
    """Raise `InvalidColumns` for unknown and repeated names, and for none: a batch without columns has no number of
    rows.
    """
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise InvalidColumns(f"columns={columns!r:.40}: give a list of names. The columns are {', '.join(COLUMNS)}")
    unknown = [str(name) for name in columns if not isinstance(name, str) or name not in COLUMNS]
    if unknown or not columns:
        wrong = f"unknown columns {', '.join(unknown)}" if unknown else "no columns; name at least one"
        raise InvalidColumns(f"{wrong}. The columns are {', '.join(COLUMNS)}")
    if repeated := sorted({name for name in columns if columns.count(name) > 1}):
        raise InvalidColumns(f"columns named twice: {', '.join(repeated)}; name each once")


class BlockRows(NamedTuple):
    """The places of n messages, shape (n,) each. sizes: bytes."""

    queue_offsets: Ints
    physical_offsets: Ints
    sizes: Ints


class Block:
    """n messages of one queue in one range of a segment. All results have length n.

    Checks every record against its ConsumeQueue entry: length, magic, queue and both offsets.
    """

    def __init__(
        self,
        queue: Queue,
        view: Bytes,
        base: int | Ints,
        rows: BlockRows,
        *,
        with_bodies: bool = False,
        with_trailers: bool = True,
    ) -> None:
        """Check the records of `rows`, at least one, ascending. Raises `CorruptRecord`.

        base: log offset of `view`. If the view joins several pieces of the log, each record's log offset minus its
        position in the view.
        with_bodies: first copy the bodies, because sequential memory access is fastest.
        with_trailers: also read and check the parts after the bodies, for PROPERTY_COLUMNS and light queues.
        """
        self._queue = queue
        self._with_trailers = with_trailers
        self._rows = rows
        self._records = records = RecordView(view, rows.physical_offsets - base, rows.sizes)
        self._need(records.sound, _no_record)
        if with_bodies:
            _ = records.stored_bodies
        same = (records.field("physical_offset") == rows.physical_offsets) & self._in_queue()
        if with_trailers:
            same &= self._in_topic()
            self._need(records.sound, _no_record)
        self._need(same, partial(_another_record, self))

    def _in_queue(self) -> Mask:
        same: Mask = self._records.field("queue_id") == self._queue.queue_id
        same &= self._records.field("queue_offset") == self._rows.queue_offsets
        return same

    def _in_topic(self) -> Mask:
        return self._records.expect_topic(self._queue.topic.encode())

    def __len__(self) -> int:
        return len(self._rows.sizes)

    def column(self, name: str) -> pa.Array:
        """Decode one column, without decompressing bodies."""
        return _DECODERS[name](self)

    def check_crc(self) -> None:
        """Raise `CorruptRecord` for the first record that does not match its CRC."""
        whole = self._records.have_property_crc
        self._need(
            crc_matches(self._records),
            lambda row: f"its {'record' if whole[row] else 'body'} does not match its CRC; {_COPY_OR_SKIP}",
        )

    def check_tags_codes(self, codes: Ints) -> None:
        """Raise `CorruptRecord` for the first tag that does not match its entry's tags code."""
        wrong = are_wrong_codes(codes, self._tags, self._queue.topic)
        self._need(
            ~wrong,
            lambda row: f"the entry has tags code {codes[row]}, but the record has tag {self._tags[row]}; {_EITHER}",
        )

    def _need(self, holds: Mask, what: Callable[[int], str]) -> None:
        if not holds.all():
            row = int(np.argmin(holds))
            where, fault = self.where(row), what(row)
            raise CorruptRecord(f"{where}: {fault}")

    def where(self, row: int) -> str:
        return (
            f"topic {self._queue.topic}, queue {self._queue.queue_id}, offset {self._rows.queue_offsets[row]} "
            f"(commit log offset {self._rows.physical_offsets[row]})"
        )

    def field(self, name: str) -> Ints:
        return self._records.field(name)

    @property
    def encoded_properties(self) -> pa.BinaryArray:
        return self._records.properties

    def value(self, name: str) -> pa.StringArray:
        """Return a property's values, null if missing."""
        return self._properties.value(name)

    def moved(self, physical_offsets: Ints, *, with_delivery_marks: bool = True) -> Bytes:
        return moved_records(self._records, physical_offsets, with_delivery_marks=with_delivery_marks)

    @cached_property
    def _properties(self) -> PropertyColumns:
        return PropertyColumns(self._records.properties)

    @cached_property
    def _tags(self) -> pa.StringArray:
        return self._properties.value(PROPERTY_TAGS)


def _no_record(row: int) -> str:
    return f"the log has no valid record there, or one of another length than the queue entry says; {_COPY_OR_SKIP}"


def _another_record(block: Block, row: int) -> str:
    said = {name: block._records.field(name)[row] for name in ("queue_id", "queue_offset", "physical_offset")}
    topic = ""
    if block._with_trailers:
        at, length = block._records.topic_starts[row], block._records.topic_lengths[row]
        topic = f", topic {bytes(block._records.view[at : at + length]).decode('utf-8', 'replace')}"
    return (
        f"the log has another message there: its record says queue {said['queue_id']}, offset "
        f"{said['queue_offset']}, commit log offset {said['physical_offset']}{topic}; {_EITHER}"
    )


class LightBlock(Block):
    """n messages of a light queue: a topic `%LMQ%...` whose queue also lists records that were sent to other topics.

    As in RocketMQ's client, each message has the topic that it was sent to and its queue offset there, but the queue id
    of the light queue.
    """

    def _in_queue(self) -> Mask:
        return self._records.sound.copy()

    def _in_topic(self) -> Mask:
        records = self._records
        records.measure_topics()
        self._need(records.sound, _no_record)
        stands = are_in_light_queue(self._properties, self._queue.topic, self._rows.queue_offsets)
        names = records.slices(records.topic_starts, records.topic_lengths)
        own: Mask = numbers(pc.equal(names, constant(self._queue.topic.encode())))
        own &= super()._in_queue()
        return stands | own

    def column(self, name: str) -> pa.Array:
        if name == "topic":
            names = self._records.slices(self._records.topic_starts, self._records.topic_lengths).to_pylist()
            return texts([name.decode("utf-8", "replace") for name in names])
        return _ints(self, "queue_offset", pa.int64()) if name == "queueOffset" else super().column(name)


def _ints(block: Block, name: str, kind: pa.DataType) -> pa.Array:
    return arrow(block._records.field(name)).cast(kind)


def _timestamps(block: Block, name: str) -> pa.TimestampArray:
    times = block._records.field(name)
    outside = are_out_of_range(times)  # a producer may send any number, and no CRC covers it
    if not outside.any():
        return arrow(times * 1000).view(TIMESTAMP)
    return arrow(np.where(outside, 0, times) * 1000, nulls=outside).view(TIMESTAMP)


def _msg_ids(block: Block) -> pa.StringArray:
    unique = block._properties.value(PROPERTY_UNIQ_KEY)
    if unique.null_count == 0:
        return unique
    return unique.fill_null(_offset_msg_ids(block)) if unique.null_count < len(block) else _offset_msg_ids(block)


def _broker_names(block: Block) -> pa.StringArray:
    return (
        pa.repeat(constant(block._queue.broker), len(block))
        if block._queue.broker
        else pa.nulls(len(block), pa.string())
    )


def _offset_msg_ids(block: Block) -> pa.StringArray:
    def named(hosts: npt.NDArray[np.uint8], rows: Ints) -> pa.StringArray:
        offsets = block._rows.physical_offsets[rows].astype(">i8").view(np.uint8).reshape(len(rows), -1)
        same_host = hosts[:1] if (hosts == hosts[0]).all() else hosts
        return _hex(same_host, offsets)

    return _by_ip_version(block, "store", SYS_STORE_HOST_V6, named)


def _hosts(block: Block, which: str, bit: int) -> pa.StringArray:
    def named(hosts: npt.NDArray[np.uint8], rows: Ints) -> pa.StringArray:
        port = RECORD_HEADER[f"{which}_port"].itemsize
        if (hosts == hosts[0]).all():  # almost always, and 100 times faster
            distinct, index = hosts[:1], np.zeros(len(hosts), np.int64)
        else:
            distinct, index = np.unique(hosts, axis=0, return_inverse=True)
        names = [host_text(host[:-port].tobytes(), int(host[-port:].view(">i4")[0])) for host in distinct]
        return texts(names).take(arrow(index.ravel()))

    return _by_ip_version(block, which, bit, named)


def _by_ip_version(
    block: Block, which: str, bit: int, named: Callable[[npt.NDArray[np.uint8], Ints], pa.StringArray]
) -> pa.StringArray:
    """Join the results of `named` for IPv4 and IPv6 rows. named: takes ip and port of k rows, shape (k, 8 or 20)."""
    if block._records.hosts_are_v4:
        return named(block._records.v4_hosts(which), np.arange(len(block)))
    v6 = (block.field("sys_flag") & bit) != 0
    starts = block._records.field_positions(f"{which}_ip")
    port = RECORD_HEADER[f"{which}_port"].itemsize
    parts = [(np.flatnonzero(~v6), IPV4_BYTES), (np.flatnonzero(v6), IPV6_BYTES)]
    arrays = [
        named(gather_rows(block._records.view, starts[rows], width + port), rows) for rows, width in parts if len(rows)
    ]
    if len(arrays) == 1:
        return arrays[0]
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    return pa.concat_arrays(arrays).take(arrow(order))


def _trimmed(keys: pa.StringArray) -> pa.StringArray:
    """Remove the blank that RocketMQ's Go client adds after the last key."""
    has_blanks = pc.any(pc.ends_with(keys, KEY_SEPARATOR)).as_py()
    return pc.utf8_rtrim(keys, KEY_SEPARATOR) if has_blanks else keys


_DECODERS: dict[str, Callable[[Block], pa.Array]] = {
    "brokerName": _broker_names,
    "topic": lambda block: pa.repeat(constant(block._queue.topic), len(block)),
    "queueId": lambda block: arrow(np.full(len(block), block._queue.queue_id, np.int32)),
    "queueOffset": lambda block: arrow(block._rows.queue_offsets),
    "msgId": _msg_ids,
    "tags": lambda block: block._tags,
    "keys": lambda block: _trimmed(block._properties.value(PROPERTY_KEYS)),
    "body": lambda block: block._records.stored_bodies,
    "bornTimestamp": lambda block: _timestamps(block, "born_timestamp"),
    "storeTimestamp": lambda block: _timestamps(block, "store_timestamp"),
    "properties": lambda block: block._properties.maps(),
    "physicalOffset": lambda block: arrow(block._rows.physical_offsets),
    "bornHost": lambda block: _hosts(block, "born", SYS_BORN_HOST_V6),
    "storeHost": lambda block: _hosts(block, "store", SYS_STORE_HOST_V6),
    "reconsumeTimes": lambda block: _ints(block, "reconsume_times", pa.int32()),
    "flag": lambda block: _ints(block, "flag", pa.int32()),
    # RocketMQ's decoder clears this bit when it decompresses the body.
    "sysFlag": lambda block: arrow((block.field("sys_flag") & ~SYS_COMPRESSED).astype(np.int32)),
    "bodyCRC": lambda block: _ints(block, "body_crc", pa.int32()),
    "preparedTransactionOffset": lambda block: _ints(block, "prepared_transaction_offset", pa.int64()),
    "bodyError": lambda block: pa.nulls(len(block), pa.string()),
}
assert _DECODERS.keys() == COLUMNS.keys()

_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)
_HEX_OF_TWO = np.stack(np.broadcast_arrays(_HEX, _HEX[:, None]), axis=-1).copy().view(np.uint32).ravel()


def _hex(*parts: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return upper-case hex of byte matrices side by side.

    parts: contiguous and of even width. One with a single row counts for all rows.
    """
    count, width = max(map(len, parts)), sum(part.shape[1] for part in parts)
    text = np.empty((count, width // 2), np.uint32)
    first = 0
    for part in parts:
        twos = part.view(np.uint16)
        text[:, first : first + twos.shape[1]] = _HEX_OF_TWO[twos]
        first += twos.shape[1]
    offsets = np.arange(0, (count + 1) * 2 * width, 2 * width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
