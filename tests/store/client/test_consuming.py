from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from store import Consumer, MessageStore, ReceivedMessage, ReconsumeLater
from tests.store.client.consumers import QUEUES, TOPIC, Seen, committed, config, has_done, opened, put
from tests.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


def first_time(failed: set[bytes], how: Callable[[], Any]) -> Callable[[Sequence[ReceivedMessage]], Any]:
    def listener(messages: Sequence[ReceivedMessage]) -> Any:
        if any(message.body == b"5" and not message.reconsume_times for message in messages):
            failed.add(b"5")
            return how()
        return None

    return listener


def raising() -> None:
    raise ValueError("no such order")


def later() -> None:
    raise ReconsumeLater(delay_level=1)


def test_retried_message_has_its_original_topic(store: MessageStore) -> None:
    put(store, range(8), keys="k")
    seen = Seen(lambda message: later() if message.body == b"5" and not message.reconsume_times else None)
    with Consumer(store.path, "g", "t", seen, config=config()):
        until(lambda: len(seen.numbers) == 9)
    assert Counter(seen.numbers) == Counter([*range(8), 5])
    message = seen.messages[-1]
    assert (message.body, message.topic, message.tags, message.keys) == (b"5", "t", "odd", ("k",))
    assert message.reconsume_times == 1


def test_message_is_retried_although_its_first_consumer_left(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, [5])
    first, second = Seen(lambda message: later()), Seen()
    with Consumer(store.path, "g", "t", first, config=config()) as consumer:
        until(lambda: has_done(consumer, TOPIC[1:2]) == {1})
    with Consumer(store.path, "g", "t", second, config=config()):
        until(lambda: second.numbers == [5])
    assert first.numbers == [5]
    assert not (store.path / "abort").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (raising, "ValueError: no such order"),
        (lambda: 7, "the listener returned 7"),
        (lambda: object, "returned <class"),
    ],
)
def test_failing_listener_is_logged_once_with_the_message(
    store: MessageStore, caplog: pytest.LogCaptureFixture, how: Callable[[], Any], said: str
) -> None:
    put(store, range(8))
    failed: set[bytes] = set()
    with Consumer(store.path, "g", "t", first_time(failed, how), config=config()):
        until(lambda: "%RETRY%g" in store.topics() or store.topics().get("SCHEDULE_TOPIC_XXXX") is not None)
    (record,) = [record for record in caplog.records if record.name == "store"]
    (message,) = store.get_message("g", "t", 1, 1, 1).messages
    assert message.body == b"5"
    assert message.msg_id in record.getMessage()
    assert said in record.getMessage()


def dead_letters(store: MessageStore) -> list[bytes]:
    if "%DLQ%g" not in store.topics():
        return []
    return [message.body for message in store.get_message("x", "%DLQ%g", 0, 0).messages]


@pytest.mark.parametrize("orderly", [False, True])
def test_message_becomes_a_dead_letter_after_its_last_retry(
    store: MessageStore, caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    put(store, range(8))
    seen = Seen(lambda message: raising() if message.body == b"5" else None)
    none = config(max_reconsume_times=0)
    with Consumer(store.path, "g", "t", seen, orderly=orderly, config=none):
        until(lambda: dead_letters(store) == [b"5"])
        until(lambda: len(seen.numbers) == 8)
    assert sorted(seen.numbers) == [*range(8)]
    assert committed(store) == dict.fromkeys(TOPIC, 2)
    (message,) = store.get_message("g", "t", 1, 1, 1).messages
    failed, given_up = (record.getMessage() for record in caplog.records if record.name == "store")
    assert failed.startswith(f"group g: the listener failed for {message.msg_id} of t: Traceback")
    assert given_up == f"group g: made dead letters in %DLQ%g: {message.msg_id}"


def test_retried_message_keeps_its_id_in_the_logs(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, [5])
    (message,) = store.get_message("g", "t", 1, 0, 1).messages
    tries = iter([later, raising, lambda: None])
    with Consumer(store.path, "g", "t", lambda messages: next(tries)(), config=config(max_reconsume_times=1)):
        until(lambda: dead_letters(store) == [b"5"])
    failed, given_up = (record.getMessage() for record in caplog.records if record.name == "store")
    assert failed.startswith(f"group g: the listener failed for {message.msg_id} of t (try 2): Traceback")
    assert given_up.endswith(f": {message.msg_id}")


def test_orderly_message_is_retried_in_place(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, range(16))
    seen = Seen(lambda message: raising() if message.body == b"5" and message.reconsume_times < 3 else None)
    soon = config(suspend_current_queue_time=0.01)
    with Consumer(store.path, "g", "t", seen, orderly=True, config=soon):
        until(lambda: len(seen.numbers) == 19)
    assert seen.of_queue(1) == [1, 5, 5, 5, 5, 9, 13]
    assert [message.reconsume_times for message in seen.messages if message.body == b"5"] == [0, 1, 2, 3]
    assert len([record for record in caplog.records if record.name == "store"]) == 1
    assert committed(store) == dict.fromkeys(TOPIC, 4)


@pytest.mark.parametrize("orderly", [False, True])
def test_finished_part_of_a_batch_is_not_repeated(store: MessageStore, orderly: bool) -> None:
    put(store, range(0, 40, QUEUES))
    calls: list[list[int]] = []

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        calls.append([message.queue_offset for message in messages])
        if len(calls) == 1 and len(messages) > 1:
            raise ReconsumeLater(done=4, delay_level=1)

    settings = config(consume_message_batch_max_size=10, suspend_current_queue_time=0.01)
    with Consumer(store.path, "g", "t", listener, orderly=orderly, config=settings):
        until(lambda: sum(map(len, calls)) == 16)
    assert calls[0] == [*range(10)]
    # In order, messages are retried in place; concurrently, they come from the retry queue.
    again = [*range(4, 10)] if orderly else [*range(6)]
    assert [offset for call in calls[1:] for offset in call] == again


def test_hanging_listener_is_logged(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    put(store, [5])
    go_on = threading.Event()

    def hang_here(messages: Sequence[ReceivedMessage]) -> None:
        go_on.wait(60)

    with Consumer(store.path, "g", "t", hang_here, config=config(consume_timeout=0.05)):
        until(lambda: any("offset does not advance past it" in record.getMessage() for record in caplog.records))
        go_on.set()
    (message,) = store.get_message("g", "t", 1, 0, 1).messages
    (record,) = [record for record in caplog.records if record.name == "store"]
    assert message.msg_id in record.getMessage()
    assert "t/1" in record.getMessage()
