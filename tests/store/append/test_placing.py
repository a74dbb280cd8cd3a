from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from store import Message, MessageRefused
from store.append.placing import AppendResult, NextOffsets, place_few, place_many
from store.disk.commit_log import CommitLog
from store.disk.consume_queues import ConsumeQueues
from store.format.message import encode_messages
from store.format.records import EncodedRecord, Encoding, as_columns, set_field
from tests.store.format.test_message import messages

NOW = 1_700_000_000_000
HOST = bytes([127, 0, 0, 1]), 10911


def next_offsets() -> NextOffsets:
    found = NextOffsets(ConsumeQueues(Path(), 200, writable=False), 0, 0, {})
    found.update({("orders", queue_id): 5 * queue_id for queue_id in range(0, 8, 2)})
    return found


def outcome(place: Callable[..., Any], records: Any, begin: int, segment: int) -> Any:
    offsets = next_offsets()
    try:
        placed, stretches = place(CommitLog(Path("unused"), segment, writable=False), records, begin, offsets, NOW)
    except MessageRefused as refusal:
        return str(refusal)
    log = bytearray(placed.end - begin)
    for at, data in stretches:
        log[at - begin : at - begin + len(data)] = data
    keys = [list(map(int, column)) for column in placed.keys]
    return bytes(log), placed.head, placed.end, placed.entries, keys, dict(offsets), placed.result


@settings(deadline=None)
@given(
    st.lists(messages(), min_size=1, max_size=5),
    st.integers(0, 5000),
    st.sampled_from([512, 4096, 1 << 20]),
    st.builds(
        Encoding,
        st.just(HOST),
        st.just(1 << 20),
        with_keys=st.booleans(),
        with_tags=st.booleans(),
        with_crc=st.booleans(),
    ),
)
def test_few_records_are_placed_like_many(rows: list[Message], begin: int, segment: int, encoding: Encoding) -> None:
    def records() -> list[EncodedRecord]:
        made = encode_messages(rows, [row.queue_id or 0 for row in rows], encoding, 5)
        set_field(made, "reconsume_times", 3)
        set_field(made, "born_ip", [[10, 0, 0, row] for row in range(len(rows))])
        return made

    few = outcome(place_few, records(), begin, segment)
    many = outcome(place_many, as_columns(records()), begin, segment)
    assert few[:-1] == many[:-1]
    if isinstance(many[-1], AppendResult):
        assert few[-1] == many[-1].each()
        assert AppendResult.of(few[-1]).each() == few[-1]


def test_fields_are_set_in_columns() -> None:
    encoding = Encoding(HOST, 1 << 20)
    rows = [Message("t", b"a"), Message("t", b"bc")]
    few = encode_messages(rows, [0, 1], encoding, 5)
    many = as_columns(encode_messages(rows, [0, 1], encoding, 5))
    for records in (few, many):
        set_field(records, "born_port", [7, 8])
        set_field(records, "born_ip", [[10, 0, 0, 1], [10, 0, 0, 2]])
        set_field(records, "sys_flag", 1)
    assert as_columns(few).encoded(0, 2) == many.encoded(0, 2)
