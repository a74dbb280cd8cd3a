"""Damaged directories: what is answered is right, or an error of ours; whatever was done to the files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, StoreError

DIRECTORIES = int(os.environ.get("FUZZ_DIRECTORIES", "100"))  # the long run is `FUZZ_DIRECTORIES=10000 pytest ...`
SMALL = StoreConfig(mappedFileSizeCommitLog=2048, mappedFileSizeConsumeQueue=100, maxHashSlotNum=20, maxIndexNum=50)

Found = dict[tuple[str, int, int], bytes]


def flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 20])):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def overwrite(file: Path, chance: random.Random) -> None:
    """Lengths and offsets are big-endian integers: put an odd one somewhere."""
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


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    path = tmp_path_factory.mktemp("fuzz") / "mq"
    chance = random.Random(0)
    with MessageStore.open(path, config=SMALL) as store:
        for topic in ("a", "b"):
            store.create_topic(topic, 2)
        for n in range(60):
            tags = chance.choice([None, "x", "y"])
            store.put(Message(chance.choice("ab"), f"{n}".encode() * chance.randrange(40), tags=tags, keys=(f"k{n}",)))
        found = dict(messages(store))
    assert len(found) == 60
    return path, found


def messages(store: MessageStore) -> Iterator[tuple[tuple[str, int, int], bytes]]:
    """Every message that can be read by scan or by get_message; errors of ours end one queue."""
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


@pytest.mark.parametrize("part", range(10))
def test_mutated_directories(original: tuple[Path, Found], tmp_path: Path, part: int) -> None:
    source, expected = original
    for number in range(DIRECTORIES // 10):
        chance = random.Random(part * 1_000_000 + number)
        path = tmp_path / f"{number}"
        shutil.copytree(source, path)
        if chance.random() < 0.3:
            (path / "watermark").unlink()
        for _ in range(chance.choice([1, 1, 2, 5])):
            files = sorted(file for file in path.rglob("*") if file.is_file())
            chance.choice(MUTATIONS)(chance.choice(files), chance)
        for read_only in (True, False):
            try:
                with MessageStore.open(path, read_only=read_only) as store:
                    for name, body in messages(store):
                        assert expected.get(name) == body, f"{name} of directory {part}, {number}"
            except StoreError:
                continue
        shutil.rmtree(path)
