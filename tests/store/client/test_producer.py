"""A producer over real stores: what it answers, what it refuses, and how it ends."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import (
    InvalidArgument,
    InvalidTopic,
    Message,
    MessageRefused,
    MessageStore,
    NotAStore,
    Producer,
    PutStatus,
    StoreBusy,
    StoreClosed,
    StoreConfig,
    StoreForked,
    StoreFull,
    StoreNotOpen,
    UnknownQueue,
    UnknownTopic,
)
from tests.store.client.producers import QUEUES, ROOT, SMALL, bodies, nobody_appends, rows
from tests.store.format.test_message import messages
from tests.store.format.test_message_lists import odd_messages
from tests.waiting import PATIENCE, until

# --- what it answers ---------------------------------------------------------------------------------------


def test_a_future_says_where_the_message_is(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("t", f"body {n}", tags="paid", keys=(f"k-{n}",)) for n in range(500)]
    for number, future in enumerate(sent):
        result = future.result(PATIENCE)
        (found,) = store.get_message("g", "t", result.queue_id, result.queue_offset, 1).messages
        assert found.body == f"body {number}".encode()
        assert (found.msg_id, found.physical_offset) == (result.msg_id, result.physical_offset)
        assert (found.tags, found.keys) == ("paid", (f"k-{number}",))
    assert {future.result().queue_id for future in sent} == set(range(QUEUES))


@pytest.mark.parametrize("count", [1, 100])
def test_the_same_as_put_many(store: MessageStore, producer: Producer, count: int) -> None:
    all_fields = Message(
        "t", b"b", "tag", ("k", "l"), {"UNIQ_KEY": "own", "n": "v"}, sharding_key="s", flag=3, born_timestamp=17
    )
    put = store.put_many([all_fields] * count)
    with_message = [producer.send(all_fields) for _ in range(count)]
    in_parts = [
        producer.send(
            "t",
            b"b",
            tags="tag",
            keys=["k", "l"],
            properties={"UNIQ_KEY": "own", "n": "v"},
            sharding_key="s",
            flag=3,
            born_timestamp=17,
        )
        for _ in range(count)
    ]
    for ours in (with_message, in_parts):
        results = [future.result(PATIENCE) for future in ours]
        assert [(each.status, each.queue_id, each.msg_id) for each in results] == [
            (each.status, each.queue_id, each.msg_id) for each in put
        ]
    (queue,) = [queue for queue in rows(store, "t") if queue]
    first = {name: value for name, value in queue[0].items() if name != "queueOffset"}
    assert all({**first, "queueOffset": n} == row for n, row in enumerate(queue))
    assert len(queue) == 3 * count
    found = store.get_message("g", "t", put[0].queue_id, 2 * count, 1).messages[0]
    assert (found.flag, found.born_timestamp) == (3, 17)


def test_it_takes_all_that_a_message_has() -> None:
    assert [field.name for field in fields(Message)] == list(signature(Producer.send).parameters)[1:-1]


@pytest.mark.parametrize("count", [1, 100])
def test_delayed_messages(store: MessageStore, producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.send("t", b"level", delay_level=18)
        producer.send(Message("t", b"level", delay_level=18))
    producer.flush()
    assert bodies(store) == []
    found = [body for topic in store.topics() if topic not in ("t", "u") for body in bodies(store, topic)]
    assert found == [b"level"] * 2 * count


@pytest.mark.parametrize("count", [1, 100])
def test_messages_for_a_time(store: MessageStore, producer: Producer, count: int) -> None:
    """As `put` takes them."""
    later = int(time.time() * 1000) + 3_600_000
    try:
        store.put(Message("t", b"time", deliver_at=later))
        expected = None
    except MessageRefused as error:
        expected = str(error)
    sent = [producer.send("t", b"time", deliver_at=later) for _ in range(count)]
    sent.append(producer.send(Message("t", b"time", deliver_at=later)))
    errors = [future.exception(PATIENCE) for future in sent]
    assert {error and str(error) for error in errors} == {expected}
    assert bodies(store) == []


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(messages() | odd_messages(), min_size=1, max_size=4), st.integers(1, 64))
def test_what_put_refuses_fails_and_the_rest_is_there(
    tmp_path_factory: pytest.TempPathFactory, some: list[Message], times: int
) -> None:
    some = [replace(message, queue_id=0) for message in some]
    with MessageStore.open(tmp_path_factory.mktemp("any"), config=SMALL) as theirs:
        for topic in {message.topic for message in some}:
            theirs.create_topic(topic, 1)
        expected: dict[str, list[bytes]] = {}
        errors = []
        for message in some * times:
            try:
                theirs.put(message)
            except MessageRefused as error:
                errors.append(str(error))
        for topic in theirs.topics():
            expected[topic] = [row["body"] for row in rows(theirs, topic)[0]]
        begin = {topic: theirs.max_offset(topic, 0) for topic in expected}
        refused = []
        with Producer(theirs, linger=60) as producer, suppress(MessageRefused):
            for message in some * times:
                try:
                    refused.append(producer.send(message))
                except MessageRefused as error:
                    refused.append(error)
            producer.flush()
        found = [
            str(each if isinstance(each, MessageRefused) else each.exception())
            for each in refused
            if isinstance(each, MessageRefused) or each.exception()
        ]
        assert len(found) == len(errors)
        for topic, all_bodies in expected.items():
            assert [row["body"] for row in rows(theirs, topic)[0]] == all_bodies[: begin[topic]] * 2


def test_later_changes_of_what_was_sent_change_nothing(store: MessageStore) -> None:
    body, keys, properties = bytearray(b"before"), ["before"], {"name": "before"}
    with Producer(store, linger=60) as producer:
        producer.send("u", body, keys=keys, properties=properties)
        producer.send("u", memoryview(body), keys=keys, properties=properties)
        body[:], keys[0], properties["name"] = b"after!", "after", "after"
        producer.send("u", memoryview(body), keys=keys, properties=properties)
    assert [(row["body"], row["keys"], dict(row["properties"])["name"]) for row in rows(store, "u")[0]] == [
        (b"before", "before", "before"),
        (b"before", "before", "before"),
        (b"after!", "after", "after"),
    ]


def test_order_by_sharding_key_from_many_threads(store: MessageStore) -> None:
    def send(thread: int) -> None:
        for number in range(2000):
            producer.send("t", f"{thread} {number}", sharding_key=f"key {thread}")

    with Producer(store, buffer_bytes=20_000) as producer:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers: dict[bytes, list[int]] = {}
    where: dict[bytes, set[int]] = {}
    for queue, found in enumerate(rows(store, "t")):
        for row in found:
            thread_, number = row["body"].split()
            numbers.setdefault(thread_, []).append(int(number))
            where.setdefault(thread_, set()).add(queue)
    assert set(numbers) == {b"0", b"1", b"2", b"3"}
    assert all(found == list(range(2000)) for found in numbers.values())
    assert all(len(queues) == 1 for queues in where.values())


def test_what_came_meanwhile_is_seen_at_once(store: MessageStore) -> None:
    """One publication: whoever looks whenever the log grows sees all of it or nothing."""
    with Producer(store) as producer:
        with nobody_appends(store):
            producer.send("t", "first")
            until(lambda: not producer._buffer._lots)  # it is on its way, and waits
            for number in range(1000):
                producer.send("t", str(number))
            begin = store.confirm_offset
        seen = [begin]
        while sum(store.max_offset("t", queue) for queue in range(QUEUES)) < 1001:
            seen.append(store.wait(seen[-1], 1.0))
    assert len(set(seen)) <= 3


# --- errors ------------------------------------------------------------------------------------------------


def test_the_bad_one_of_many_fails_alone(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("u", str(n), tags="a|b" if n == 77 else "good") for n in range(500)]
    with pytest.raises(MessageRefused, match=r"tag 'a\|b'"):
        sent[77].result(PATIENCE)
    producer.flush()  # it was told already
    expected = [str(n).encode() for n in range(500) if n != 77]
    assert bodies(store, "u") == expected
    assert [future.result().queue_offset for n, future in enumerate(sent) if n != 77] == list(range(499))


def test_what_no_future_told_flush_and_close_tell(store: MessageStore) -> None:
    producer = Producer(store.path)
    producer.send("t", "bad", tags="a|b")
    with pytest.raises(MessageRefused, match=r"tag 'a\|b'"):
        producer.flush()
    producer.flush()
    producer.send("t", "bad", keys="a b")
    producer.send("t", "good")
    with pytest.raises(MessageRefused, match="no blanks in a key"):
        producer.close()
    producer.close()
    assert bodies(store) == [b"good"]


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (("nowhere", b""), UnknownTopic, "nowhere"),
        (("a topic", b""), InvalidTopic | UnknownTopic, "a topic"),
        (("SCHEDULE_TOPIC_XXXX", b""), UnknownTopic | MessageRefused, "SCHEDULE_TOPIC_XXXX"),
        ((5, b""), MessageRefused, "5 is a int; send takes a store.Message"),
        (("t", None), MessageRefused, "a body of type NoneType"),
        (("t", 5), MessageRefused, "a body of type int"),
        ((Message(5, b""),), MessageRefused, "topic=5: must be a text"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_sent_is_refused_at_once(producer: Producer, sent: Any, kind: Any, words: str) -> None:
    with pytest.raises(getattr(kind, "__args__", kind), match=words):
        producer.send(*sent)


def test_keys_and_properties_of_other_kinds_are_refused_at_once(producer: Producer) -> None:
    with pytest.raises(MessageRefused, match="must be a text, or a sequence of texts"):
        producer.send("t", b"", keys={"set"})  # type: ignore[arg-type]
    with pytest.raises(MessageRefused, match="must be a mapping of texts to texts"):
        producer.send("t", b"", properties=["a"])  # type: ignore[arg-type]


def test_a_queue_that_is_not_there(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("t", str(n), queue_id=n % 4) for n in range(80)]
    for number, future in enumerate(sent):
        if number % 4 == 3:
            with pytest.raises(UnknownQueue):
                future.result(PATIENCE)
        else:
            assert future.result(PATIENCE).queue_id == number % 4


def test_an_error_of_the_append_is_everybodys(tmp_path: Path) -> None:
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
        assert len({id(error) for error in errors}) == 100  # who raises one adds to its traceback
        assert len({id(error.__cause__) for error in errors if error}) == 1
        again = [producer.send("t", str(n)) for n in range(100)]
        producer.flush()
        assert all(not future.exception() for future in again)
        assert sorted(bodies(store)) == sorted([b"first", *(str(n).encode() for n in range(100))])


def test_a_full_disk(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
    used = os.statvfs(tmp_path)
    if 1 - used.f_bavail / used.f_blocks < 0.36:
        pytest.skip("there is too much space on this disk")
    with MessageStore.open(tmp_path, config=StoreConfig(diskSpaceWarningLevelRatio=35)) as store:
        producer = Producer(store)
        future = producer.send("t", "no room")
        with pytest.raises(StoreFull):
            future.result(PATIENCE)
        producer.close()


@pytest.mark.parametrize(
    "wrong", [{"linger": "1"}, {"batch_bytes": 0}, {"buffer_bytes": 1.5}, {"timeout": float("nan")}, {"linger": -1}]
)
def test_settings_that_are_none(store: MessageStore, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Producer(store, **wrong)


def test_a_path_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Producer(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


# --- the end -----------------------------------------------------------------------------------------------


def test_close_appends_what_is_left(store: MessageStore) -> None:
    with Producer(store.path, linger=60) as producer:
        sent = [producer.send("u", str(n)) for n in range(100)]
        assert store.max_offset("u", 0) == 0
    assert store.max_offset("u", 0) == 100
    assert all(future.done() for future in sent)
    for verb in (lambda: producer.send("u", b""), producer.flush):
        with pytest.raises(StoreClosed, match=r"make a new one with Producer\("):
            verb()
    producer.close()


def test_a_store_that_was_given_stays_open(store: MessageStore) -> None:
    with Producer(store) as producer:
        producer.send("u", b"")
    store.put(Message("u", b""))
    assert store.max_offset("u", 0) == 2


def test_nothing_is_taken_while_it_closes(store: MessageStore) -> None:
    """Whatever the moment: what was taken is there, what was not raised."""
    for _ in range(5):
        producer, taken, begun = Producer(store.path), [], threading.Event()

        def send(producer: Producer = producer, taken: list[Any] = taken, begun: Any = begun) -> None:
            with suppress(StoreClosed):
                while True:
                    taken.append(producer.send("u", b""))
                    begun.set()

        before = store.max_offset("u", 0)
        thread = threading.Thread(target=send)
        thread.start()
        begun.wait(PATIENCE)
        producer.close()
        thread.join()
        assert store.max_offset("u", 0) == before + len(taken)
        assert all(future.done() for future in taken)


def test_a_store_that_was_closed_under_it(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path)
    store.create_topic("t")
    producer = Producer(store, linger=60)
    future = producer.send("t", b"")
    store.close()
    with pytest.raises(StoreClosed):
        producer.close()
    assert isinstance(future.exception(), StoreClosed)


def test_one_that_is_dropped_appends_and_warns(store: MessageStore) -> None:
    producers = [Producer(store.path, linger=60)]
    future = producers[0].send("u", b"there")
    with pytest.warns(ResourceWarning, match="producer: was dropped; close it"):
        producers.clear()
    assert future.result(PATIENCE).queue_offset == 0


def test_the_end_of_the_program_appends_what_is_left(store: MessageStore) -> None:
    program = f"""
