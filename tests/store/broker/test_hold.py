from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from store import (
    Message,
    MessageStore,
    StoreConfig,
    StoreLocked,
    StoreReplaced,
    StoreUnavailable,
    TagFilter,
    UnknownTopic,
    message_filter,
)
from store.append import log_end
from store.append.published_end import PublishedEnd, checked
from store.broker import hold
from store.broker.hold import HeldRequest, PullRequestHoldService, Wake
from store.disk.consume_queue import ConsumeQueue
from store.format.layout import ABORT_FILE
from tests.takeover import broker
from tests.waiting import until

LONG = 60.0
NO_MORE = 3  # file descriptors: stdin, stdout and stderr; with a lower limit the kernel refuses to poll two at once

Events = SimpleQueue[tuple[HeldRequest, Wake]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 4)
        yield it


class Holding:
    def __init__(self, store: MessageStore) -> None:
        self.service = PullRequestHoldService(store)
        self.events: Events = SimpleQueue()

    def hold(self, queue_id: int, offset: int, tags: str | None = None, timeout: float = LONG) -> HeldRequest:
        return self.service.hold(
            "orders", queue_id, offset, timeout, lambda *event: self.events.put(event), TagFilter.parse(tags)
        )

    def woken(self) -> tuple[HeldRequest, Wake]:
        return self.events.get(timeout=LONG)

    def nobody(self) -> bool:
        try:
            self.events.get_nowait()
        except Empty:
            return True
        return False


@pytest.fixture
def holding(store: MessageStore) -> Iterator[Holding]:
    it = Holding(store)
    with it.service:
        yield it


def put(store: MessageStore, queue_id: int, tags: str | None = None) -> None:
    store.put(Message("orders", b"x", tags=tags, queue_id=queue_id))


def test_arrival_wakes_the_request_of_its_queue(store: MessageStore, holding: Holding) -> None:
    requests = [holding.hold(queue_id, 0) for queue_id in range(4)]
    put(store, 2)
    assert holding.woken() == (requests[2], Wake.ARRIVED)
    assert holding.service.held == 3
    put(store, 0)
    assert holding.woken() == (requests[0], Wake.ARRIVED)
    assert holding.nobody()


def test_all_requests_of_a_queue_are_woken(store: MessageStore, holding: Holding) -> None:
    requests = {holding.hold(1, 0) for _ in range(5)}
    put(store, 1)
    assert {holding.woken()[0] for _ in requests} == requests


def test_existing_message_wakes_at_once(store: MessageStore, holding: Holding) -> None:
    put(store, 0)
    request = holding.hold(0, 0)
    assert holding.events.get_nowait() == (request, Wake.ARRIVED)


def test_other_tag_wakes_no_request(store: MessageStore, holding: Holding) -> None:
    paid = holding.hold(0, 0, "paid || shipped")
    either = holding.hold(0, 0)
    put(store, 0, "cancelled")
    assert holding.woken() == (either, Wake.ARRIVED)
    put(store, 0)
    last = holding.hold(0, 1)
    assert holding.woken() == (last, Wake.ARRIVED)
    assert holding.service.held == 1
    put(store, 0, "shipped")
    assert holding.woken() == (paid, Wake.ARRIVED)


def test_any_arrival_wakes_a_request_with_a_condition(store: MessageStore, holding: Holding) -> None:
    condition = message_filter("region = 'eu'", "SQL92")
    request = holding.service.hold("orders", 0, 0, LONG, lambda *event: holding.events.put(event), condition)
    put(store, 0)
    assert holding.woken() == (request, Wake.ARRIVED)


def test_matching_message_after_others_wakes(store: MessageStore, holding: Holding) -> None:
    request = holding.hold(0, 0, "paid")
    store.put_many([Message("orders", b"", tags=tag, queue_id=0) for tag in ("a", "b", "paid", "c")])
    assert holding.woken() == (request, Wake.ARRIVED)


def test_timeout_answers_a_request(holding: Holding) -> None:
    begin = time.monotonic()
    late, soon = holding.hold(0, 0, timeout=0.3), holding.hold(1, 0, timeout=0.05)
    assert [holding.woken(), holding.woken()] == [(soon, Wake.TIMEOUT), (late, Wake.TIMEOUT)]
    assert time.monotonic() - begin >= 0.3


def test_timeout_counts_after_a_request_that_woke_at_once(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "CHECK_SECONDS", 3600.0)  # otherwise the periodic check would find it
    holding = Holding(store)
    with holding.service:
        put(store, 0)
        holding.hold(0, 0, timeout=0.05)
        assert holding.woken()[1] is Wake.ARRIVED
        late = holding.hold(0, 1, timeout=0.06)
        assert holding.woken() == (late, Wake.TIMEOUT)


