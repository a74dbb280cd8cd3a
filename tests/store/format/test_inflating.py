from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from store import GetStatus, Message, MessageStore, MessageTooLarge, StoreConfig, UnreadableBody
from store.format.inflating import decompress
from store.format.layout import RECORD_HEADER, field_offset, segment_name
from tests.store.golden_bytes import BODY, LZ4_BODY, ZLIB_BODY, ZSTD_BODY

ZSTD = 0x201
CODECS = {0x301: "zlib", 0x101: "lz4", ZSTD: "zstd"}


def compressed(body: bytes, sys_flag: int) -> bytes:
    codec = CODECS[sys_flag]
    return zlib.compress(body) if codec == "zlib" else pa.compress(body, codec=codec, asbytes=True)


def mark(store: MessageStore, physical_offset: int, sys_flag: int) -> None:
    """Set a record's flags as if its producer had compressed the body."""
    path = store.path / "commitlog" / segment_name(0)
    with path.open("r+b") as file:
        file.seek(physical_offset + field_offset(RECORD_HEADER, "sys_flag"))
        file.write(sys_flag.to_bytes(4, "big"))


def put(store: MessageStore, *bodies: bytes, sys_flag: int = ZSTD) -> None:
    messages = [
        Message("t", compressed(body, sys_flag), tags="AB"[n % 2], keys=f"k{n}") for n, body in enumerate(bodies)
    ]
    for result in store.put_many(messages):
        mark(store, result.physical_offset, sys_flag)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(maxDecompressedMessageSize=1000)) as it:
        it.create_topic("t", 1)
        yield it


@pytest.mark.parametrize(
    ("sys_flag", "body"), [(0x1, ZLIB_BODY), (0x301, ZLIB_BODY), (0x101, LZ4_BODY), (0x201, ZSTD_BODY)]
)
def test_bodies_compressed_by_rocketmq_are_inflated(sys_flag: int, body: bytes) -> None:
    assert decompress(body, sys_flag, 10_000) == BODY


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201])
def test_corrupt_body_is_an_error(sys_flag: int) -> None:
    with pytest.raises(UnreadableBody, match=r"^a \w+ body of 8 bytes does not decompress"):
        decompress(b"nonsense", sys_flag, 10_000)


def test_unknown_compression_is_an_error() -> None:
    with pytest.raises(UnreadableBody, match=r"^sysFlag 0x501 names a compression type"):
        decompress(b"nonsense", 0x501, 10_000)


@pytest.mark.parametrize("sys_flag", [0x1, 0x101, 0x201, 0x301, 0x501])
def test_empty_body_stays_empty(sys_flag: int) -> None:
    """RocketMQ's decoder ignores the flags of a message without a body."""
    assert decompress(b"", sys_flag, 0) == b""


@pytest.mark.parametrize("sys_flag", CODECS)
def test_body_of_exactly_the_limit_is_inflated(sys_flag: int) -> None:
    body = bytes(range(250)) * 4000
    assert decompress(compressed(body, sys_flag), sys_flag, len(body)) == body
    with pytest.raises(
        MessageTooLarge, match=r"^a \w+ body of [\d,]+ bytes decompresses to more than 999,999 bytes .max"
    ):
        decompress(compressed(body, sys_flag), sys_flag, len(body) - 1)


@pytest.mark.parametrize("sys_flag", CODECS)
def test_truncated_body_is_an_error(sys_flag: int) -> None:
    whole = compressed(bytes(range(256)) * 40, sys_flag)
    with pytest.raises(UnreadableBody, match="does not decompress"):
        decompress(whole[:-9], sys_flag, 1 << 20)


