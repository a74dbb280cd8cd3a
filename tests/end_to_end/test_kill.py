"""Kill writer processes at any moment: acknowledged messages stay, and the rest leaves no trace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.disk.commit_log import CommitLog
from store.disk.dispatch import walk
from tests.end_to_end.dying_writers import QUEUES, TOPIC, key_of

ROOT = Path(__file__).parents[2]
KILLS = 150


def bodies(store: MessageStore, topic: str = TOPIC) -> dict[tuple[int, int], bytes]:
    """Map (queue, offset) to body for all messages; `scan` raises if offsets are not dense."""
    found = {}
    for queue in range(store.topics()[topic]):
        minimum, maximum = store.offsets(topic, queue)
        assert minimum == 0
        for batch in store.scan(topic, queue, minimum, maximum, columns=("queueOffset", "body")):
            found.update({(queue, row["queueOffset"]): row["body"] for row in batch.to_pylist()})
        assert [offset for q, offset in found if q == queue] == list(range(maximum))
    return found


def acknowledged_in(acks: Path) -> dict[tuple[int, int], bytes]:
    acknowledged = {}
    for file in acks.iterdir():
        for line in file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # killed during this write, across a page boundary
            queue, offset, body = line.split(" ")
            assert (int(queue), int(offset)) not in acknowledged
            acknowledged[int(queue), int(offset)] = body.rstrip("\n").encode()
    return acknowledged


def check_log(path: Path, records: int) -> None:
    """Check the log from its first byte to its published end, and that nothing follows."""
    with MessageStore.open(path, read_only=True) as store:
        end, size = store.confirm_offset, store.config.mappedFileSizeCommitLog
    log = CommitLog(path, size, writable=False)
    chunks = list(walk(log, 0))
    assert sum(len(chunk.records) for chunk in chunks) == records
    assert (chunks[-1].end if chunks else 0) == end
    for start in log.segments.check():
        data = log.segments.read(start, size)
        assert not any(data[max(0, end - start) :]), "stale bytes follow the end"


def test_writers_killed_at_random_moments(tmp_path: Path) -> None:
    path, acks = tmp_path / "mq", tmp_path / "mq.acks"
    acks.mkdir()
    sizes = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2000}
    index = {"maxHashSlotNum": 1000, "maxIndexNum": 4000}
    with MessageStore.open(path, config=StoreConfig(**sizes, **index)) as store:
        store.create_topic(TOPIC, QUEUES)
    command = [sys.executable, "-m", "tests.end_to_end.dying_writers", "random", str(path), str(KILLS), "1"]
    subprocess.run(command, cwd=ROOT, check=True)

    acknowledged = acknowledged_in(acks)
    assert len(acknowledged) > KILLS / 3  # many die before their first message
    with MessageStore.open(path, read_only=True) as reader:
        found = bodies(reader)
        assert acknowledged.items() <= found.items()
        assert max(Counter(found.values()).values()) == 1
        unacknowledged = found.keys() - acknowledged.keys()
        assert len(unacknowledged) <= 60 * (KILLS + 3)  # at most one append a writer
        check_keys(reader, {place: (key_of(body.decode()),) for place, body in found.items()})

    assert (path / "abort").exists()
    with MessageStore.open(path) as store:
        result = store.put(Message(TOPIC, b"next", queue_id=0))
        after = bodies(store)
    assert after == {**found, (0, result.queue_offset): b"next"}
    assert not (path / "abort").exists()
    check_log(path, len(after))


def check_keys(store: MessageStore, keys: dict[tuple[int, int], tuple[str, ...]]) -> None:
    expected: dict[str, set[tuple[int, int]]] = {}
    for place, own in keys.items():
        for key in own:
            expected.setdefault(key, set()).add(place)
    for key, places in expected.items():
        found = store.query(TOPIC, key, max_messages=100)
        assert sorted((message.queue_id, message.queue_offset) for message in found) == sorted(places)


@pytest.fixture
def forker() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.end_to_end.dying_writers", "at"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


def dies(forker: subprocess.Popen[str], line: str) -> bool:
    """Return whether the process died at that call; False if it made fewer calls."""
    assert forker.stdin is not None
    assert forker.stdout is not None
    print(line, file=forker.stdin, flush=True)
    answer = forker.stdout.readline()
    if answer == "done\n":
        assert forker.stdout.readline() == "exit 0\n"
        return False
    assert answer == "exit 9\n"
    return True


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize(("verb", "mode"), [("append", "before"), ("append", "half"), ("publish", "half")])
def test_writer_killed_at_every_system_call(
    tmp_path: Path, forker: subprocess.Popen[str], verb: str, mode: str, flush: str
) -> None:
    """The append spans three segments, and two files in each of two queues."""
    base = tmp_path / "base"
    sizes = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}
    index = {"maxHashSlotNum": 50, "maxIndexNum": 30}
    config = StoreConfig(**sizes, **index, flushDiskType=flush)
    with MessageStore.open(base, config=config) as store:
        store.create_topic(TOPIC, 2)
        old_messages = [Message(TOPIC, f"old {n}".encode(), queue_id=n % 2, keys=(f"k{n}", "all")) for n in range(16)]
        store.put_many(old_messages)
        old = bodies(store)
    new = {(n % 2, 8 + n // 2): bytes([65 + n]) * 700 for n in range(12)}
    outcomes = []
    for call in range(1000):
        path = tmp_path / f"{call}"
        shutil.copytree(base, path)
        if not dies(forker, f"{verb} {path} {mode} {call}"):
            break
        with MessageStore.open(path, read_only=True) as reader:
            found = bodies(reader)
            assert found in (old, old | new)
            outcomes.append(found == old | new)
            with MessageStore.open(path) as store:
                offset = store.put(Message(TOPIC, b"next", queue_id=1, keys=("next", "all"))).queue_offset
                assert bodies(store) == bodies(reader) == {**found, (1, offset): b"next"}
                keys = {place: (f"k{place[0] + 2 * (place[1] % 8)}", "all") for place in found}
                check_keys(store, {**keys, (1, offset): ("next", "all")})
        assert not (path / "abort").exists()
        check_log(path, len(found) + 1)
    assert len(outcomes) > 10, "the append makes more system calls than that"
    assert outcomes == sorted(outcomes), "a published append stays"
    assert outcomes.count(True) == (0 if mode == "before" else 1), "publishing is the last call, and has no half"


@pytest.mark.parametrize("mode", ["before", "half"])
def test_recovery_killed_at_every_system_call(tmp_path: Path, forker: subprocess.Popen[str], mode: str) -> None:
    """The next recovery has the same result. The watermark and the queues are deleted, and the log's end is torn."""
    base = tmp_path / "base"
    config = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)
    with MessageStore.open(base, config=config) as store:
        store.create_topic(TOPIC, 2)
        store.put_many([Message(TOPIC, b"%02d" % n * 200, queue_id=n % 2) for n in range(30)])
        expected = {name: body for name, body in bodies(store).items() if body != b"29" * 200}
        torn_at = store.put(Message(TOPIC, b"torn", queue_id=0)).physical_offset - 100
    segment = base / "commitlog" / f"{torn_at // 4096 * 4096:020d}"
    content = bytearray(segment.read_bytes())
    content[torn_at % 4096] ^= 1
    segment.write_bytes(content)
    shutil.rmtree(base / "consumequeue")
    (base / "watermark").unlink()
    for call in range(200):
        path = tmp_path / f"{call}"
        shutil.copytree(base, path)
        if not dies(forker, f"open {path} {mode} {call}"):
            break
        with MessageStore.open(path) as store:
            assert bodies(store) == expected
            store.put(Message(TOPIC, b"next", queue_id=1))
        check_log(path, 30)
    assert call > 10, "recovery makes more system calls than that"
