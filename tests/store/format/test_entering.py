"""Accepted messages enter exactly the queues and index that recovery rebuilds. Others are refused."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from store import InvalidTopic, Message, MessageRefused, MessageStore, StoreConfig, StoreError
from store.format.entering import (
    MessagePlace,
    are_in_light_queue,
    in_own_queue,
    is_place_of,
    light_places,
    without_reserved,
)
from store.format.properties import PropertyColumns, decode_properties
from store.upkeep.verify import verify

SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 14, mappedFileSizeConsumeQueue=400, maxHashSlotNum=50, maxIndexNum=100)
TOPICS = ("t", "%RETRY%group", "%DLQ%group", "%LMQ%device", "rmq_sys_x", "T" * 127, "%RETRY%" + "g" * 200)
RESERVED_NAMES = (
    *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"),
    *("TIMER_DELIVER_MS", "TRAN_MSG", "INNER_NUM", "INNER_BASE", "POP_CK", "__CRC32#"),
)
REFUSED_TOPICS = (
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    *("SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"),
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)
# Property names that RocketMQ's clients and brokers use (MessageConst), and similar names.
NAMES = (
    *RESERVED_NAMES,
    *(
        "KEYS",
        "TAGS",
        "WAIT",
        "UNIQ_KEY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
    ),
    *(
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MSG_REGION",
        "TRACE_ON",
        "MAX_RECONSUME_TIMES",
        "DUP_INFO",
        "INSTANCE_ID",
    ),
    *("__transactionId__", "TRANSACTION_CHECK_TIMES", "CORRELATION_ID", "TTL", "CLUSTER", "__SHARDINGKEY", "REDIRECT"),
    *("1ST_POP_TIME", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "TRACE_CONTEXT", "__BORNHOST", "CONSUME_START_TIME"),
    *("delay", "DELAY ", "KEYS\0", "_", "%LMQ%"),
)
VALUES = (
    "1",
    "0",
    "-1",
    "true",
    "%LMQ%a",
    "%LMQ%a,%LMQ%b",
    "0,0",
    "../x",
    "a b",
    " a  b ",
    "SCHEDULE_TOPIC_XXXX",
    "1_2",
    "",
)
LOADED: tuple[dict[str, str], ...] = (
    {},
    {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "3"},
    {"DELAY": "1"},
    {"TRAN_MSG": "true", "PGROUP": "g"},
    {"__CRC32#": "0" * 10},
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.text(max_size=3)
WORD = st.sampled_from(VALUES) | TEXT


LIGHT_NAMES = st.none() | st.lists(st.sampled_from(["%LMQ%a", "%LMQ%b", ""]), max_size=3).map(",".join)
LIGHT_OFFSETS = st.none() | st.lists(st.sampled_from(["0", "1", "2", "", "x", "00"]), max_size=3).map(",".join)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    return Message(
        draw(st.sampled_from((*TOPICS, *REFUSED_TOPICS)) | st.sampled_from(("t", "SCHEDULE_TOPIC_XXXX"))),
        draw(st.binary(max_size=50)),
        tags=draw(st.none() | WORD),
        keys=draw(WORD | st.lists(WORD, max_size=3)),
        properties=draw(st.dictionaries(st.sampled_from(NAMES) | TEXT, WORD, max_size=3))
        | draw(st.sampled_from(LOADED)),
        queue_id=draw(st.integers(0, 1)),
        sharding_key=draw(st.none() | WORD),
        flag=draw(st.integers(-(1 << 31), (1 << 31) - 1)),
        born_timestamp=draw(st.integers(-(1 << 63), (1 << 63) - 1)),
    )


def table(message: Message) -> pa.Table:
    lists = [[message.keys] if isinstance(message.keys, str) else list(message.keys)]
    return pa.table(
        {
            "body": [message.body],
            "tags": pa.array([message.tags], pa.string()),
            "keys": pa.array(lists, pa.list_(pa.string())),
            "properties": pa.array([list(message.properties.items())], pa.map_(pa.string(), pa.string())),
            "queueId": [message.queue_id or 0],
            "shardingKey": pa.array([message.sharding_key], pa.string()),
            "flag": [message.flag],
            "bornTimestamp": [message.born_timestamp or 0],
        }
    )


def state(path: Path, keys: set[tuple[str, str]]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    queues = {}
    with MessageStore.open(path, read_only=True) as store:
        for topic, count in store.topics().items():
            for queue in range(count):
                bounds = store.offsets(topic, queue)
                places = [row for batch in store.scan(topic, queue, *bounds, ("physicalOffset",)) for row in batch[0]]
                sizes, codes = store.sizes(topic, queue, *bounds), store.tags_codes(topic, queue, *bounds)
                queues[topic, queue] = (bounds, [place.as_py() for place in places], sizes.tolist(), codes.tolist())
        found = {key: [message.physical_offset for message in store.query(*key, 1000)] for key in keys}
    return queues, found


# Arrow cannot build a table of lone surrogates.
REFUSALS: tuple[tuple[type[Exception], ...], ...] = ((MessageRefused,), (StoreError, UnicodeEncodeError))


@settings(max_examples=int(os.environ.get("ENTERING_EXAMPLES", "20")), deadline=None)
@given(st.lists(messages(), min_size=1, max_size=12), st.booleans())
def test_recovery_rebuilds_what_the_append_wrote(rows: list[Message], as_tables: bool) -> None:
    keys = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path, config=SMALL) as store:
            for topic in {row.topic for row in rows}:
                store.create_topic(topic, 2)
            for row in rows:
                before = store.confirm_offset
                try:
                    if as_tables:
                        store.append_table(row.topic, table(row))
                    else:
                        store.put(row)
                except REFUSALS[as_tables]:
                    assert store.confirm_offset == before
                    continue
                properties = row.all_properties()
                named = (*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY"))
                keys |= {(row.topic, key) for key in named if key}
        appended = state(path, keys)
        assert all(appended[1].values()), "each key finds its message"
        for name in ("consumequeue", "index"):
            shutil.rmtree(path / name, ignore_errors=True)
        (path / "watermark").unlink()
        MessageStore.open(path).close()
        assert state(path, keys) == appended
        assert not verify(path).findings


@pytest.mark.parametrize("name", RESERVED_NAMES)
def test_reserved_properties_are_dropped(tmp_path: Path, name: str) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        message = Message("t", b"", properties={"a": "b", name: "1", "c": "d"})
        store.put(message)
        store.append_table("t", table(message))
        read = store.get_message("g", "t", 0, 0).messages
    assert [each.properties for each in read] == [{"a": "b", "c": "d"}] * 2


def test_null_and_empty_properties_are_kept() -> None:
    maps = pa.array([[("TRAN_MSG", "true")], None, [], [("a", "b")]], pa.map_(pa.string(), pa.string()))
    assert without_reserved(maps).to_pylist() == [[], None, [], [("a", "b")]]
    assert without_reserved(maps[1:]).to_pylist() == [None, [], [("a", "b")]]


@pytest.mark.parametrize("topic", REFUSED_TOPICS)
def test_system_topics_are_refused(tmp_path: Path, topic: str) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic(topic, 1)
        for put in (
            lambda: store.put(Message(topic, b"")),
            lambda: store.append_table(topic, table(Message(topic, b""))),
        ):
            with pytest.raises(MessageRefused, match=f"topic {topic} belongs to RocketMQ"):
                put()


def test_folder_with_an_impossible_name_is_no_topic(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        (tmp_path / "consumequeue" / "gr\udcffn" / "0").mkdir(parents=True)
        for put in (store.put, lambda message: store.append_table(message.topic, table(message))):
            with pytest.raises(InvalidTopic):
                put(Message("gr\udcffn", b""))


@pytest.mark.parametrize(
    ("topic", "queues", "offsets", "places"),
    [
        ("t", "%LMQ%a", "5", [("%LMQ%a", 0, 5)]),
        ("t", "%LMQ%a,b", "5,6", [("%LMQ%a", 0, 5)]),
        ("t", "%LMQ%a,%LMQ%b", "5", []),
        ("t", "%LMQ%a,%LMQ%b,,", "5,6,", [("%LMQ%a", 0, 5), ("%LMQ%b", 0, 6)]),
        ("t", "%LMQ%" + "x" * 250, "5", [("%LMQ%" + "x" * 250, 0, 5)]),
        ("t", "%LMQ%" + "x" * 251 + ",%LMQ%" + "\u00e9" * 126 + ",%LMQ%a", "5,6,7", [("%LMQ%a", 0, 7)]),
        ("t", "%LMQ%a", "x", []),
        ("t", "%LMQ%a", "-1", []),
        ("t", "%LMQ%a", "9" * 30, []),
        ("t", "%LMQ%a", "9" * 5000, []),
        ("t", "%LMQ%a", "0" * 5000 + "7", [("%LMQ%a", 0, 7)]),
        ("t", "%LMQ%a", "9223372036854775807", [("%LMQ%a", 0, (1 << 63) - 1)]),
        ("t", ",..,.,a/b,a\0b", "1,1,1,1,1", []),
        ("%RETRY%g", "%LMQ%a", "5", []),
        ("rmq_sys_x", "%LMQ%a", "5", []),
        ("SCHEDULE_TOPIC_XXXX", "%LMQ%a", "5", []),
    ],
)
def test_light_queues_of_a_record(topic: str, queues: str, offsets: str, places: list[Any]) -> None:
    text = f"INNER_MULTI_DISPATCH\x01{queues}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02"
    properties = PropertyColumns(pa.array([b"", text.encode()], pa.binary()))
    found = light_places(properties, ["other", topic], pa.array([0, 1]).to_numpy())
    assert list(found) == [(1, MessagePlace(*place)) for place in places]
    rows = decode_properties(text.encode())
    for place in places:
        assert is_place_of(MessagePlace(*place), MessagePlace(topic, 7, 0), rows)
        assert not is_place_of(MessagePlace(place[0], place[1], 4), MessagePlace(topic, 7, 0), rows)


@given(st.lists(st.tuples(LIGHT_NAMES, LIGHT_OFFSETS, st.integers(0, 3)), min_size=1, max_size=6))
@example([("%LMQ%b,%LMQ%a", "5,00", 0), ("%LMQ%a", "\u0661", 1), ("%LMQ%a", "02", 1)])
def test_records_of_a_light_queue_by_columns(rows: list[tuple[str | None, str | None, int]]) -> None:
    names = ("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
    texts = [
        "".join(f"{name}\x01{value}\x02" for name, value in zip(names, row, strict=False) if value) for row in rows
    ]
    columns = PropertyColumns(pa.array([text.encode() for text in texts], pa.binary()))
    stands = are_in_light_queue(columns, "%LMQ%a", pa.array([row[2] for row in rows]).to_numpy())
    assert stands.tolist() == [
        is_place_of(MessagePlace("%LMQ%a", 0, row[2]), MessagePlace("t", 7, 9), decode_properties(text.encode()))
        for row, text in zip(rows, texts, strict=True)
    ]


def test_half_messages_and_inner_batches_are_in_no_queue() -> None:
    flags = np.array([0, 0x4, 0x8, 0xC, 0x80, 0x88, 0x1 | 0x10], np.int64)
    assert in_own_queue(flags).tolist() == [True, False, True, False, False, False, True]
