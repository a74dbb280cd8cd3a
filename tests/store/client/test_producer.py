from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import fields, replace
from inspect import signature

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store import Message, MessageRefused, MessageStore, Producer
from tests.store.client.producers import QUEUES, SMALL, bodies, nobody_appends, rows
from tests.store.format.test_encoding import odd_messages
from tests.store.format.test_message import messages
from tests.waiting import PATIENCE, until


def test_future_has_the_place_of_its_message(store: MessageStore, producer: Producer) -> None:
    sent = [producer.send("t", f"body {n}", tags="paid", keys=(f"k-{n}",)) for n in range(500)]
    for number, future in enumerate(sent):
        result = future.result(PATIENCE)
        (found,) = store.get_message("g", "t", result.queue_id, result.queue_offset, 1).messages
        assert found.body == f"body {number}".encode()
        assert (found.msg_id, found.physical_offset) == (result.msg_id, result.physical_offset)
        assert (found.tags, found.keys) == ("paid", (f"k-{number}",))
    assert {future.result().queue_id for future in sent} == set(range(QUEUES))


@pytest.mark.parametrize("count", [1, 100])
def test_producer_stores_the_same_as_put_many(store: MessageStore, producer: Producer, count: int) -> None:
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


def test_send_accepts_every_field_of_a_message() -> None:
    assert [field.name for field in fields(Message)] == list(signature(Producer.send).parameters)[1:-1]


@pytest.mark.parametrize("count", [1, 100])
def test_delayed_messages_wait(store: MessageStore, producer: Producer, count: int) -> None:
    for _ in range(count):
        producer.send("t", b"level", delay_level=18)
        producer.send(Message("t", b"level", delay_level=18))
    producer.flush()
    assert bodies(store) == []
    found = [body for topic in store.topics() if topic not in ("t", "u") for body in bodies(store, topic)]
    assert found == [b"level"] * 2 * count


@pytest.mark.parametrize("count", [1, 100])
def test_timed_messages_are_sent_as_put_does(store: MessageStore, producer: Producer, count: int) -> None:
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
def test_refused_messages_fail_and_others_are_stored(
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


def test_changing_a_sent_object_changes_no_message(store: MessageStore) -> None:
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


def test_messages_of_a_sharding_key_keep_their_order(store: MessageStore) -> None:
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


def test_batch_is_published_at_once(store: MessageStore) -> None:
    with Producer(store) as producer:
        with nobody_appends(store):
            producer.send("t", "first")
            until(lambda: not producer._buffer._batches)  # the batch is being sent and waits for the lock
            for number in range(1000):
                producer.send("t", str(number))
            begin = store.confirm_offset
        seen = [begin]
        while sum(store.max_offset("t", queue) for queue in range(QUEUES)) < 1001:
            seen.append(store.wait(seen[-1], 1.0))
    assert len(set(seen)) <= 3


def test_producer_prints_its_state(store: MessageStore) -> None:
    with Producer(store, "importer") as producer:
        assert repr(producer) == f"<Producer('{store.path}', 'importer'): open, 0 bytes to append>"
    assert repr(producer) == f"<Producer('{store.path}', 'importer'): closed>"
    assert repr(Producer.__new__(Producer)) == "<Producer: its constructor has not returned>"
