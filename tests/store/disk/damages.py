from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store import StoreConfig
from store.format.layout import CQ_ENTRY, segment_name

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)
ENTRIES = 10


def folder(path: Path) -> None:
    shutil.rmtree(path / "consumequeue/t/1")


def moved_folder(path: Path, queue: str = "t/1") -> None:
    (path / "consumequeue" / queue).rename(path.parent / "elsewhere")


def topic(path: Path) -> None:
    shutil.rmtree(path / "consumequeue/t")


def all_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def queue_files(path: Path) -> None:
    for file in (path / "consumequeue/t/1").iterdir():
        file.unlink()


def first_file(path: Path) -> None:
    min((path / "consumequeue/t/1").iterdir()).unlink()


def last_file(path: Path) -> None:
    max((path / "consumequeue/t/1").iterdir()).unlink()


def zeroed(path: Path) -> None:
    max((path / "consumequeue/t/1").iterdir()).write_bytes(bytes(200))


def last_entry(path: Path) -> None:
    with max((path / "consumequeue/t/1").iterdir()).open("r+b") as file:
        file.seek(4 * CQ_ENTRY.itemsize)
        file.write(bytes(CQ_ENTRY.itemsize))


def index(path: Path) -> None:
    shutil.rmtree(path / "index")


def first_index_file(path: Path) -> None:
    min((path / "index").iterdir()).unlink()


def zeroed_index(path: Path) -> None:
    for file in (path / "index").iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def zeroed_index_file(path: Path) -> None:
    last = max((path / "index").iterdir())
    last.write_bytes(bytes(last.stat().st_size))


def ends(path: Path) -> None:
    (path / "queueends").unlink()


def damaged_ends(path: Path) -> None:
    (path / "queueends").write_bytes(b"[{")


def endless_ends(path: Path) -> None:
    (path / "queueends").write_text('{"version": 1, "logOffset": 1e999, "queues": [["t", 0, 1e999]], "index": {}}')


def deep_ends(path: Path) -> None:
    (path / "queueends").write_bytes(b"[" * 100_000)


def recorded_ends(path: Path) -> dict[str, Any]:
    return {name: said for name, said in json.loads((path / "queueends").read_text()).items() if name != "crc"}


def note_ends(path: Path, noted: dict[str, Any]) -> None:
    """Write `queueends` without a checksum, as an older version of the store did."""
    (path / "queueends").write_text(json.dumps(noted))


def damage_entry(path: Path, offset: int, data: bytes) -> None:
    file = path / "consumequeue/t/1" / segment_name(offset // ENTRIES * 200)
    with file.open("r+b") as opened:
        opened.seek(offset % ENTRIES * CQ_ENTRY.itemsize)
        opened.write(data)


def missing_in_the_middle(path: Path) -> None:
    (path / "consumequeue/t/1" / segment_name(200)).unlink()


def size_of_nothing(path: Path) -> None:
    damage_entry(path, 24, bytes(11) + b"\1")


def points_back(path: Path) -> None:
    damage_entry(path, 7, (path / "consumequeue/t/1" / segment_name(0)).read_bytes()[60:80])


Damage = Callable[[Path], None]
DAMAGES: list[Damage] = [
    *(folder, moved_folder, topic, all_queues, queue_files, first_file, last_file, zeroed, last_entry),
    *(index, first_index_file, ends, damaged_ends, endless_ends, deep_ends),
]
