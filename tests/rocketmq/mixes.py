"""Message mixes: every kind of message that a RocketMQ broker writes, each kind alone and all together.

A mix is a function of a random generator and a number of messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.rocketmq.harness import Json, put

Make = Callable[[random.Random, int], Json]

BORN = 1_700_000_000_000
IPV4 = ("10.1.2.3", "127.0.0.1", "255.255.255.254")
IPV6 = ("2001:db8::1", "fe80:1:2:3:4:5:6:7", "::1")
TAGS = ("paid", "shipped", "lost", "grün", "polygenelubricants")
WORDS = ("order", "größe", "日本語", "emoji 🐟", "a" * 40, "x", "1 2", "=", '{"j":1}')
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def plain(rng: random.Random, number: int) -> Json:
    return put("plain", rng.randbytes(rng.randrange(1, 200)), rng.randrange(4), bornTimestamp=BORN + number)


def tagged(rng: random.Random, number: int) -> Json:
    properties = {"TAGS": rng.choice(TAGS)} if number % 5 else {}
    return {**plain(rng, number), "topic": "tagged", "properties": properties}


def keyed(rng: random.Random, number: int) -> Json:
    keys = " ".join(f"k{rng.randrange(2000)}" for _ in range(rng.randrange(4)))
    properties = {"TAGS": rng.choice(TAGS), "UNIQ_KEY": f"{number:032X}"}
    return {
        **plain(rng, number),
        "topic": "keyed",
        "properties": {**properties, **({"KEYS": keys} if keys else {})},
    }


def with_properties(rng: random.Random, number: int) -> Json:
    properties = {f"p{rng.randrange(30)}-{rng.choice(WORDS)}": rng.choice(WORDS) for _ in range(rng.randrange(12))}
    return {**plain(rng, number), "topic": "properties", "properties": properties}


def sized(rng: random.Random, number: int) -> Json:
    """Bodies from empty up to almost a segment, so that the blank at a segment's end has every width."""
    size = rng.choice((0, 0, 1, rng.randrange(100), rng.randrange(4000), rng.randrange(30_000)))
    return {**put("sized", rng.randbytes(size), rng.randrange(3)), "bornTimestamp": BORN + number}


def headers(rng: random.Random, number: int) -> Json:
    return {
        **plain(rng, number),
        "topic": "headers",
        "flag": rng.randrange(-(2**31), 2**31),
        "reconsumeTimes": rng.randrange(20),
        "bornTimestamp": rng.randrange(2**41),
        "bornPort": rng.randrange(65536),
    }


def hosts(rng: random.Random, number: int) -> Json:
    return {
        **keyed(rng, number),
        "topic": "hosts",
        "bornHost": rng.choice(IPV4 + IPV6),
        "bornPort": rng.randrange(65536),
        "storeHost": rng.choice(IPV4 + IPV6),
    }


def compressed(rng: random.Random, number: int, kind: str | None = None) -> Json:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(300))).encode()
    kind = kind or rng.choice(("ZLIB", "LZ4", "ZSTD"))
    return {**put("compressed", words, rng.randrange(2), compression=kind), "properties": {"TAGS": kind}}


def batch(rng: random.Random, number: int) -> Json:
    properties = {"TAGS": rng.choice(TAGS), "KEYS": f"b{number}"}
    parts = [
        put("batch", rng.randbytes(rng.randrange(100)), flag=part, properties=properties if part % 3 else {})
        for part in range(rng.randrange(1, 12))
    ]
    return put("batch", queue_id=rng.randrange(3), batch=parts, bornTimestamp=BORN + number)


def transactions(rng: random.Random, number: int) -> Json:
    return {
        **keyed(rng, number),
        "topic": "transactions",
        "transaction": rng.choice((0, PREPARED, COMMIT, ROLLBACK)),
        "preparedTransactionOffset": rng.randrange(2**40),
    }


def delayed(rng: random.Random, number: int) -> Json:
    """As a broker's hook writes them. No short levels: RocketMQ 4.9's store would deliver them during the test."""
    level = rng.randrange(9, 21)  # 18 is the longest, higher ones count as 18
    properties = {"TAGS": "T", "DELAY": str(level), "REAL_TOPIC": "orders", "REAL_QID": "1"}
    return {
        **plain(rng, number),
        "topic": SCHEDULE_TOPIC,
        "queueId": min(level, 18) - 1,
        "properties": properties,
    }


