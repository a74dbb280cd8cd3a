"""Check users' tables of messages and convert them to columns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, flat, numbers, pc
from store.format.columns import are_out_of_range
from store.format.entering import pairs, without_reserved
from store.format.layout import KEY_SEPARATOR
from store.format.message import check_key
from store.model.errors import InvalidColumns

_TABLE_COLUMNS = {
    "body": "binary or string, no nulls",
    "tags": "string",
    "keys": "list<string>, or string with blanks between the keys",
    "properties": "map<string, string>",
    "queueId": "integer",
    "shardingKey": "string",
    "flag": "integer",
    "bornTimestamp": "timestamp, or integer ms since the epoch",
    "delayLevel": "integer",
    "deliverAt": "timestamp, or integer ms since the epoch",
}
WAITING_COLUMNS = frozenset(("delayLevel", "deliverAt"))
_TIMES = frozenset(("bornTimestamp", "deliverAt"))
# Large enough for a small fixed cost per piece, small enough for the CPU caches.
_PIECE_BYTES = 16 << 20
_PIECE_ROWS = 24 << 10
_SMALLER = "append the rows in smaller tables, of less than 2 GiB each"

_begun: WeakSet[pa.RecordBatchReader] = WeakSet()  # partly read streams

ANY_QUEUE = -(1 << 63)  # in a column of queue ids: the store chooses
_ANY = arrow(np.array([ANY_QUEUE]))[0]
_ZERO = arrow(np.array([0]))[0]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """The checked columns of n messages of one topic, length n each; None for a missing column.

    queue_ids: ANY_QUEUE if the store chooses. born_timestamps: ms. delay_levels, deliver_at (ms): 0 for none.
    """

    body: pa.BinaryArray
    tags: pa.StringArray | None
    keys: pa.StringArray | None
    properties: pa.MapArray | None
    queue_ids: Ints | None
    sharding_keys: pa.StringArray | None
    flags: Ints | None
    born_timestamps: Ints | None
    delay_levels: Ints | None = None
    deliver_at: Ints | None = None

    def __len__(self) -> int:
        return len(self.body)

    @staticmethod
    def of(piece: pa.Table) -> MessageColumns:
        """Convert a piece of a table, see `split`.

        Raises `InvalidColumns`, and `MessageRefused` for a key with a blank.
        """
        columns = {name: _in_one(name, piece[name]) for name in piece.column_names}

        def text(name: str) -> pa.StringArray | None:
            return _text(name, columns[name]) if name in columns else None

        def integers(name: str) -> Ints | None:
            return _integers(name, columns[name]) if name in columns else None

        body = columns["body"]
        properties = columns.get("properties")
        return MessageColumns(
            body=_no_nulls("body", _cast("body", body, pa.binary(), _is_bytes)),
            tags=text("tags"),
            keys=_keys(columns["keys"]) if "keys" in columns else None,
            properties=None if properties is None else _maps(properties),
            queue_ids=_queue_ids(columns["queueId"]) if "queueId" in columns else None,
            sharding_keys=text("shardingKey"),
            flags=integers("flag"),
            born_timestamps=integers("bornTimestamp"),
            delay_levels=integers("delayLevel"),
            deliver_at=integers("deliverAt"),
        )


def as_table(messages: object) -> pa.Table | pa.RecordBatchReader:
    """Return messages as a table or stream, after checking names and types of columns.

    messages: a pyarrow Table, RecordBatch or RecordBatchReader, a pandas data frame, or any object with the Arrow
    stream interface. Raises `InvalidColumns`.
    """
    table = _as_table(messages)
    names = table.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidColumns(f"columns named twice: {', '.join(twice)}; keep one of each")
    unknown = [name for name in names if name not in _TABLE_COLUMNS]
    if unknown or "body" not in names:
        wrong = f"unknown columns {', '.join(unknown)}" if unknown else "no column 'body'"
        optional = ", ".join(f"{name} ({kind})" for name, kind in _TABLE_COLUMNS.items() if name != "body")
        raise InvalidColumns(f"{wrong}. Required: body ({_TABLE_COLUMNS['body']}). Optional: {optional}")
    MessageColumns.of(pa.Table.from_batches([], table.schema))
    return table


def _as_table(messages: object) -> pa.Table | pa.RecordBatchReader:
    if isinstance(messages, pa.Table | pa.RecordBatchReader):
        return messages
    pandas = sys.modules.get("pandas")  # else `messages` is no data frame
    try:
        if isinstance(messages, pa.RecordBatch):
            return pa.Table.from_batches([messages])
        if pandas is not None and isinstance(messages, pandas.DataFrame):
            return pa.Table.from_pandas(messages, preserve_index=False)
        if hasattr(messages, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(messages)
    except pa.ArrowException as error:
        raise InvalidColumns(
            f"this {type(messages).__name__} cannot be converted to an Arrow table: {error}"
        ) from error
    raise InvalidColumns(
        f"append_table takes a pyarrow Table or RecordBatch, a pandas DataFrame, or another Arrow stream, not "
        f"{type(messages).__name__}; pyarrow.Table.from_pylist makes a table of a list of dicts"
    )


def split(
    table: pa.Table | pa.RecordBatchReader, max_bytes: int = _PIECE_BYTES, max_rows: int = _PIECE_ROWS
) -> Iterator[pa.Table]:
    """Yield pieces of a table. max_bytes: of Arrow data, approximate.

    Raises `InvalidColumns` for a stream that was read before.
    """
    for part in _gathered(table, max_bytes, max_rows) if isinstance(table, pa.RecordBatchReader) else (table,):
        rows = max(1, min(max_rows, part.num_rows * max_bytes // max(1, part.nbytes)))
        yield from (part.slice(first, rows) for first in range(0, part.num_rows, rows))


def _gathered(stream: pa.RecordBatchReader, max_bytes: int, max_rows: int) -> Iterator[pa.Table]:
    if stream in _begun:
        raise InvalidColumns(
            "this stream of batches was already read, in part or to its end, perhaps by an append that failed. An "
            "append would miss the batches that were read. Give a new stream"
        )
    _begun.add(stream)
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in stream:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= max_rows or size >= max_bytes:
            yield pa.Table.from_batches(batches)
            batches, rows, size = [], 0, 0
    if batches:
        yield pa.Table.from_batches(batches)


def _in_one(name: str, column: pa.ChunkedArray) -> pa.Array:
    if not column.num_chunks:
        return pa.nulls(0, column.type)  # combine_chunks would import pandas
    try:
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    except pa.ArrowInvalid as error:  # rows of very different sizes
        raise InvalidColumns(f"column {name!r}: {error}; {_SMALLER}") from error


def _cast(name: str, column: pa.Array, kind: pa.DataType, fits: Callable[[pa.DataType], bool]) -> pa.Array:
    if column.type == kind:
        return column
    try:
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    except pa.ArrowInvalid as error:
        raise InvalidColumns(f"column {name!r}: {error}; {_SMALLER}") from error
    expected = _TABLE_COLUMNS[name]
    wrong = f"column {name!r} is {column.type}, expected {expected}"
    if not fits(column.type):  # Arrow would also cast between numbers and text
        raise InvalidColumns(wrong)
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidColumns(f"{wrong}: {error}") from error


_BYTES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_NUMBERS = (pa.types.is_integer, pa.types.is_floating)  # pandas keeps integers with gaps as floats


def _is_bytes(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _BYTES)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in (*_BYTES, pa.types.is_null))


def _is_text_map(kind: pa.DataType) -> bool:
    return kind == pa.null() or (isinstance(kind, pa.MapType) and _is_text(kind.key_type) and _is_text(kind.item_type))


def _is_number(kind: pa.DataType) -> bool:
    return any(is_one(kind) for is_one in _NUMBERS)


def _text(name: str, column: pa.Array) -> pa.StringArray:
    return _valid(name, _cast(name, column, pa.string(), _is_text))


def _keys(column: pa.Array) -> pa.StringArray:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return _text("keys", column)
    keys = _cast("keys", column, pa.list_(pa.string()), lambda kind: _is_text(kind.value_type))
    single = _valid("keys", keys.flatten())
    if single.null_count:
        raise InvalidColumns(
            "column 'keys': a list of keys contains a null. Remove the null, in Spark with array_compact"
        )
    if (flat(single)[0] == ord(KEY_SEPARATOR)).any():
        for key in single.to_pylist():
            check_key(key)
    return pc.binary_join(keys, constant(KEY_SEPARATOR))


def _maps(column: pa.Array) -> pa.MapArray:
    maps = _cast("properties", column, pa.map_(pa.string(), pa.string()), _is_text_map)
    for texts in pairs(maps):
        _valid("properties", texts)
    return without_reserved(maps)


def _queue_ids(column: pa.Array) -> Ints:
    named = _cast("queueId", column, pa.int64(), _is_number)
    values: Ints = numbers(pc.fill_null(named, _ANY))
    if np.count_nonzero(values == ANY_QUEUE) > named.null_count:
        raise InvalidColumns(
            f"column 'queueId': {ANY_QUEUE} is not a valid queue. Use null to let the store choose the queue"
        )
    return values


def _integers(name: str, column: pa.Array) -> Ints:
    kind = column.type
    if name in _TIMES and pa.types.is_timestamp(kind):
        is_exact = kind.unit in ("s", "ms")  # finer units lose a fraction
        try:
            column = column.cast(pa.timestamp("ms", kind.tz), safe=is_exact).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidColumns(f"column {name!r}: {error}") from error
    found = _cast(name, column, pa.int64(), _is_number)
    values: Ints = numbers(pc.fill_null(found, _ZERO) if name in WAITING_COLUMNS else _no_nulls(name, found))
    if name == "bornTimestamp":
        for ms in values[are_out_of_range(values)][:1].tolist():
            raise InvalidColumns(f"column 'bornTimestamp': {ms} ms since 1970 is not in the years 1 to 9999")
    return values


def _valid(name: str, texts: pa.StringArray) -> pa.StringArray:
    try:
        texts.validate(full=True)  # Arrow does not check by itself that texts are UTF-8
    except pa.ArrowInvalid as error:
        raise InvalidColumns(f"column {name!r}: {error}") from error
    return texts


def _no_nulls(name: str, column: pa.Array) -> pa.Array:
    if column.null_count:
        raise InvalidColumns(f"column {name!r} has {column.null_count} nulls in this table; fill or drop them first")
    return column
