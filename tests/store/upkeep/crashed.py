from __future__ import annotations

import random
from pathlib import Path

from store import Message, MessageStore, StoreConfig
from store.format.layout import PUBLISHED_END, field_offset
from tests.end_to_end.test_kill import bodies

SIZE = 4096
SMALL = StoreConfig(
    mappedFileSizeCommitLog=SIZE,
    mappedFileSizeConsumeQueue=200,
    flushIntervalCommitLog=3_600_000,
    maxHashSlotNum=50,
    maxIndexNum=60,
)

Crashed = tuple[Path, dict[tuple[int, int], bytes], int]


def another_boot(path: Path) -> None:
    with (path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, "boot_id"))
        file.write(b"an earlier boot".ljust(40, b"\0"))


def put(store: MessageStore, count: int, size: int = 300) -> None:
    first = len(bodies(store))
    store.put_many(
        [Message("t", f"{n}-".encode().ljust(size, b"."), queue_id=n % 3) for n in range(first, first + count)]
    )


def damage(path: Path, keep: int, chance: random.Random) -> None:
    """Damage a file's tail as a lost page cache may: blocks are lost, cut or stale, in any mixture."""
    content = bytearray(path.read_bytes())
    position = keep
    while position < len(content):
        length = chance.choice([1, 20, 100, 512, 4096])
        if chance.random() < 0.5:
            filler = chance.choice([0, 0, 0, 0xFF, 0x41])
            content[position : position + length] = bytes([filler]) * len(content[position : position + length])
        position += length
    path.write_bytes(content)


def records_before(content: bytes, end: int) -> list[int]:
    """Return the positions of the records that end before `end`."""
    starts, at = [], 0
    while (following := at + int.from_bytes(content[at : at + 4], "big")) <= end:
        starts, at = [*starts, at], following
    return starts
