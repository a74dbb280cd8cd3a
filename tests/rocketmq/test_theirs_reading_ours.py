from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreConfig
from store.disk.index import Index
from store.format.hashes import key_hashes
from tests import seen
from tests.rocketmq.golden import GOLDEN, config_of
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.mixes import BORN, INDEX, TAGS, WORDS

pytestmark = pytest.mark.rocketmq

Compare = Callable[[seen.Queues, seen.Queues], None]
SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 16, mappedFileSizeConsumeQueue=2000, **INDEX)
TOPICS = {"orders": 4, "payments": 1, "a-%_|topic": 3}


# RocketMQ uses these names elsewhere; they have no effect in a message of an ordinary topic.
HARMLESS = (
    *("WAIT", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "PGROUP", "DUP_INFO", "INSTANCE_ID", "TRACE_ON", "MSG_REGION"),
    *("TIMER_OUT_MS", "CLUSTER", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID", "__transactionId__", "1ST_POP_TIME"),
)


def made_message(rng: random.Random, topic: str) -> Message:
    return Message(
        topic,
        rng.randbytes(rng.choice((0, 1, rng.randrange(300), rng.randrange(20_000)))),
        tags=rng.choice((None, *TAGS)),
        keys=[f"k{rng.randrange(100)}" for _ in range(rng.randrange(3))],
        properties={f"p{n}-{rng.choice(WORDS)}": rng.choice(WORDS) for n in range(rng.randrange(5))}
        | {name: rng.choice(("1", "true", "x")) for name in rng.sample(HARMLESS, rng.randrange(3))},
        sharding_key=rng.choice((None, "customer")),
        flag=rng.randrange(-(2**31), 2**31),
        born_timestamp=BORN + rng.randrange(10**9),
    )


def made_table(rng: random.Random, rows: int) -> pa.Table:
    messages = [made_message(rng, "orders") for _ in range(rows)]
    return pa.table(
        {
            "body": pa.array([message.body for message in messages], pa.binary()),
            "tags": pa.array([message.tags for message in messages], pa.string()),
            "keys": pa.array([list(message.keys) for message in messages], pa.list_(pa.string())),
            "properties": pa.array(
                [list(message.properties.items()) for message in messages], pa.map_(pa.string(), pa.string())
            ),
            "flag": pa.array([message.flag for message in messages], pa.int32()),
            "bornTimestamp": pa.array([message.born_timestamp for message in messages], pa.int64()),
        }
    )


def by_put(store: MessageStore, rng: random.Random) -> None:
    for _ in range(300):
        store.put(made_message(rng, rng.choice(list(TOPICS))))


def by_put_many(store: MessageStore, rng: random.Random) -> None:
    for size in (1, 2, 3000, 7):
        store.put_many([made_message(rng, rng.choice(list(TOPICS))) for _ in range(size)])


def by_append_table(store: MessageStore, rng: random.Random) -> None:
    for topic in TOPICS:
        for size in (1, 1000):
            store.append_table(topic, made_table(rng, size))


def by_all_of_them(store: MessageStore, rng: random.Random) -> None:
    for way in (by_put, by_append_table, by_put_many, by_put):
        way(store, rng)


WAYS = (by_put, by_put_many, by_append_table, by_all_of_them)


def filled(directory: Path, way: Callable[[MessageStore, random.Random], None], config: StoreConfig) -> MessageStore:
    store = MessageStore.open(directory, config=config)
    for topic, queues in TOPICS.items():
        store.create_topic(topic, queues=queues)
    way(store, random.Random(way.__name__))
    return store


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("config", [SMALL, StoreConfig()], ids=["small files", "default files"])
def test_rocketmq_reads_a_closed_store(
    way: Callable[[MessageStore, random.Random], None],
    config: StoreConfig,
    rocketmq: RocketMQ,
    tmp_path: Path,
    compare: Compare,
) -> None:
    filled(tmp_path / "ours", way, config).close()
    names = [(topic, f"k{n}") for topic in TOPICS for n in range(0, 100, 3)]
    with MessageStore.open(tmp_path / "ours", read_only=True) as store:
        ours = seen.by_scan(store)
        ours_by_key = {name: [message.physical_offset for message in store.query(*name, 1000)] for name in names}
    assert len(ours) == sum(TOPICS.values())
    sizes = {"maxHashSlotNum": config.maxHashSlotNum, "maxIndexNum": config.maxIndexNum, "maxMsgsNumBatch": 1000}
    queries = [{"topic": topic, "key": key, "max": 1000} for topic, key in names]
    lines = rocketmq.read(tmp_path / "ours", sizes, queries)
    compare(ours, seen.by_rocketmq(lines))
    found = [line for line in lines if line["kind"] == "query"]
    # RocketMQ returns a message twice if it has a key twice
    assert ours_by_key == {(line["topic"], line["key"]): sorted(set(line["physicalOffsets"])) for line in found}
    assert any(ours_by_key.values())


def test_rocketmq_reads_a_store_of_a_killed_writer(rocketmq: RocketMQ, tmp_path: Path, compare: Compare) -> None:
    with filled(tmp_path / "ours", by_all_of_them, SMALL) as store:
        copy = shutil.copytree(tmp_path / "ours", tmp_path / "copy")
        compare(seen.by_scan(store), seen.by_rocketmq(rocketmq.read(copy, INDEX)))


@pytest.mark.parametrize("verify", [False, True])
def test_rocketmq_reads_records_with_property_crcs(
    rocketmq: RocketMQ, tmp_path: Path, compare: Compare, verify: bool
) -> None:
    """After a kill RocketMQ 5 can check them in its recovery; 4.9 reads them as a property."""
    with filled(tmp_path / "ours", by_all_of_them, replace(SMALL, enabledAppendPropCRC=True)) as store:
        copy = shutil.copytree(tmp_path / "ours", tmp_path / "copy")
        told = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": verify} if rocketmq.line != "4.9" else {}
        compare(seen.by_scan(store), seen.by_rocketmq(rocketmq.read(copy, {**INDEX, **told})))


def test_rocketmq_and_store_append_in_turns(rocketmq: RocketMQ, tmp_path: Path, compare: Compare) -> None:
    directory = tmp_path / "ours"
    filled(directory, by_put_many, SMALL).close()
    rocketmq.read(directory, INDEX, shutdown=True)
    filled(directory, by_put, SMALL).close()
    with MessageStore.open(directory, read_only=True) as store:
        ours = seen.by_scan(store)
    compare(ours, seen.by_rocketmq(rocketmq.read(directory, INDEX)))


def test_rocketmq_finds_keys_in_our_index(rocketmq: RocketMQ, tmp_path: Path) -> None:
    directory = shutil.copytree(GOLDEN / "index-5.3", tmp_path / "theirs")
    shutil.rmtree(directory / "index")
    config = config_of("index-5.3")
    with MessageStore.open(directory, read_only=True) as store:
        queues = seen.by_get_message(store)
    rows = sorted((row for queue in queues.values() for row in queue.rows), key=lambda row: row["physicalOffset"])
    hashes, owners = key_hashes(
        "keyed",
        pa.array([row["properties"]["UNIQ_KEY"] for row in rows]),
        pa.array([row["keys"] for row in rows], pa.string()),
    )
    offsets, times = (np.array([row[name] for row in rows]) for name in ("physicalOffset", "storeTimestamp"))
    index = Index(directory, int(str(config["maxHashSlotNum"])), int(str(config["maxIndexNum"])), writable=True)
    index.append(hashes, offsets[owners], times[owners])

    keys = sorted({key for row in rows for key in (row["properties"]["UNIQ_KEY"], *(row["keys"] or "").split())})
    answers = rocketmq.read(directory, config, queries=[{"topic": "keyed", "key": key} for key in keys])
    found = {line["key"]: line["physicalOffsets"] for line in answers if line["kind"] == "query"}
    assert found == {
        key: [
            row["physicalOffset"]
            for row in rows
            if key in (row["properties"]["UNIQ_KEY"], *(row["keys"] or "").split())
        ]
        for key in keys
    }
