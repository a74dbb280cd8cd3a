"""What is open is of use to the process that opened it, until that closes it, where it was opened."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreClosed, StoreError, StoreForked, StoreNotOpen, StoreReplaced
from store.any_log import Queue, QueueRange, ReadSpec
from store.broker.hold import PullRequestHoldService, Wake
from store.broker.pull import PullMessageProcessor, PullRequest
from store.publish.log_end import LOOK_SECONDS
from store.publish.published_end import PublishedEnd
from store.publish.watch import Watch
from store.read.filters import EVERYTHING
from tests.waiting import until

ID = "7F00000100002A9F0000000000000000"
Verb = Callable[[Any], object]
STORE: dict[str, Verb] = {
    "append_table": lambda it: it.append_table("t", pa.table({"body": [b"x"]})),
    "begin": lambda it: it.begin().publish(),
    "archive": lambda it: it.archive(f"{it.path}-archive"),
    "arrivals": lambda it: it.arrivals(0, 0),
    "bounds": lambda it: it.bounds([Queue("t", 0)]),
    "can_have": lambda it: it.can_have("t", 0, 0, None),
    "clean": lambda it: it.clean(forced=True),
    "commit_offsets": lambda it: it.commit_offsets("g", "t", {0: 1}),
    "confirm_offset": lambda it: it.confirm_offset,
    "consumer_offset": lambda it: it.consumer_offset("g", "t", 0),
    "copies": lambda it: it.copies(np.array([0])),
    "create_topic": lambda it: it.create_topic("u", 1),
    "delete_topic": lambda it: it.delete_topic("none", lambda: None),
    "dispatched_offset": lambda it: it.dispatched_offset,
    "fingerprint": lambda it: it.fingerprint("t", 0, 0),
    "fingerprints": lambda it: it.fingerprints({Queue("t", 0): 0}),
    "flush": lambda it: it.flush(),
    "get_message": lambda it: it.get_message("g", "t", 0, 0),
    "max_offset": lambda it: it.max_offset("t", 0),
    "message_by_id": lambda it: it.message_by_id(ID),
    "min_offset": lambda it: it.min_offset("t", 0),
    "must_be_open": lambda it: it.must_be_open(),
    "offset_by_time": lambda it: it.offset_by_time("t", 0, 0),
    "offsets": lambda it: it.offsets("t", 0),
    "put": lambda it: it.put(Message("t", b"x")),
    "put_many": lambda it: it.put_many([]),
    "query": lambda it: it.query("t", "k"),
    "read": lambda it: it.read(QueueRange("t", 0, 0, 0), ReadSpec(("body",), EVERYTHING)),
    "read_own": lambda it: it.read_own(QueueRange("t", 0, 0, 0), ReadSpec(("body",), EVERYTHING)),
    "record_at": lambda it: it.record_at(0),
    "scan": lambda it: it.scan("t", 0, 0, 0),
    "sizes": lambda it: it.sizes("t", 0, 0, 0),
    "stored_between": lambda it: it.stored_between([], 0, 0),
    "tags_codes": lambda it: it.tags_codes("t", 0, 0, 0),
    "to_arrow": lambda it: it.to_arrow("t"),
    "topics": lambda it: it.topics(),
    "wait": lambda it: it.wait(0, 0.0),
    "watch": lambda it: it.watch(),
    "with_keys": lambda it: it.with_keys([], []),
}
WATCH: dict[str, Verb] = {
    "add": lambda it: it.add(it._ends[0]),
    "interrupt": lambda it: it.interrupt(),
    "must_be_open": lambda it: it.must_be_open(),
    "polls": lambda it: it.polls,
    "wait": lambda it: it.wait(0.0),
}
HOLD: dict[str, Verb] = {
    "cancel": lambda it: it.cancel(next(iter(it._all()), None)),
    "held": lambda it: it.held,
    "hold": lambda it: it.hold("t", 0, 0, 0.0, lambda *woken: None),
    "must_be_open": lambda it: it.must_be_open(),
}
PULL: dict[str, Verb] = {
    "answer": lambda it: it.answer(PullRequest("g", "t", 0, 0)),
    "pull": lambda it: it.pull(PullRequest("g", "t", 0, 9, suspend_timeout=0.0)),
}
NO_VERBS = {
    MessageStore: {"open", "close", "path", "config"},
    Watch: {"of", "close"},
    PullRequestHoldService: {"stop"},
    PullMessageProcessor: set(),
}
ALL = {MessageStore: STORE, Watch: WATCH, PullRequestHoldService: HOLD, PullMessageProcessor: PULL}


def outcome(verb: Verb, it: object) -> str:
    try:
        verb(it)
    except StoreError as error:
        return type(error).__name__
    return "done"


def in_a_child(work: Callable[[], object]) -> str:
    """What `work` answers in a forked process, as text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the parent's test says what it was
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text


