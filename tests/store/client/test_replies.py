from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import (
    Consumer,
    InvalidArgument,
    Message,
    MessageStore,
    NoReply,
    Producer,
    ReceivedMessage,
    StoreClosed,
    UnknownTopic,
    delete_topic,
    reply,
)
from store.format.layout import SYS_COMPRESSED
from tests.end_to_end.test_kill import ROOT
from tests.store.client.consumers import config
from tests.store.format.test_delayed import all_of
from tests.waiting import PATIENCE, until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("questions", 2)
        yield it


ANSWERER = """
import sys
from store import Consumer, Producer, reply
path, = sys.argv[1:]
with Producer(path) as producer, Consumer(path, "answerers", "questions") as consumer:
    while len(consumer.assigned) < 2:
        consumer.wait(0.01)
    print(flush=True)
    for message in consumer:
        producer.send(reply(message, b"answer to " + message.body)).result()
"""


def test_each_request_gets_its_own_reply(store: MessageStore) -> None:
    command = [sys.executable, "-c", ANSWERER, str(store.path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as answerer:
        assert answerer.stdout is not None
        answerer.stdout.readline()
        with Producer(store) as one, Producer(store) as other, ThreadPoolExecutor(8) as pool:

            def ask(number: int) -> bytes:
                producer = (one, other)[number % 2]
                return producer.request(Message("questions", f"{number}", tags="t"), PATIENCE).body

            assert list(pool.map(ask, range(50))) == [f"answer to {number}".encode() for number in range(50)]
        answerer.kill()
    question, answer = all_of(store, "questions")[0], all_of(store, "DefaultCluster_REPLY_TOPIC")[0]
    assert question.tags == "t"
    assert answer.properties["MSG_TYPE"] == "reply"
    assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "CLUSTER"} <= question.properties.keys()
    assert question.properties["TTL"] == answer.properties["TTL"] == "120000"


def test_missing_reply_is_an_error(store: MessageStore) -> None:
    with Producer(store) as producer:
        with pytest.raises(NoReply, match=r"no reply from topic questions within 0\.05 s"):
            producer.request(Message("questions", b""), 0.05)
        with pytest.raises(UnknownTopic):
            producer.request(Message("nowhere", b""))
        until(lambda: len(all_of(store, "questions")) == 1)
        (question,) = all_of(store, "questions")
        producer.send(reply(question, b"too late")).result()

        def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                producer.send(reply(message, b"in time"))

        with Consumer(store.path, "answerers", "questions", listen) as consumer:
            until(lambda: len(consumer.assigned) == 2)
            assert producer.request(Message("questions", b""), PATIENCE).body == b"in time"


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_replies_arrive_after_their_topic_was_deleted(store: MessageStore, is_made_anew: bool) -> None:
    with Producer(store) as producer, Producer(store) as other:

        def listen(messages: Sequence[ReceivedMessage]) -> None:
            for message in messages:
                other.send(reply(message, b"yes"))

        with Consumer(store.path, "answerers", "questions", listen) as consumer:
            until(lambda: len(consumer.assigned) == 2)
            for _ in range(3):
                assert producer.request(Message("questions", b""), PATIENCE).body == b"yes"
            delete_topic(store.path, "DefaultCluster_REPLY_TOPIC")
            for asks in (other, producer) if is_made_anew else (producer, other):
                assert asks.request(Message("questions", b""), PATIENCE).body == b"yes"


def test_unreadable_reply_affects_no_other_request(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    store.create_topic("DefaultCluster_REPLY_TOPIC", 1)
    with Producer(store) as producer, Consumer(store.path, "g", "questions", config=config()) as consumer:
        unreadable = store.begin()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(producer.request, Message("questions", b"how"), PATIENCE)
            request = next(iter(consumer))
            unreadable.add_messages([Message("DefaultCluster_REPLY_TOPIC", b"plain")], {"sys_flag": SYS_COMPRESSED})
            unreadable.publish()
            until(lambda: "a reply cannot be read" in caplog.text)
            producer.send(reply(request, b"so")).result()
            assert asked.result(PATIENCE).body == b"so"


def test_reply_to_an_ordinary_message_is_refused(store: MessageStore) -> None:
    store.put(Message("questions", b""))
    with pytest.raises(InvalidArgument, match="does not wait for a reply"):
        reply(all_of(store, "questions")[0], b"")


def test_named_producer_cannot_send_requests(store: MessageStore) -> None:
    with (
        Producer(store, "importer") as producer,
        pytest.raises(InvalidArgument, match="only with a producer without a name"),
    ):
        producer.request(Message("questions", b""))


def test_close_ends_a_waiting_request(store: MessageStore) -> None:
    producer, raised = Producer(store), []

    def ask() -> None:
        with pytest.raises(StoreClosed) as caught:
            producer.request(Message("questions", b""), PATIENCE)
        raised.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: len(all_of(store, "questions")) == 1)
    producer.close()
    thread.join()
    assert "closed during the wait for a reply" in str(raised[0])
    with pytest.raises(StoreClosed):
        producer.request(Message("questions", b""))
