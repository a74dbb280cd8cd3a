from __future__ import annotations

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreClosed, StoreError
from store.append.published_end import PublishedEnd
from store.broker.hold import PullRequestHoldService, Wake
from tests.store.disk.open_things import ALL, HOLD, NO_VERBS, STORE, WATCH, Verb, outcome
from tests.waiting import until


@pytest.mark.parametrize("kind", ALL)
def test_every_method_is_listed(store: MessageStore, kind: type) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        all_of_them = {type(it): it for it in (store, watch, service)}
        public = {name for name in dir(all_of_them[kind]) if not name.startswith("_")}
    assert public == ALL[kind].keys() | NO_VERBS[kind]


def test_methods_of_a_closed_store_raise(store: MessageStore) -> None:
    store.close()
    told = rf"{store.path}: was closed. Open a new one with MessageStore.open\('"
    assert [name for name, verb in STORE.items() if not refuses(verb, store, told)] == []
    store.close()


def test_methods_of_a_closed_watch_raise(store: MessageStore) -> None:
    with store.watch() as watch:
        pass
    told = rf"a watch of {store.path}: was closed. .* MessageStore.watch\(\)"
    assert [name for name, verb in WATCH.items() if not refuses(verb, watch, told)] == []
    watch.close()


def refuses(verb: Verb, closed: object, told: str) -> bool:
    try:
        verb(closed)
    except StoreClosed as error:
        return re.search(told, str(error)) is not None
    return False


def test_closing_the_store_stops_its_hold_service(store: MessageStore) -> None:
    woken: list[Wake] = []
    with PullRequestHoldService(store) as service:
        service.hold("t", 0, 1, 600.0, lambda request, why: woken.append(why))
        store.close()
        until(lambda: woken == [Wake.STOPPED])
        with pytest.raises(StoreClosed):
            HOLD["hold"](service)
        assert service.held == 0


def test_closing_the_store_ends_a_wait(store: MessageStore) -> None:
    seen, begun = store.confirm_offset, threading.Event()

    def wait() -> None:
        begun.set()
        store.wait(seen, 600.0)

    with ThreadPoolExecutor(1) as other, store.watch() as watch:
        waiting = other.submit(wait)
        begun.wait()
        store.close()
        with pytest.raises(StoreClosed):
            waiting.result(60)
        watch.wait(600.0)  # was interrupted, so returns at once


def test_closing_a_watch_ends_its_wait(store: MessageStore) -> None:
    watch, begun = store.watch(), threading.Event()

    def wait() -> None:
        while True:
            begun.set()
            watch.wait(600.0)

    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(wait)
        begun.wait()
        watch.close()
        with pytest.raises(StoreClosed):
            waiting.result(60)


def test_running_scan_of_a_closed_store_ends_normally(store: MessageStore) -> None:
    batches = store.scan("t", 0, 0, 1)
    store.close()
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == [b"first"]


def test_closed_store_uses_no_reused_descriptor(tmp_path: Path) -> None:
    """The kernel reuses the numbers of closed descriptors for the next files."""
    store = MessageStore.open(tmp_path / "mq")
    store.create_topic("t", 1)
    watch = store.watch()
    watch.close()
    store.close()
    strangers = [os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(20)]
    for verb in STORE.values():
        assert outcome(verb, store) == "StoreClosed"
    for verb in WATCH.values():
        assert outcome(verb, watch) == "StoreClosed"
    assert {os.fstat(fd).st_size for fd in strangers} == {0}
    for fd in strangers:
        os.close(fd)


def test_closing_during_appends_loses_nothing_acknowledged(tmp_path: Path) -> None:
    for _ in range(10):
        with ThreadPoolExecutor(4) as others, MessageStore.open(tmp_path) as store:
            store.create_topic("t", 1)
            before, done, begun = store.max_offset("t", 0), [0] * 4, threading.Barrier(5)

            def put(number: int, store: MessageStore = store, done: list[int] = done) -> str:
                message = Message("t", b"x")
                begun.wait()  # noqa: B023 - all of one round
                while True:
                    try:
                        store.put(message)
                    except StoreError as error:
                        return type(error).__name__
                    done[number] += 1

            ends = [others.submit(put, number) for number in range(4)]
            begun.wait()
            until(lambda done=done: min(done) > 2)  # type: ignore[misc]
            store.close()
            assert {end.result(60) for end in ends} == {"StoreClosed"}
        assert not (tmp_path / "abort").exists()
        published = PublishedEnd(tmp_path, writable=False)
        assert published.flushed_offset == published.confirm_offset
        with MessageStore.open(tmp_path, read_only=True) as reader:
            assert reader.max_offset("t", 0) == before + sum(done)
