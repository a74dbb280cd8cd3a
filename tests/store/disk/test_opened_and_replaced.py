from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreClosed, StoreReplaced
from store.append.log_end import LOOK_SECONDS
from tests.store.disk.open_things import STORE

REPLACED: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "moved": lambda path: path.rename(path.with_name("elsewhere")),
    "replaced": lambda path: (path.rename(path.with_name("elsewhere")), other_store(path)),
    "another lock": lambda path: (path.joinpath("lock").unlink(), path.joinpath("lock").write_bytes(b"lock")),
}
WRITING = ("append_table", "clean", "commit_offsets", "create_topic", "flush", "put")


def other_store(path: Path) -> None:
    with MessageStore.open(path) as other:
        other.create_topic("t", 1)
        other.put(Message("t", b"other"))


def files(path: Path) -> dict[str, tuple[int, int]]:
    return {
        str(each): (each.stat().st_mtime_ns, each.stat().st_size) for each in path.parent.rglob("*") if each.is_file()
    }


@pytest.mark.parametrize("how", REPLACED)
def test_replaced_directory_is_not_written_to(tmp_path: Path, how: str) -> None:
    path = tmp_path / "mq"
    store = MessageStore.open(path)
    store.create_topic("t", 1)
    store.put(Message("t", b"x"))
    REPLACED[how](path)
    store._writer._flusher._stop.set()  # type: ignore[union-attr]  # otherwise it may still flush its appends
    before = files(path)
    for verb in WRITING:
        with pytest.raises(StoreReplaced, match=rf"{path}(/lock)?: .* while the store was open"):
            STORE[verb](store)
    with pytest.raises(StoreReplaced):
        store.close()
    with pytest.raises(StoreClosed):
        store.put(Message("t", b"x"))
    assert files(path) == before


@pytest.mark.parametrize("how", [how for how in REPLACED if how != "another lock"])
def test_reader_raises_if_its_directory_is_replaced(tmp_path: Path, how: str) -> None:
    path = tmp_path / "mq"
    other_store(path)
    with MessageStore.open(path, read_only=True) as reader:
        seen = reader.confirm_offset
        REPLACED[how](path)

        def wait() -> None:
            while reader.wait(seen, 10 * LOOK_SECONDS) == seen:
                pass

        with pytest.raises(StoreReplaced, match=rf"{path}: .* while the store was open"):
            wait()