from store import Producer
producer = Producer({str(store.path)!r}, linger=60)
for number in range(100):
    producer.send("u", str(number))
producer.send("u", bytes(1 << 24))
"""
    done = subprocess.run([sys.executable, "-Wd", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ResourceWarning" in done.stderr
    assert "was dropped, and some of what was sent failed: MESSAGE_ILLEGAL" in done.stderr
    assert bodies(store, "u") == [str(number).encode() for number in range(100)]


def test_a_forked_child_sends_nothing(store: MessageStore) -> None:
    with Producer(store.path, linger=60) as producer:
        producer.send("u", b"parent's")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for verb in (lambda: producer.send("u", b"child's"), producer.flush):
                    with pytest.raises(StoreForked):
                        verb()
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    assert bodies(store, "u") == [b"parent's"]


def test_it_is_not_handed_to_other_processes(producer: Producer) -> None:
    with pytest.raises(StoreNotOpen, match="hand its path on"):
        pickle.dumps(producer)


def test_what_a_callback_raises_keeps_nobody_else(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    """Not even what ends a thread."""
    with Producer(store, linger=PATIENCE) as producer:
        first, second = producer.send("t", "1"), producer.send("t", "2")
        first.add_done_callback(lambda _: sys.exit(3))
        second.add_done_callback(lambda _: None)
        producer.flush()
        producer.send("t", "3")
    assert second.result(PATIENCE).status is PutStatus.PUT_OK
    assert "SystemExit" in caplog.text
