"""Every read of a damaged directory returns the right messages or raises a StoreError.

Each directory has a deadline, and the process may map at most 1 GiB more than at the start.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from store import Message, MessageStore, StoreConfig, StoreError
from store.format.layout import COMMIT_LOG_DIR, CONF_FILE, PUBLISHED_END_FILE, TOPICS_FILE, segment_name
from store.upkeep.verify import repair, verify

DIRECTORIES = int(os.environ.get("FUZZ_DIRECTORIES", "50"))  # the long run is `FUZZ_DIRECTORIES=10000 pytest ...`
SMALL = StoreConfig(mappedFileSizeCommitLog=2048, mappedFileSizeConsumeQueue=100, maxHashSlotNum=20, maxIndexNum=50)

MEMORY = 1 << 30
DEADLINE_SECONDS = 60
MESSAGES = 60

Name = tuple[str, int, int]
Found = dict[Name, bytes]


def flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 20])):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def overwrite(file: Path, chance: random.Random) -> None:
    """Overwrite a random position with a suspicious big-endian integer, as a damaged length or offset."""
    content = bytearray(file.read_bytes())
    number = chance.choice([0, 1, 19, 20, 91, 2048, 4096, (1 << 31) - 1, 0xFFFFFFFF, 0x80000000]).to_bytes(4, "big")
    position = chance.randrange(max(1, len(content) - 4))
    content[position : position + 4] = number
    file.write_bytes(content)


def cut(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.choice([0, file.stat().st_size // 2, max(0, file.stat().st_size - 1)]))


def zero_a_part(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    begin, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    content[begin:end] = bytes(end - begin)
    file.write_bytes(content)


def swap(file: Path, chance: random.Random) -> None:
    other = chance.choice([entry for entry in sorted(file.parent.iterdir()) if entry.is_file()])
    mine, theirs = file.read_bytes(), other.read_bytes()
    file.write_bytes(theirs)
    other.write_bytes(mine)


def delete(file: Path, chance: random.Random) -> None:
    file.unlink()


def rename(file: Path, chance: random.Random) -> None:
    file.rename(file.with_name(chance.choice(["x", "0" * 20, f"{2048 * chance.randrange(9):020d}"])))


MUTATIONS: list[Callable[[Path, random.Random], None]] = [
    flip, flip, overwrite, overwrite, cut, zero_a_part, swap, delete, rename,
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def directory(name: str) -> Iterator[None]:
    def late(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError("a hang")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_SECONDS)
    try:
        yield
    except BaseException as error:
        error.add_note(f"directory {name}")
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    path = tmp_path_factory.mktemp("fuzz") / "mq"
    chance = random.Random(0)
    expected: Found = {}
    with MessageStore.open(path, config=SMALL) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, 2)
        for n in range(MESSAGES):
            topic, body = chance.choice("ab"), f"{n}".encode() * chance.randrange(40)
            placed = store.put(Message(topic, body, tags=chance.choice([None, "x", "y"]), keys=(f"k{n}",)))
            expected[topic, placed.queue_id, placed.queue_offset] = body
        assert dict(messages(store)) == expected == dict(by_key(store))
    return path, expected


def messages(store: MessageStore) -> Iterator[tuple[Name, bytes]]:
    """Yield every message that scan and get_message can read. A StoreError ends its queue."""
    for topic, queues in store.topics().items():
        for queue in range(queues):
            try:
                minimum, maximum = store.offsets(topic, queue)
                for batch in store.scan(topic, queue, minimum, maximum, columns=("queueOffset", "body", "properties")):
                    for row in batch.to_pylist():
                        yield (topic, queue, row["queueOffset"]), row["body"]
            except StoreError:
                pass
            try:
                offset = store.min_offset(topic, queue)
                while (result := store.get_message("g", topic, queue, offset)).messages:
                    for message in result.messages:
                        yield (topic, queue, message.queue_offset), message.body
                    assert result.next_begin_offset > offset
                    offset = result.next_begin_offset
            except StoreError:
                pass


def by_key(store: MessageStore) -> Iterator[tuple[Name, bytes]]:
    for topic in store.topics():
        for n in range(MESSAGES):
            try:
                for message in store.query(topic, f"k{n}"):
                    yield (topic, message.queue_id, message.queue_offset), message.body
            except StoreError:
                pass


def damage(path: Path, chance: random.Random) -> None:
    if chance.random() < 0.3:
        (path / "watermark").unlink()
    for _ in range(chance.choice([1, 1, 2, 5])):
        files = sorted(file for file in path.rglob("*") if file.is_file())
        chance.choice(MUTATIONS)(chance.choice(files), chance)


def look(path: Path, expected: Found, *, read_only: bool) -> list[set[Name]]:
    """Return the names of messages readable by position and by key, after checking their bodies."""
    seen: list[set[Name]] = []
    try:
        with MessageStore.open(path, read_only=read_only) as store:
            for found in (messages(store), by_key(store)):
                seen.append(set())
                for name, body in found:
                    assert expected.get(name) == body, name
                    seen[-1].add(name)
    except StoreError:
        pass
    return seen


def says_all(path: Path, source: Path) -> bool:
    """Return whether the log's first segment, the published end, the topics and the settings are intact."""
    first = path / COMMIT_LOG_DIR / segment_name(0)
    marks = (PUBLISHED_END_FILE, TOPICS_FILE, CONF_FILE)
    return first.exists() and all(
        (path / mark).exists() and (path / mark).read_bytes() == (source / mark).read_bytes() for mark in marks
    )


def is_right(path: Path) -> bool:
    try:
        return not verify(path).findings
    except StoreError:
        return False


def one_directory(source: Path, expected: Found, path: Path, part: int, number: int) -> None:
    with directory(f"{part}, {number}"):
        shutil.copytree(source, path)
        damage(path, random.Random(part * 1_000_000 + number))
        must_be_whole = says_all(path, source) and is_right(path)
        seen = look(path, expected, read_only=True)
        assert not must_be_whole or seen == [set(expected)] * 2
        look(path, expected, read_only=False)
        try:
            repair(path)
        except StoreError:
            return
        assert [finding for finding in verify(path).findings if finding.remedy == "verify --repair"] == []


@pytest.mark.parametrize("part", range(10))
def test_damaged_directories_are_read_or_refused(original: tuple[Path, Found], tmp_path: Path, part: int) -> None:
    for number in range(DIRECTORIES // 10):
        one_directory(*original, tmp_path / f"{number}", part, number)
        shutil.rmtree(tmp_path / f"{number}")
