"""Which index files a recovery keeps. Rebuilding a file means reading all its records again."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore
from store.disk.index import Index
from store.disk.index_file import IndexFile
from store.disk.queue_ends import QueueEnds
from store.format.layout import CHECKPOINT, INDEX_HEADER, INDEX_SLOT, segment_name
from store.upkeep.verify import verify
from tests.store.upkeep.crashed import SMALL, another_boot
from tests.waiting import another_millisecond

CONFIG = replace(SMALL, maxHashSlotNum=20, maxIndexNum=20)  # 19 keys a file
WITHOUT_KEYS = {*range(3), *range(22, 25), 40}  # before the first file, and between two
COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three index files with different store times, of records with tags, some without keys."""
    with MessageStore.open(tmp_path / "mq", config=CONFIG) as store:
        store.create_topic("t", 1)
        for first in range(0, COUNT, 20):
            another_millisecond()
            store.put_many(
                [
                    Message("t", b"%d" % n, tags="a", keys=() if n in WITHOUT_KEYS else (f"k{n}",))
                    for n in range(first, first + 20)
                ]
            )
    assert len(files(tmp_path / "mq")) == 3
    return tmp_path / "mq"


def files(path: Path) -> list[Path]:
    return sorted((path / "index").iterdir())


def end_timestamp(file: Path) -> int:
    return int(np.frombuffer(file.read_bytes(), INDEX_HEADER, 1)["end_timestamp"][0])


def lose_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")


def leave_as_a_broker(path: Path) -> None:
    (path / "watermark").unlink()


def kill_a_broker(path: Path) -> None:
    """The second of three files is not known to be flushed, and its slots are lost."""
    leave_as_a_broker(path)
    (path / "abort").touch()
    first, second, _ = files(path)
    with (path / "checkpoint").open("r+b") as file:
        checkpoint = np.frombuffer(file.read(CHECKPOINT.itemsize), CHECKPOINT).copy()
        checkpoint["index_timestamp"] = end_timestamp(first)
        file.seek(0)
        file.write(checkpoint.tobytes())
    assert end_timestamp(second) > end_timestamp(first)
    with second.open("r+b") as file:
        file.seek(INDEX_HEADER.itemsize)
        file.write(bytes(CONFIG.maxHashSlotNum * INDEX_SLOT.itemsize))


def lose_a_file(path: Path) -> None:
    leave_as_a_broker(path)
    files(path)[1].unlink()


@pytest.mark.parametrize(
    ("change", "kept"),
    [(lose_queues, 3), (leave_as_a_broker, 3), (another_boot, 3), (kill_a_broker, 1), (lose_a_file, 0)],
)
def test_intact_index_files_are_kept(path: Path, change: Callable[[Path], None], kept: int) -> None:
    before = [(file.name, file.stat().st_ino) for file in files(path)]
    held = [os.open(path / "index" / name, os.O_RDONLY) for name, _ in before]  # keeps inode numbers from being reused
    change(path)
    with MessageStore.open(path) as store:
        assert [(file.name, file.stat().st_ino) for file in files(path)][:kept] == before[:kept]
        assert not {file.stat().st_ino for file in files(path)[kept:]} & {number for _, number in before[kept:]}
        found = [[message.body for message in store.query("t", f"k{n}")] for n in range(COUNT)]
        assert found == [[] if n in WITHOUT_KEYS else [b"%d" % n] for n in range(COUNT)]
    for fd in held:
        os.close(fd)
    index = Index.of(path, CONFIG, writable=False)
    filed = sum(index.file(name).header()["next_entry"] - 1 for name in index.names())
    assert filed - (COUNT - len(WITHOUT_KEYS)) <= 1
    assert verify(path).findings == []


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("died_at", range(4))
def test_recovery_dies_while_it_rebuilds_the_index(
    path: Path, monkeypatch: pytest.MonkeyPatch, died_at: int, alone: bool
) -> None:
    """Keys that the file counts but no slot points to are indexed again: otherwise no lookup would find them."""
    lose_queues(path)
    if alone:
        shutil.rmtree(path / "index")
    write, headers = IndexFile.write_header, itertools.count()

    def die(file: IndexFile, header: dict[str, int]) -> None:
        write(file, header)
        if file.header()["next_entry"] > 1 and next(headers) == died_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IndexFile, "write_header", die)
        with suppress(KeyboardInterrupt):
            MessageStore.open(path)
    with MessageStore.open(path) as store:
        for n in {*range(COUNT)} - WITHOUT_KEYS:
            assert [message.body for message in store.query("t", f"k{n}")] == [b"%d" % n]
    assert verify(path).findings == []


def test_file_that_ends_with_the_logs_first_record_is_kept(path: Path) -> None:
    """Retention deleted the earlier records with old segments."""
    path = path.with_name("other")
    with MessageStore.open(path, config=replace(CONFIG, deleteFileBatchMax=2)) as store:
        store.create_topic("t", 1)
        for n in range(COUNT):
            store.put(Message("t", bytes(330), keys=f"k{n}"))
        first = store.clean(forced=True).min_offset
    index = Index.of(path, CONFIG, writable=False)
    assert index.spans(index.names())[0][1] == first
    before = {file.stat().st_ino for file in files(path)}
    lose_queues(path)
    with MessageStore.open(path) as store:
        assert all(len(store.query("t", f"k{n}")) == 1 for n in range(18, COUNT))
    assert {file.stat().st_ino for file in files(path)} == before


@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "without its name"])
def test_lost_newest_file_needs_no_walk_of_the_whole_log(path: Path, zeros: bool) -> None:
    """Its keys are indexed again, although the saved ends list the lost file."""
    (path / "abort").touch()
    newest = files(path)[-1]
    assert newest.name in QueueEnds.read(path).index  # type: ignore[union-attr]
    another_boot(path)
    newest.write_bytes(bytes(newest.stat().st_size)) if zeros else newest.unlink()
    log = path / "commitlog" / segment_name(0)
    content = bytearray(log.read_bytes())
    content[88] ^= 1
    log.write_bytes(content)
    with MessageStore.open(path) as store:
        log.write_bytes(bytes([*content[:88], content[88] ^ 1, *content[89:]]))
        assert all(len(store.query("t", f"k{n}")) == 1 for n in {*range(COUNT)} - WITHOUT_KEYS)
    assert verify(path).findings == []


def test_lost_earlier_file_is_rebuilt_after_a_machine_crash(path: Path) -> None:
    (path / "abort").touch()
    another_boot(path)
    files(path)[0].unlink()
    with MessageStore.open(path) as store:
        assert all(len(store.query("t", f"k{n}")) == 1 for n in {*range(COUNT)} - WITHOUT_KEYS)
    assert verify(path).findings == []
