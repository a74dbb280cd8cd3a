"""An open store works only in the process that opened it, not in a pickled copy or a forked child."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreForked, StoreNotOpen
from store.broker.hold import PullRequestHoldService
from store.disk.segment_file import OpenFiles
from store.format.layout import segment_name
from tests.children import in_a_child
from tests.store.disk.open_things import ALL, outcome


@pytest.mark.parametrize("write_broker_files", [pickle.dumps, copy.copy, copy.deepcopy])
def test_open_objects_cannot_be_pickled(store: MessageStore, write_broker_files: Callable[[object], object]) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        for it in (store, watch, service):
            with pytest.raises(StoreNotOpen, match=r"cannot be copied or pickled, .* Pass the path"):
                write_broker_files(it)


@pytest.mark.parametrize("busy", [False, True], ids=["at rest", "while another thread appends"])
def test_methods_raise_in_a_forked_child(store: MessageStore, busy: bool) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        service.hold("t", 0, 1 << 40, 600.0, lambda *woken: None)
        kinds = (store, watch, service)
        stop = threading.Event()

        def append() -> None:
            with MessageStore.open(store.path) as other:
                while not stop.is_set():
                    other.put(Message("t", b"x"))

        def use_all() -> set[str]:
            return {outcome(verb, it) for it in kinds for verb in ALL[type(it)].values()}

        with ThreadPoolExecutor(1) as others:
            appending = others.submit(append) if busy else None
            try:
                for _ in range(5):
                    assert in_a_child(use_all) == "{'StoreForked'}"
            finally:
                stop.set()
        assert appending is None or appending.result() is None
        store.must_be_open()
        assert service.held == 1


def test_error_in_a_forked_child_names_both_processes(store: MessageStore) -> None:
    def use() -> None:
        with pytest.raises(StoreForked) as raised:
            store.topics()
        raise raised.value

    told = in_a_child(use)
    assert f"{store.path}: opened in process {os.getpid()}, which forked this process " in told
    assert "Open another one in this process with MessageStore.open(" in told


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_forked_child_changes_nothing(tmp_path: Path, leave: str) -> None:
    store = MessageStore.open(tmp_path)
    store.create_topic("t", 1)
    store.put(Message("t", b"x"))

    def listing() -> list[tuple[str, int]]:
        files = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "checkpoint")
        return sorted((str(path), path.stat().st_mtime_ns) for path in files)

    def work() -> str:
        nonlocal store
        if leave == "close":
            with store:
                pass
            store.close()
        else:
            del store
        return "left"

    store.flush()
    before = listing()
    assert in_a_child(work) == "left"
    assert listing() == before
    assert (tmp_path / "abort").exists()
    store.put(Message("t", b"x"))
    store.close()
    assert not (tmp_path / "abort").exists()


def test_forked_child_opens_its_own_store(store: MessageStore) -> None:
    def put() -> int:
        with MessageStore.open(store.path) as own, own.watch() as watch, PullRequestHoldService(own) as service:
            watch.wait(0.0)
            service.hold("t", 0, 1 << 40, 0.0, lambda *woken: None)
            return own.put(Message("t", b"child's")).queue_offset

    assert in_a_child(put) == "1"
    assert store.max_offset("t", 0) == 2


def test_forked_child_shares_no_open_segment(tmp_path: Path) -> None:
    """fsync reports a failure once per open file: to the parent or the child. The parent's threads keep their
    segments."""
    (tmp_path / segment_name(0)).write_bytes(bytes(100))
    parents = OpenFiles(1).get(tmp_path, 0, 100, writable=False)
    assert OpenFiles(1).get(tmp_path, 0, 100, writable=False) is parents
    assert in_a_child(lambda: OpenFiles(1).get(tmp_path, 0, 100, writable=False) is parents) == "False"
