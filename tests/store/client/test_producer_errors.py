from __future__ import annotations

import os
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from store import (
    InvalidArgument,
    InvalidTopic,
    Message,
    MessageRefused,
    MessageStore,
    NotAStore,
    Producer,
    StoreBusy,
    StoreClosed,
    StoreConfig,
    StoreFull,
    UnknownQueue,
    UnknownTopic,
    delete_topic,
)
from store.client.producer_buffer import Buffer
from store.client.producer_sender import Sender
from tests.store.client.producers import QUEUES, SMALL, bodies, nobody_appends
from tests.waiting import PATIENCE


def test_refused_message_fails_alone(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("u", str(n), tags="a|b" if n == 77 else "good") for n in range(500)]
    with pytest.raises(MessageRefused, match=r"tag 'a\|b'"):
        sent[77].result(PATIENCE)
    producer.flush()
    expected = [str(n).encode() for n in range(500) if n != 77]
    assert bodies(store, "u") == expected
    assert [future.result().queue_offset for n, future in enumerate(sent) if n != 77] == list(range(499))


def test_flush_and_close_raise_errors_of_unread_futures(store: MessageStore) -> None:
    producer = Producer(store.path)
    producer.send("t", "bad", tags="a|b")
    with pytest.raises(MessageRefused, match=r"tag 'a\|b'"):
        producer.flush()
    producer.flush()
    producer.send("t", "bad", keys="a b")
    producer.send("t", "good")
    with pytest.raises(MessageRefused, match="a key must not contain blanks"):
        producer.close()
    producer.close()
    assert bodies(store) == [b"good"]


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (("nowhere", b""), UnknownTopic, "nowhere"),
        (("a topic", b""), InvalidTopic | UnknownTopic, "a topic"),
        (("SCHEDULE_TOPIC_XXXX", b""), UnknownTopic | MessageRefused, "SCHEDULE_TOPIC_XXXX"),
        ((5, b""), MessageRefused, "5 is a int. send takes a store.Message"),
        (("t", None), MessageRefused, "a body of type NoneType"),
        (("t", 5), MessageRefused, "a body of type int"),
        ((Message(5, b""),), MessageRefused, "topic=5: must be a text"),  # type: ignore[arg-type]
    ],
)
def test_wrong_message_is_refused_at_once(producer: Producer, sent: Any, kind: Any, words: str) -> None:
    with pytest.raises(getattr(kind, "__args__", kind), match=words):
        producer.send(*sent)


def test_wrong_keys_and_properties_are_refused_at_once(producer: Producer) -> None:
    with pytest.raises(MessageRefused, match="must be a text, or a sequence of texts"):
        producer.send("t", b"", keys={"set"})  # type: ignore[arg-type]
    with pytest.raises(MessageRefused, match="must be a mapping of texts to texts"):
        producer.send("t", b"", properties=["a"])  # type: ignore[arg-type]


def test_missing_queue_fails_its_messages_only(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("t", str(n), queue_id=n % 4) for n in range(80)]
    for number, future in enumerate(sent):
        if number % 4 == 3:
            with pytest.raises(UnknownQueue):
                future.result(PATIENCE)
        else:
            assert future.result(PATIENCE).queue_id == number % 4


def test_deleted_topic_fails_its_messages_only(store: MessageStore) -> None:
    with Producer(store, linger=60) as producer:
        sent = [producer.send("tu"[n % 2], str(n)) for n in range(40)]
        delete_topic(store.path, "t")
        with suppress(UnknownTopic):
            producer.flush()
        for number, future in enumerate(sent):
            if number % 2:
                assert future.result(PATIENCE).queue_offset == number // 2
            else:
                with pytest.raises(UnknownTopic, match="'t'"):
                    future.result(PATIENCE)
    assert bodies(store, "u") == [str(n).encode() for n in range(1, 40, 2)]


def test_error_of_the_append_fails_the_whole_batch(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", QUEUES)
        store.create_topic("u", 1)
    config = StoreConfig(lockTimeoutMillis=20)
    with MessageStore.open(tmp_path, config=config) as store, Producer(store, linger=60) as producer:
        producer.send("t", "first")
        producer.flush()
        with nobody_appends(store):
            sent = [producer.send("t", str(n)) for n in range(100)]
            with pytest.raises(StoreBusy):
                producer.flush()
        errors = [future.exception(PATIENCE) for future in sent]
        assert all(isinstance(error, StoreBusy) for error in errors)
        # Raising an error extends its traceback, so each future needs its own.
        assert len({id(error) for error in errors}) == 100
        assert len({id(error.__cause__) for error in errors if error}) == 1
        again = [producer.send("t", str(n)) for n in range(100)]
        producer.flush()
        assert all(not future.exception() for future in again)
        assert sorted(bodies(store)) == sorted([b"first", *(str(n).encode() for n in range(100))])


@pytest.mark.parametrize("is_asked", [False, True])
def test_flush_raises_an_error_unless_a_future_reported_it(store: MessageStore, is_asked: bool) -> None:
    config = StoreConfig(lockTimeoutMillis=20)
    with MessageStore.open(store.path, config=config) as own, Producer(own, linger=60) as producer:
        with nobody_appends(own):
            futures = [producer.send("tu"[n % 2], str(n)) for n in range(100)]
            if is_asked:
                futures[0].add_done_callback(lambda future: future.exception())
            with nullcontext() if is_asked else pytest.raises(StoreBusy):
                producer.flush()
        assert all(isinstance(future.exception(PATIENCE), StoreBusy) for future in futures)


def test_flush_and_close_raise_the_error_of_the_thread(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_: Buffer) -> None:
        raise MemoryError("none left")

    for verb in (Producer.flush, Producer.close):
        with monkeypatch.context() as patched:
            patched.setattr(Buffer, "take", take)
            producer = Producer(store.path, linger=60)
            with suppress(StoreClosed):
                producer.send("u", b"never appended")
            with pytest.raises(MemoryError, match="none left"):
                verb(producer)
        producer.close()
    assert bodies(store, "u") == []


@pytest.mark.parametrize("verb", [(Buffer, "take"), (Sender, "_append_or_split")])
def test_futures_raise_the_error_of_the_thread(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, verb: tuple[type, str]
) -> None:
    sent = threading.Event()

    def fail(*_: object) -> None:
        assert sent.wait(PATIENCE)
        raise MemoryError("none left")

    with monkeypatch.context() as patched:
        patched.setattr(*verb, fail)
        producer = Producer(store.path)
        futures = [producer.send("tu"[n % 2], str(n)) for n in range(4)]
        sent.set()
        for future in futures:
            with pytest.raises(MemoryError, match="none left"):
                future.result(PATIENCE)
        with pytest.raises(StoreClosed):
            producer.send("t", "never appended")
    with suppress(MemoryError):
        producer.close()
    assert bodies(store, "t") + bodies(store, "u") == []


def test_full_disk_fails_the_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
    nearly_full = os.statvfs_result((4096, 4096, 1000, 50, 50, 100, 50, 50, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: nearly_full)
    with MessageStore.open(tmp_path) as store:
        producer = Producer(store)
        future = producer.send("t", "no room")
        with pytest.raises(StoreFull, match="the disk is 95% full"):
            future.result(PATIENCE)
        producer.close()


@pytest.mark.parametrize(
    "wrong", [{"linger": "1"}, {"batch_bytes": 0}, {"buffer_bytes": 1.5}, {"timeout": float("nan")}, {"linger": -1}]
)
def test_wrong_settings_are_refused(store: MessageStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Producer(store, **wrong)


def test_path_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Producer(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