@pytest.fixture(params=[False, True], ids=["writer", "reader"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path) as writer:
        writer.create_topic("t", 1)
        writer.put(Message("t", b"first", keys=("k",)))
    with MessageStore.open(tmp_path, read_only=request.param) as it:
        yield it


@pytest.mark.parametrize("kind", ALL)
def test_every_verb_is_named_here(store: MessageStore, kind: type) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        all_of_them = {type(it): it for it in (store, watch, service, PullMessageProcessor(store, service))}
        public = {name for name in dir(all_of_them[kind]) if not name.startswith("_")}
    assert public == ALL[kind].keys() | NO_VERBS[kind]


@pytest.mark.parametrize("verb", STORE)
def test_a_closed_store(store: MessageStore, verb: str) -> None:
    store.close()
    with pytest.raises(StoreClosed, match=rf"{store.path}: was closed; make a new one with MessageStore.open\('"):
        STORE[verb](store)
    store.close()


@pytest.mark.parametrize("verb", WATCH)
def test_a_closed_watch(store: MessageStore, verb: str) -> None:
    with store.watch() as watch:
        pass
    with pytest.raises(StoreClosed, match=rf"a watch of {store.path}: was closed; .* MessageStore.watch\(\)"):
        WATCH[verb](watch)
    watch.close()


@pytest.mark.parametrize("long_polling", [True, False])
def test_a_hold_service_whose_store_is_closed(store: MessageStore, long_polling: bool) -> None:
    woken: list[Wake] = []
    with PullRequestHoldService(store, long_polling=long_polling) as service:
        service.hold("t", 0, 1, 600.0, lambda request, why: woken.append(why))
        store.close()
        until(lambda: woken == [Wake.STOPPED])
        with pytest.raises(StoreClosed):
            HOLD["hold"](service)
        assert service.held == 0
        for verb in PULL.values():
            with pytest.raises(StoreClosed):
                verb(PullMessageProcessor(store, service))


def test_closing_ends_a_wait(store: MessageStore) -> None:
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
        watch.wait(600.0)  # interrupted, too


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


def test_batches_of_a_closed_store_come_to_their_end(store: MessageStore) -> None:
    batches = store.scan("t", 0, 0, 1)
    store.close()
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == [b"first"]


def test_a_closed_store_touches_no_descriptor_of_somebody_else(tmp_path: Path) -> None:
    """What is opened next gets the numbers of what was closed."""
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


def test_closing_while_others_append(tmp_path: Path) -> None:
    """Every put is acknowledged, and there; or an error of the tree. What is closed says that all is well."""
    for _ in range(10):
        with MessageStore.open(tmp_path) as store:
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

            with ThreadPoolExecutor(4) as others:
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


@pytest.mark.parametrize("hand_over", [pickle.dumps, copy.copy, copy.deepcopy])
def test_nothing_open_is_copied(store: MessageStore, hand_over: Callable[[object], object]) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        for it in (store, watch, service):
            with pytest.raises(StoreNotOpen, match=r"cannot be copied or pickled, .* hand its path on"):
                hand_over(it)


@pytest.mark.parametrize("busy", [False, True], ids=["at rest", "while another thread appends"])
def test_a_forked_child(store: MessageStore, busy: bool) -> None:
    with store.watch() as watch, PullRequestHoldService(store) as service:
        service.hold("t", 0, 1 << 40, 600.0, lambda *woken: None)
        kinds = (store, watch, service, PullMessageProcessor(store, service))
        stop = threading.Event()

        def append() -> None:
            with MessageStore.open(store.path) as other:
                while not stop.is_set():
                    other.put(Message("t", b"x"))

        def use_all() -> set[str]:
            return {outcome(verb, it) for it in kinds for verb in ALL[type(it)].values()}

        with ThreadPoolExecutor(1) as others:
            appending = others.submit(append) if busy else None
            for _ in range(5):
                assert in_a_child(use_all) == "{'StoreForked'}"
            stop.set()
        assert appending is None or appending.result() is None
        store.must_be_open()
        assert service.held == 1


def test_what_a_forked_child_is_told(store: MessageStore) -> None:
    def use() -> None:
        with pytest.raises(StoreForked) as raised:
            store.topics()
        raise raised.value

    told = in_a_child(use)
    assert f"{store.path}: opened in process {os.getpid()}, and this is process " in told
    assert "forked from it; make one for this process with MessageStore.open(" in told


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_forked_child_changes_nothing(tmp_path: Path, leave: str) -> None:
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


def test_a_child_opens_the_directory_anew(store: MessageStore) -> None:
    def put() -> int:
        with MessageStore.open(store.path) as own, own.watch() as watch, PullRequestHoldService(own) as service:
            watch.wait(0.0)
            service.hold("t", 0, 1 << 40, 0.0, lambda *woken: None)
            return own.put(Message("t", b"child's")).queue_offset

    assert in_a_child(put) == "1"
    assert store.max_offset("t", 0) == 2


def test_a_child_of_a_process_whose_threads_read(tmp_path: Path) -> None:
    """No lock that one of them holds at the fork is of use to the child."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"x", keys=("k",), properties={"a" * (1 + n % 9): "b"}) for n in range(5000)])
    stop = threading.Event()

    def scan() -> int:
        with MessageStore.open(tmp_path, read_only=True) as own:
            return sum(map(len, own.scan("t", 0, *own.offsets("t", 0), columns=("body", "keys", "properties"))))

    def scan_on() -> None:
        while not stop.is_set():
            scan()

    def scan_in_time() -> int:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        return scan()

    with ThreadPoolExecutor(2) as others:
        scanning = [others.submit(scan_on) for _ in range(2)]
        try:
            for _ in range(20):
                assert in_a_child(scan_in_time) == "5000", "no answer: it hung"
        finally:
            stop.set()
        assert [each.result() for each in scanning] == [None, None]


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
def test_a_directory_that_is_no_longer_there_is_not_written_to(tmp_path: Path, how: str) -> None:
    path = tmp_path / "mq"
    store = MessageStore.open(path)
    store.create_topic("t", 1)
    store.put(Message("t", b"x"))
    REPLACED[how](path)
    store._writer._flusher._stop.set()  # type: ignore[union-attr]  # or it may still flush what was put
    before = files(path)
    for verb in WRITING:
        with pytest.raises(StoreReplaced, match=rf"{path}(/lock)?: .* since the store was opened"):
            STORE[verb](store)
    with pytest.raises(StoreReplaced):
        store.close()
    with pytest.raises(StoreClosed):
        store.put(Message("t", b"x"))
    assert files(path) == before


@pytest.mark.parametrize("how", [how for how in REPLACED if how != "another lock"])
def test_a_directory_that_is_no_longer_there_is_not_a_store_without_news(tmp_path: Path, how: str) -> None:
    path = tmp_path / "mq"
    other_store(path)
    with MessageStore.open(path, read_only=True) as reader:
        seen = reader.confirm_offset
        REPLACED[how](path)

        def wait() -> None:
            while reader.wait(seen, 10 * LOOK_SECONDS) == seen:
                pass

        with pytest.raises(StoreReplaced, match=rf"{path}: .* since the store was opened"):
            wait()