def test_scan_names_a_too_large_body_or_returns_null(store: MessageStore) -> None:
    put(store, b"a" * 1000, b"b" * 1001, b"c")
    with pytest.raises(
        MessageTooLarge, match=r"topic t, queue 0, offset 1 \(.*\): a zstd body of \d+ bytes decompresses to more"
    ):
        list(store.scan("t", 0, 0, 3))
    rows = pa.Table.from_batches(store.scan("t", 0, 0, 3, ("queueOffset", "body"), unreadable="null")).to_pylist()
    assert [row["body"] for row in rows] == [b"a" * 1000, None, b"c"]
    assert [row["queueOffset"] for row in rows] == [0, 1, 2]
    (batch,) = store.scan("t", 0, 0, 3, ("body",), max_body_bytes=1001)
    assert batch["body"][1].as_py() == b"b" * 1001


NONSENSE = [(b"nonsense", flag) for flag in (0x1, 0x101, ZSTD, 0x501)]  # 0x501 is no kind of compression


@pytest.mark.parametrize(("body", "sys_flag"), [*NONSENSE, (compressed(bytes(1001), ZSTD), ZSTD)])
def test_scan_reads_past_an_unreadable_body(store: MessageStore, body: bytes, sys_flag: int) -> None:
    for each, flag in ((b"a", 0), (body, sys_flag), (b"c", 0)):
        mark(store, store.put(Message("t", each)).physical_offset, flag)
    scan = partial(store.scan, "t", 0, 0, 3)
    batches = scan(("body",))
    assert next(batches)["body"].to_pylist() == [b"a"]
    with pytest.raises(UnreadableBody, match=r"topic t, queue 0, offset 1 .* unreadable=\"null\""):
        next(batches)
    for unreadable, read in (("null", None), ("raw", body)):
        table = pa.Table.from_batches(scan(("bodyError", "body", "sysFlag"), unreadable=unreadable))
        assert table["body"].to_pylist() == [b"a", read, b"c"]
        assert [bool(error) for error in table["bodyError"].to_pylist()] == [False, True, False]
        assert [flag & 1 for flag in table["sysFlag"].to_pylist()] == [0, int(unreadable == "raw"), 0]
    (errors,) = scan(("bodyError",), unreadable="null")
    assert errors["bodyError"].null_count == 2


def test_get_message_returns_messages_before_it(store: MessageStore) -> None:
    for each, flag in ((b"a", 0), (b"nonsense", 1), (b"c", 0)):
        mark(store, store.put(Message("t", each)).physical_offset, flag)
    found = store.get_message("g", "t", 0, 0)
    assert ([message.body for message in found.messages], found.next_begin_offset) == ([b"a"], 1)
    with pytest.raises(UnreadableBody, match="offset 1"):
        store.get_message("g", "t", 0, 1)
    assert [message.body for message in store.get_message("g", "t", 0, 2).messages] == [b"c"]


def test_unrequested_bodies_are_not_inflated(store: MessageStore) -> None:
    put(store, b"a", b"b" * 1001, b"c")
    assert pa.Table.from_batches(store.scan("t", 0, 0, 3, ("tags",)))["tags"].to_pylist() == ["A", "B", "A"]
    assert pa.Table.from_batches(store.scan("t", 0, 0, 3, ("body",), "A"))["body"].to_pylist() == [b"a", b"c"]
    assert [message.body for message in store.query("t", "k0")] == [b"a"]


def test_batch_limit_counts_inflated_bodies(store: MessageStore) -> None:
    bodies = [bytes([n]) * (100 + 30 * n) for n in range(30)]
    put(store, *bodies)
    batches = list(store.scan("t", 0, 0, 30, ("queueOffset", "tags", "body"), max_bytes=1000))
    table = pa.Table.from_batches(batches)
    assert table["body"].to_pylist() == bodies
    assert table["queueOffset"].to_pylist() == list(range(30))
    assert table["tags"].to_pylist() == ["A", "B"] * 15
    sizes = [sum(map(len, batch["body"].to_pylist())) for batch in batches]
    assert max(sizes) <= 1000
    assert all(size + following > 1000 for size, following in pairwise(sizes))


