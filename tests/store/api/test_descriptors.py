from __future__ import annotations

import gc
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, StoreUnavailable
from store.api import writer
from tests.descriptors import allowed
from tests.waiting import until

SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=20 * 20,
    maxHashSlotNum=10,
    maxIndexNum=20,
    flushIntervalCommitLog=10,
)


def deleted(root: Path) -> list[str]:
    """Return the deleted files of `root` that this process still has open or mapped."""
    gc.collect()
    open_files = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            open_files.append(os.readlink(link))
    mapped = [line.partition("/")[2] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line]
    return [
        name for name in (*open_files, *(f"/{name}" for name in mapped)) if f"{root}/" in name and "(deleted)" in name
    ]


def put(store: MessageStore, topic: str, count: int) -> None:
    store.put_many([Message(topic, bytes(200), queue_id=0, keys=f"k{number}") for number in range(count)])


def test_idle_writer_closes_deleted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_DELETED_SECONDS", 0.0)
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        for topic in ("idle", "busy"):
            store.create_topic(topic, 1)
        put(store, "idle", 100)
        assert len(store.query("idle", "k3")) == 1
        with MessageStore.open(tmp_path / "mq") as other:
            put(other, "busy", 100)
            assert other.clean(forced=True).queues
        until(lambda: not deleted(tmp_path))
        with MessageStore.open(tmp_path / "mq") as other:
            other.delete_topic("idle")
        until(lambda: not deleted(tmp_path))
        put(store, "busy", 1)


def test_reader_closes_deleted_queue_files(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path / "mq", config=SMALL) as store,
        MessageStore.open(tmp_path / "mq", read_only=True) as reader,
    ):
        for topic in ("idle", "busy"):
            store.create_topic(topic, 1)
        put(store, "idle", 100)
        assert reader.max_offset("idle", 0) == len(reader.sizes("idle", 0, 0, 100)) == 100
        put(store, "busy", 100)
        assert store.clean(forced=True).queues
        reader.offsets("busy", 0)
        assert not [name for name in deleted(tmp_path) if "consumequeue" in name]


def test_few_descriptors_suffice_for_many_queues(tmp_path: Path) -> None:
    with allowed(256), MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 300)
        for number in (*range(300), *range(300)):
            store.put(Message("t", b"x", queue_id=number))
        store.flush()
        assert store.max_offset("t", 299) == 2


def test_append_without_a_descriptor_frees_some_for_the_next(tmp_path: Path) -> None:
    config = replace(SMALL, flushIntervalCommitLog=1_000_000)  # avoids background errors, whose tracebacks keep files
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("t", 30)
        for number in (*range(20), *range(20)):  # the second put opens the files
            store.put(Message("t", b"x", queue_id=number))
        highest = max(map(int, os.listdir("/proc/self/fd")))
        with ExitStack() as others, allowed(highest + 1):
            with suppress(OSError):
                while True:
                    others.enter_context(open(os.devnull))
            with pytest.raises(StoreUnavailable, match="Too many open files"):
                store.put(Message("t", b"x", queue_id=20))
            failed, left = 0, [*range(20, 30), *range(20)]
            while left:
                try:
                    store.put(Message("t", b"x", queue_id=left[-1]))
                    left.pop()
                except StoreUnavailable:
                    failed += 1
                    assert failed < 10
            store.flush()