def long_topic(rng: random.Random, number: int) -> Json:
    group = "g" * rng.randrange(100, 240)
    return {**tagged(rng, number), "topic": f"%RETRY%{group}", "queueId": 0}


def many_topics(rng: random.Random, number: int) -> Json:
    return {**tagged(rng, number), "topic": f"topic-{rng.randrange(60)}", "queueId": rng.randrange(8)}


def multi_dispatch(rng: random.Random, number: int) -> Json:
    targets = ",".join(sorted({f"%LMQ%device-{rng.randrange(5)}" for _ in range(rng.randrange(1, 3))}))
    return {
        **tagged(rng, number),
        "topic": "lmq",
        "properties": {"INNER_MULTI_DISPATCH": targets, "TAGS": "m"},
    }


KINDS = (
    plain,
    tagged,
    keyed,
    with_properties,
    sized,
    headers,
    hosts,
    compressed,
    batch,
    transactions,
    delayed,
    many_topics,
)


IN_4_3 = tuple(kind for kind in KINDS if kind not in (hosts, compressed))


def any_of(kinds: Sequence[Make]) -> Make:
    return lambda rng, number: rng.choice(kinds)(rng, number)


SMALL_FILES = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}
INDEX = {"maxHashSlotNum": 1000, "maxIndexNum": 4000}


@dataclass(frozen=True)
class Mix:
    """The messages and settings of a store; `since` is the oldest RocketMQ line that can write it."""

    name: str
    make: Make
    config: dict[str, object] = field(default_factory=dict)
    exit: str = "clean"
    since: str = "4.3"
    make_in_4_3: Make | None = None

    @property
    def full_config(self) -> dict[str, object]:
        return {**SMALL_FILES, **INDEX, **self.config}

    def puts(self, count: int, line: str, seed: int = 1) -> list[Json]:
        """Return at least `count` messages that this RocketMQ line can write; each message of a batch counts."""
        make = (self.make_in_4_3 if line == "4.3" else None) or self.make
        return list(_until(count, partial(make, random.Random(f"{self.name} {seed}"))))


def _until(count: int, make: Callable[[int], Json]) -> Iterator[Json]:
    number = 0
    while number < count:
        one = make(number)
        number += len(one.get("batch", ())) or 1
        yield one


EVERYTHING = any_of(KINDS)
EVERYTHING_IN_4_3 = any_of(IN_4_3)
MIXES = (
    Mix("plain", plain),
    Mix("tagged", tagged),
    Mix("keyed", keyed),
    Mix("properties", with_properties),
    Mix("sized", sized),
    Mix("headers", headers),
    Mix("hosts", hosts, since="4.9"),
    Mix("zlib", partial(compressed, kind="ZLIB")),
    Mix("lz4", partial(compressed, kind="LZ4"), since="4.9"),
    Mix("zstd", partial(compressed, kind="ZSTD"), since="4.9"),
    Mix("batch", batch),
    Mix("transactions", transactions),
    Mix("delayed", delayed),
    Mix("long-topic", long_topic, since="5.1"),
    Mix("many-topics", many_topics),
    Mix("property-crc", with_properties, {"enabledAppendPropCRC": True}, since="5.3"),
    Mix("multi-dispatch", multi_dispatch, {"enableLmq": True, "enableMultiDispatch": True}, since="4.9"),
    Mix("queue-extension", tagged, {"enableConsumeQueueExt": True}),
    Mix(
        "large-files",
        EVERYTHING,
        {"mappedFileSizeCommitLog": 1 << 28, "mappedFileSizeConsumeQueue": 6_000_000},
        make_in_4_3=EVERYTHING_IN_4_3,
    ),
    Mix("everything", EVERYTHING, make_in_4_3=EVERYTHING_IN_4_3),
    Mix("halted", EVERYTHING, exit="halt", make_in_4_3=EVERYTHING_IN_4_3),
)