def test_existing_message_takes_precedence_over_a_timeout(store: MessageStore, holding: Holding) -> None:
    put(store, 0)
    holding.hold(1, 0)  # the thread runs, and wakes up for each request
    for _ in range(200):
        request = holding.hold(0, 0, timeout=0.0)
        assert holding.woken() == (request, Wake.ARRIVED)
        nothing = holding.hold(0, 1, timeout=0.0)
        assert holding.woken() == (nothing, Wake.TIMEOUT)


def test_setting_the_clock_does_not_matter(holding: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    begin = time.monotonic()
    request = holding.hold(0, 0, timeout=0.1)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert holding.woken() == (request, Wake.TIMEOUT)
    assert time.monotonic() - begin >= 0.1


def test_periodic_check_wakes_a_request_that_is_behind(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "CHECK_SECONDS", 0.2)
    holding = Holding(store)
    with holding.service:
        unmatched = holding.hold(0, 0, "paid")
        idle = holding.hold(1, 0)
        put(store, 0, "cancelled")
        assert holding.woken() == (unmatched, Wake.CHECKED)
        assert holding.service.cancel(idle)


def test_many_appends_at_once_wake_the_right_requests(store: MessageStore, holding: Holding) -> None:
    """More may be appended than one read of the log returns."""
    unmatched, matched, other = holding.hold(0, 0, "none"), holding.hold(1, 0, "t7"), holding.hold(2, 0)
    store.put_many([Message("orders", b"x" * 5000, tags=f"t{n}", queue_id=n % 2) for n in range(100)])
    assert holding.woken() == (matched, Wake.ARRIVED)
    put(store, 2)
    assert holding.woken() == (other, Wake.ARRIVED)
    put(store, 0, "none")
    assert holding.woken() == (unmatched, Wake.ARRIVED)


def test_request_beyond_the_end_waits_for_its_offset(store: MessageStore, holding: Holding) -> None:
    ahead = holding.hold(0, 2)
    put(store, 0)
    put(store, 0)
    assert holding.nobody()
    put(store, 0)
    assert holding.woken() == (ahead, Wake.ARRIVED)


def test_delivery_time_is_no_tag(tmp_path: Path) -> None:
    """The tags code of such an entry is a time, not a tag's hash, so the reader must check the record."""
    golden = Path(__file__).parents[2] / "golden" / "delayed-5.3"
    with MessageStore.open(golden, read_only=True) as broker, PullRequestHoldService(broker) as service:
        events: Events = SimpleQueue()
        there = next(q for q in range(18) if broker.max_offset("SCHEDULE_TOPIC_XXXX", q))
        tags = TagFilter.parse("whatever")
        service.hold("SCHEDULE_TOPIC_XXXX", there, 0, LONG, lambda *event: events.put(event), tags)
        assert events.get_nowait()[1] is Wake.ARRIVED


def test_no_wake_is_lost_during_concurrent_appends(store: MessageStore, holding: Holding) -> None:
    count = 2000
    thread = threading.Thread(target=lambda: [put(store, 0, "ab"[n % 2]) for n in range(count)])
    thread.start()
    for offset in range(1, count, 2):
        request = holding.hold(0, offset, "b")
        assert holding.woken() == (request, Wake.ARRIVED)
    thread.join()
    assert holding.service.held == 0
    assert holding.nobody()


def test_arrival_during_the_first_check_hides_no_earlier_match(
    store: MessageStore, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, service = PullRequestHoldService._due, holding.service

    def late(self: PullRequestHoldService, requests: list[HeldRequest]) -> list[HeldRequest]:
        monkeypatch.undo()
        store.put(Message("orders", b"", tags="other", queue_id=0))
        until(lambda: service._seen == store.confirm_offset)
        return look(self, requests)

    store.put(Message("orders", b"", tags="paid", queue_id=0))
    monkeypatch.setattr(PullRequestHoldService, "_due", late)
    request = holding.hold(0, 0, "paid")
    assert holding.woken() == (request, Wake.ARRIVED)


def test_cancelled_request_is_forgotten(store: MessageStore, holding: Holding) -> None:
    request, other = holding.hold(0, 0), holding.hold(0, 0)
    assert holding.service.cancel(request)
    assert not holding.service.cancel(request)
    put(store, 0)
    assert holding.woken() == (other, Wake.ARRIVED)
    assert holding.nobody()


def test_stop_wakes_all_requests_at_once(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "CHECK_SECONDS", 3600.0)
    holding = Holding(store)
    requests = {holding.hold(queue_id, 0) for queue_id in range(4)}
    begin = time.monotonic()
    holding.service.stop()
    assert {holding.events.get_nowait() for _ in requests} == {(request, Wake.STOPPED) for request in requests}
    assert time.monotonic() - begin < LONG / 2
    late = holding.hold(0, 0)
    assert holding.events.get_nowait() == (late, Wake.STOPPED)


def test_unused_service_stops(store: MessageStore) -> None:
    PullRequestHoldService(store).stop()


def test_signal_handler_during_a_call_cannot_stop_the_service(store: MessageStore, holding: Holding) -> None:
    with holding.service._lock, pytest.raises(StoreLocked, match="signal handler"):
        holding.service.stop()
    request = holding.hold(0, 0)
    put(store, 0)
    assert holding.woken() == (request, Wake.ARRIVED)


def test_request_is_held_after_a_thread_failed_to_start(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    holding = Holding(store)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            holding.hold(0, 0)
    request = holding.hold(0, 0, timeout=0.01)
    assert holding.woken() == (request, Wake.TIMEOUT)
    holding.service.stop()


def test_unknown_topic_wakes_at_once(store: MessageStore, holding: Holding) -> None:
    with pytest.raises(UnknownTopic):
        store.max_offset("payments", 0)
    holding.service.hold("payments", 0, 0, LONG, lambda *event: holding.events.put(event))
    assert holding.woken()[1] is Wake.ARRIVED


def test_lack_of_descriptors_wakes_requests_but_not_more(store: MessageStore) -> None:
    store.put(Message("orders", b"", tags="a", queue_id=0))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with MessageStore.open(store.path, read_only=True) as reader:
        holding = Holding(reader)
        with holding.service:
            waiting = holding.hold(1, 0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (NO_MORE, limits[1]))
            try:
                request = holding.hold(0, 0, "b")
                with pytest.raises(StoreUnavailable, match="Too many open files"):
                    reader.tags_codes("orders", 0, 0, 1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert holding.woken() == (request, Wake.ARRIVED)
            store.put(Message("orders", b"", queue_id=1))
            assert holding.woken() == (waiting, Wake.ARRIVED)


def test_check_without_descriptors_does_not_end_the_service(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.0)  # each check opens files
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with MessageStore.open(store.path, read_only=True) as reader:
        holding = Holding(reader)
        with holding.service:
            holding.hold(1, 0)
            thread = holding.service._thread
            resource.setrlimit(resource.RLIMIT_NOFILE, (NO_MORE, limits[1]))
            try:
                with pytest.raises(StoreUnavailable, match="Too many open files"):
                    assert reader.confirm_offset
                assert thread is not None
                thread.join(0.3)
                assert thread.is_alive()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            waiting = holding.hold(2, 0)
            put(store, 2)
            while (event := holding.woken())[0] is not waiting:
                pass
            assert event[1] is Wake.ARRIVED


def test_one_of_a_thousand_requests_is_woken(store: MessageStore, holding: Holding) -> None:
    requests = [holding.hold(number % 4, 0, f"t{number // 4}") for number in range(1000)]
    put(store, 3, "t100")
    assert holding.woken() == (requests[403], Wake.ARRIVED)
    assert holding.service.held == 999


def test_append_of_another_process_wakes(store: MessageStore, holding: Holding) -> None:
    request = holding.hold(0, 0)
    program = (
        "import sys; from store import Message, MessageStore\n"
        "with MessageStore.open(sys.argv[1]) as store: store.put(Message('orders', b'x', queue_id=0))"
    )
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, "-c", program, str(store.path)], check=True, env={**os.environ, "PYTHONPATH": root})
    assert holding.woken() == (request, Wake.ARRIVED)


def test_directory_without_a_watermark_is_polled(tmp_path: Path) -> None:
    import shutil

    golden = Path(__file__).parents[2] / "golden" / "clean"
    directory = shutil.copytree(golden, tmp_path / "broker")
    with MessageStore.open(directory, read_only=True) as broker:
        topic = next(iter(broker.topics()))
        events: Events = SimpleQueue()
        with PullRequestHoldService(broker) as service:
            service.hold(topic, 0, broker.max_offset(topic, 0), 0.1, lambda *event: events.put(event))
            assert events.get(timeout=LONG)[1] is Wake.TIMEOUT


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_end, "LOOK_SECONDS", 0.05)
    path = tmp_path / "mq"
    with MessageStore.open(path) as it:
        it.create_topic("orders", 2)
        for queue_id in (0, 1, 0, 1):
            put(it, queue_id)
    return path


def test_requests_are_stopped_when_the_directory_changes_owner(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as reader:
        holding = Holding(reader)
        with holding.service:
            request = holding.hold(0, 2)
            with broker(path) as theirs:
                put(theirs, 0)
                assert holding.woken() == (request, Wake.STOPPED)
            assert isinstance(holding.service.failure, StoreReplaced)


def test_queue_entry_restored_by_recovery_wakes(path: Path) -> None:
    """The machine crashed: the record reached the device, but its queue entry did not."""
    ConsumeQueue.at(path, "orders", 0, StoreConfig().mappedFileSizeConsumeQueue, writable=True).truncate(1)
    with closing(PublishedEnd(path, writable=True)) as published:
        published._file._fields["boot_id"][...] = b"another"
        published._file._fields["flushed_offset"][...] = checked(0)
    (path / ABORT_FILE).touch()
    with MessageStore.open(path, read_only=True) as reader:
        holding = Holding(reader)
        with holding.service:
            request = holding.hold(0, 1)
            assert holding.nobody()
            MessageStore.open(path).close()
            assert holding.woken() == (request, Wake.ARRIVED)