def test_get_message_stops_before_a_too_large_body(store: MessageStore) -> None:
    put(store, b"a" * 600, b"b" * 600, b"c" * 1001, b"d")
    found = store.get_message("g", "t", 0, 0)
    assert ([message.body for message in found.messages], found.next_begin_offset) == ([b"a" * 600], 1)
    found = store.get_message("g", "t", 0, 1)
    assert ([message.body for message in found.messages], found.next_begin_offset) == ([b"b" * 600], 2)
    with pytest.raises(MessageTooLarge, match="topic t, queue 0, offset 2 "):
        store.get_message("g", "t", 0, 2)
    found = store.get_message("g", "t", 0, 3)
    assert (found.status, [message.body for message in found.messages]) == (GetStatus.FOUND, [b"d"])


@pytest.mark.parametrize("sys_flag", CODECS)
def test_get_message_limit_counts_plain_and_inflated_bodies(store: MessageStore, sys_flag: int) -> None:
    plain = [b"p" * 800, b"q" * 800]
    store.put_many([Message("t", body) for body in plain])
    put(store, b"c" * 900, sys_flag=sys_flag)
    found = store.get_message("g", "t", 0, 0)
    assert ([message.body for message in found.messages], found.next_begin_offset) == (plain, 2)
    found = store.get_message("g", "t", 0, 2)
    assert ([message.body for message in found.messages], found.next_begin_offset) == ([b"c" * 900], 3)


def test_query_returns_a_too_large_body_raw(store: MessageStore, tmp_path: Path) -> None:
    put(store, b"a", b"b" * 1001)
    (found,) = store.scan("t", 0, 1, 2, ("physicalOffset",))
    (message,) = store.query("t", "k1")
    assert (message.body, message.sys_flag) == (compressed(b"b" * 1001, ZSTD), ZSTD)
    assert "decompresses to more than 1,000" in message.properties["BODY_ERROR"]
    (read,) = store.to_arrow("t", ("bodyError",), queues={0: (1, 2)}, unreadable="null").read_all().to_pylist()
    assert read["bodyError"] == message.properties["BODY_ERROR"]
    with pytest.raises(MessageTooLarge, match="topic t, queue 0, offset 1"):
        store.message_by_id(f"7F00000100002A9F{found['physicalOffset'][0].as_py():016X}")


FOUR_GIB = """
import resource, sys
import pyarrow as pa
from store import MessageStore, MessageTooLarge

store = MessageStore.open(sys.argv[1], read_only=True)
list(store.scan("t", 0, 0, 1))  # what needs to be loaded is
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (400 << 20),) * 2)
for read in (lambda: list(store.scan("t", 0, 1, 2)), lambda: store.get_message("g", "t", 0, 1)):
    try:
        read()
    except MessageTooLarge as error:
        print(error)
(batch,) = store.scan("t", 0, 1, 3, ("body",), unreadable="null")
print(batch["body"].to_pylist())
rows = 0
for batch in store.scan("t", 0, 3, 40, ("body",)):
    assert batch.nbytes <= 61 << 20
    rows += len(batch)
print(rows)
"""


def test_decompression_bomb_is_refused(tmp_path: Path) -> None:
    """The limit also holds for 37 small messages whose bodies together exceed the memory."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(256):
            stream.write(bytes(16 << 20))
    bomb = sink.getvalue().to_pybytes()
    assert len(bomb) < 1 << 20
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", 1)
        small, large = compressed(b"small", ZSTD), compressed(bytes(30 << 20), ZSTD)
        bodies = [small, bomb, small, *[large] * 37]
        for result in store.put_many([Message("t", body) for body in bodies]):
            mark(store, result.physical_offset, ZSTD)
    done = subprocess.run(
        [sys.executable, "-c", FOUR_GIB, tmp_path / "mq"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *errors, bodies_read, rows = done.stdout.splitlines()
    assert [error.partition(" (")[0] for error in errors] == ["topic t, queue 0, offset 1"] * 2
    assert bodies_read == "[None, b'small']"
    assert rows == "37"
