from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable

import pytest

from store import Message, MessageStore, StoredMessage
from store.disk.consumer_offsets import ConsumerOffsets
from store.format.layout import SYS_COMPRESSED
from store.format.properties import encode_properties
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Queue
from store.remoting.bodies import Batched
from store.remoting.client import Client
from store.remoting.command import MAX_HEADER_BYTES, Command
from store.remoting.headers import SendAnswer, SendBack, SendMessage, SendMessageV2, Topic
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker, encode_batch, send
from tests.store.remoting.test_heart_beats import heartbeat
from tests.waiting import until


def only(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> StoredMessage:
    (message,) = store.get_message("g", topic, queue_id, 0).messages
    return message


def lock(broker: Broker, queue: Queue, group: str) -> None:
    """Lock a queue as a client that reads in order does."""
    asked = {"brokerName": "broker-a", "queueId": queue.queue_id, "topic": queue.topic}
    body = {"clientId": "a", "consumerGroup": group, "mqSet": [asked]}
    answer = broker.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
    assert json.loads(bytes(answer.body))["lockOKMQSet"] == [asked]


@pytest.mark.parametrize(("code", "kind"), [(RequestCode.SEND_MESSAGE, SendMessage), (310, SendMessageV2)])
def test_message_is_stored_as_sent(broker: Broker, store: MessageStore, code: int, kind: type[SendMessage]) -> None:
    properties = {"TAGS": "paid", "KEYS": "a b", "UNIQ_KEY": "ID", "own": "café"}
    header = send(kind, queue_id=1, flag=-7, reconsume_times=3, properties=encode_properties(properties).decode())
    answer = broker.ask(code, header, b"body")
    assert answer.code == ResponseCode.SUCCESS
    sent, message = SendAnswer.of(answer.fields), only(store, queue_id=1)
    assert (sent.queue_id, sent.queue_offset) == (1, 0)
    assert store.message_by_id(sent.msg_id) == message
    assert (message.body, message.properties, message.flag) == (b"body", properties, -7)
    assert (message.born_timestamp, message.reconsume_times) == (1_700_000_000_000, 3)
    assert message.born_host.startswith("127.0.0.1:")
    assert not message.born_host.endswith(":0")
    assert store.query("orders", "ID") == store.query("orders", "b") == [message]


def test_compressed_body_is_stored(broker: Broker, store: MessageStore) -> None:
    broker.send(zlib.compress(b"body" * 100), sys_flag=SYS_COMPRESSED)
    assert only(store).body == b"body" * 100


@pytest.mark.parametrize("body", [b"plain", zlib.compress(bytes(65 << 20))], ids=["plain", "bomb"])
@pytest.mark.parametrize("kind", [0x0, 0x100, 0x200, 0x400])
def test_body_that_does_not_decompress_is_refused(broker: Broker, store: MessageStore, body: bytes, kind: int) -> None:
    """RocketMQ's brokers accept it, and its clients drop it and the messages after it."""
    answer = broker.send(body, sys_flag=SYS_COMPRESSED | kind)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    batch = encode_batch([Batched(0, zlib.compress(b"good"), b""), Batched(0, body, b"")])
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(batch=True, sys_flag=SYS_COMPRESSED | kind), batch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "decompress" in (answer.remark or "").lower() or "compression" in (answer.remark or "")
    assert store.max_offset("orders", 0) == 0


def test_batch_becomes_visible_at_once(broker: Broker, store: MessageStore) -> None:
    batch = [Batched(n, b"%d" % n, encode_properties({"KEYS": f"k{n}"})) for n in range(5)]
    header = send(batch=True, properties="WAIT\1true\2")
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(batch))
    sent = SendAnswer.of(answer.fields)
    messages = store.get_message("g", "orders", 0, 0).messages
    assert [(each.flag, each.body, each.keys) for each in messages] == [(n, b"%d" % n, (f"k{n}",)) for n in range(5)]
    assert {each.properties["WAIT"] for each in messages} == {"true"}
    assert [store.message_by_id(id) for id in sent.msg_id.split(",")] == messages


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(("times", "most", "is_dead"), [(3, 3, False), (4, 3, True), (16, None, False), (17, None, 1)])
def test_message_that_failed_too_often_is_a_dead_letter(
    broker: Broker,
    store: MessageStore,
    caplog: pytest.LogCaptureFixture,
    orderly: bool,
    times: int,
    most: int | None,
    is_dead: bool,
) -> None:
    """Orderly consumers send a message to give it up; its count already includes the failed try."""
    is_dead |= orderly
    if orderly:
        lock(broker, Queue("orders", 0), "g")
    properties = encode_properties({"DELAY": "5", "RETRY_TOPIC": "orders", "UNIQ_KEY": "ID"}).decode()
    store.create_topic("%RETRY%g", 1)
    answer = broker.send(
        b"body", topic="%RETRY%g", reconsume_times=times, max_reconsume_times=most, properties=properties
    )
    assert answer.code == ResponseCode.SUCCESS
    assert ("%DLQ%g" in store.topics()) == is_dead
    assert ("given up by a client, and put into %DLQ%g: ID" in caplog.text) == is_dead
    if is_dead:
        message = only(store, "%DLQ%g")
        assert (message.body, message.reconsume_times) == (b"body", times)
        assert message.properties == {"RETRY_TOPIC": "orders", "UNIQ_KEY": "ID"}


def test_queue_minus_one_means_any_queue(broker: Broker, store: MessageStore) -> None:
    queues = [SendAnswer.of(broker.send(b"", queue_id=-1).fields).queue_id for _ in range(4)]
    assert sorted(queues) == [0, 0, 1, 1]


@pytest.mark.parametrize("count", [1, 50])
def test_producers_may_have_wrong_clocks(broker: Broker, store: MessageStore, count: int) -> None:
    """As with RocketMQ: readers get the sent time, or null if it fits no timestamp."""
    body = encode_batch([Batched(0, b"each", b"")] * count)
    assert broker.send(body, born_timestamp=-1 << 63, batch=True).code == ResponseCode.SUCCESS
    assert {message.born_timestamp for message in store.get_message("g", "orders", 0, 0).messages} == {-1 << 63}
    (read,) = store.scan("orders", 0, 0, count, ["bornTimestamp"])
    assert read["bornTimestamp"].null_count == count


def test_first_message_creates_its_topic(broker: Broker, store: MessageStore) -> None:
    assert broker.send(b"", topic="new", default_topic_queue_nums=3).code == ResponseCode.SUCCESS
    assert broker.send(b"", topic="many", default_topic_queue_nums=3000).code == ResponseCode.SUCCESS
    assert (store.topics()["new"], store.topics()["many"]) == (3, 8)


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"queue_id": 2}, ResponseCode.INVALID_PARAMETER, "queues 0 to 1"),
        ({"topic": "a topic"}, ResponseCode.INVALID_PARAMETER, "a topic"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.MESSAGE_ILLEGAL, "belongs to RocketMQ"),
        ({"topic": "rmq_sys_PRODUCERS"}, ResponseCode.MESSAGE_ILLEGAL, "written by the store"),
        ({"topic": "rmq_sys_SPARK_COMMITS"}, ResponseCode.MESSAGE_ILLEGAL, "written by the store"),
        ({"properties": "TAGS\1a|b\2"}, ResponseCode.MESSAGE_ILLEGAL, "tag"),
        ({"properties": "a\1" + "b" * 40_000}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
        ({"reconsume_times": 1 << 31}, ResponseCode.MESSAGE_ILLEGAL, "reconsumeTimes"),
        ({"born_timestamp": 1 << 62, "flag": 1 << 40}, ResponseCode.MESSAGE_ILLEGAL, "32-bit"),
    ],
)
def test_refused_message_fails_alone(
    broker: Broker, store: MessageStore, fields: dict[str, object], code: ResponseCode, why: str
) -> None:
    good = [broker.begin(RequestCode.SEND_MESSAGE_V2, send(), b"good") for _ in range(5)]
    refused = broker.send(b"bad", **fields)
    assert (refused.code, why in (refused.remark or "")) == (code, True), refused.remark
    good += [broker.begin(RequestCode.SEND_MESSAGE_V2, send(), b"good") for _ in range(5)]
    assert {answer.result().code for answer in good} == {ResponseCode.SUCCESS}
    assert [message.body for message in store.get_message("g", "orders", 0, 0).messages] == [b"good"] * 10


def test_too_large_body_is_refused(broker: Broker, store: MessageStore) -> None:
    assert broker.send(bytes(store.config.maxMessageSize + 1)).code == ResponseCode.MESSAGE_ILLEGAL


def test_wrong_batch_is_refused(broker: Broker, store: MessageStore) -> None:
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(batch=True), b"no batch")
    assert (answer.code, "batch" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(batch=True))
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "a batch without a message")


@pytest.mark.parametrize(
    ("parts", "properties"),
    [(20_000, "k\1" + "v" * 30_000), (45_000, ""), (1, "k\1" + "v" * 33_000)],
    ids=["large together", "many", "long properties"],
)
def test_size_of_a_batch_is_limited_with_its_properties(
    broker: Broker, store: MessageStore, parts: int, properties: str
) -> None:
    """Each message repeats the request's properties and has a record header."""
    body = encode_batch([Batched(0, b"", b"")] * parts)
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(properties=properties), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert store.max_offset("orders", 0) == 0


def test_ids_of_a_stored_batch_fit_the_answer(broker: Broker, store: MessageStore) -> None:
    parts = [Batched(0, b"", b"")] * (MAX_HEADER_BYTES // 40)
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(batch=True), encode_batch(parts))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["msgId"].count(",") == len(parts) - 1
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send(batch=True), encode_batch([*parts, parts[0]]))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert store.max_offset("orders", 0) == len(parts)


def test_oneway_message_is_stored(broker: Broker, store: MessageStore) -> None:
    seen = store.confirm_offset
    broker.client.tell(broker.address, RequestCode.SEND_MESSAGE_V2, send().texts(), b"body")
    assert store.wait(seen, 60) > seen
    assert only(store).body == b"body"


def test_others_may_put_concurrently(broker: Broker, store: MessageStore) -> None:
    answers = []
    for n in range(50):
        answers.append(broker.begin(RequestCode.SEND_MESSAGE_V2, send(), b"sent %d" % n))
        store.put(Message("orders", b"put %d" % n, queue_id=0))
    offsets = [SendAnswer.of(answer.result().fields).queue_offset for answer in answers]
    assert offsets == sorted(offsets)
    with MessageStore.open(store.path, read_only=True) as reader:
        bodies = [body.as_py() for batch in reader.scan("orders", 0, 0, 100, ["body"]) for body in batch["body"]]
    assert [bodies[offset] for offset in offsets] == [b"sent %d" % n for n in range(50)]


def test_deleted_topic_does_not_affect_sends_to_others(broker: Broker, store: MessageStore) -> None:
    store.create_topic("kept", 1)
    begun = []
    for _ in range(20):
        for topic in ("orders", "kept") * 5:
            begun.append((topic, broker.begin(RequestCode.SEND_MESSAGE_V2, send(topic=topic), b"body")))
        broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, Topic("orders"))
    assert {answer.result().code for _, answer in begun} == {ResponseCode.SUCCESS}
    offsets = [SendAnswer.of(answer.result().fields).queue_offset for topic, answer in begun if topic == "kept"]
    assert sorted(offsets) == list(range(100))
    assert store.max_offset("kept", 0) == 100


def test_message_to_a_deleted_topic_is_refused(store: MessageStore, client: Client) -> None:
    with serve(store, "127.0.0.1:0", config=BrokerConfig(autoCreateTopicEnable=False)) as serving:
        broker = Broker(serving, client)
        broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, Topic("orders"))
        assert broker.send(b"").code == ResponseCode.TOPIC_NOT_EXIST


def test_no_topic_of_an_unknown_group_is_created(store: MessageStore, client: Client) -> None:
    """A client can invent groups: each would get a retry topic and a dead letter topic."""
    at = int(store.put(Message("orders", b"x", queue_id=0)).physical_offset)
    with serve(store, "127.0.0.1:0", config=BrokerConfig(autoCreateTopicEnable=False)) as serving:
        broker, topics = Broker(serving, client), store.topics()
        asks: list[Callable[[], Command]] = [
            lambda: broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")),
            lambda: broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(at, "group", 0)),
            lambda: broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(at, "group", -1)),
            lambda: broker.send(b"x", topic="%RETRY%group", reconsume_times=99),
        ]
        assert {ask().code for ask in asks} == {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
        assert broker.send(b"x", topic="%RETRY%group").code == ResponseCode.TOPIC_NOT_EXIST
        assert broker.send(b"x", topic="%DLQ%group").code == ResponseCode.TOPIC_NOT_EXIST
        assert store.topics() == topics
        broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "group"}')
        assert {ask().code for ask in asks} == {ResponseCode.SUCCESS}
        assert store.topics().keys() >= {"%RETRY%group", "%DLQ%group"}


def test_first_member_creates_its_group(broker: Broker, store: MessageStore) -> None:
    assert broker.ask(RequestCode.HEART_BEAT, body=heartbeat("a")).code == ResponseCode.SUCCESS
    assert store.topics()["%RETRY%group"] == 1
    assert ConsumerOffsets(store.path).settings.of("group") is not None


def test_message_is_sent_back(broker: Broker, store: MessageStore) -> None:
    store.put(Message("orders", b"again", keys="k", queue_id=0))
    (message,) = store.get_message("g", "orders", 0, 0).messages
    back = SendBack(message.physical_offset, "group", 1, origin_topic="orders")
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
    until(lambda: "%RETRY%group" in store.topics() and store.max_offset("%RETRY%group", 0) == 1)
    (again,) = store.get_message("g", "%RETRY%group", 0, 0).messages
    assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"again", 1, "orders")
    dead = SendBack(message.physical_offset, "group", -1)
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, dead).code == ResponseCode.SUCCESS
    (message,) = store.get_message("g", "%DLQ%group", 0, 0).messages
    assert message.body == b"again"


@pytest.mark.parametrize("offset", [5, 1 << 40])
def test_missing_message_is_not_sent_back(broker: Broker, store: MessageStore, offset: int) -> None:
    store.put(Message("orders", b"body"))
    answer = broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(offset, "group", 1))
    assert answer.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.SERVICE_NOT_AVAILABLE)


def test_delayed_message_is_delivered_later(broker: Broker, store: MessageStore) -> None:
    began = time.time()
    answer = broker.send(b"later", properties="DELAY\x011\x02TAGS\x01paid\x02")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert store.max_offset("orders", 0) == 0
    until(lambda: store.max_offset("orders", 0) == 1)
    (message,) = store.get_message("g", "orders", 0, 0).messages
    assert (message.body, message.tags, time.time() >= began + 1) == (b"later", "paid", True)


@pytest.mark.parametrize(
    ("properties", "level"),
    [
        ("DELAY\x0119\x02", 18),
        ("DELAY\x01999999999\x02", 18),
        (f"DELAY\x0118\x02TIMER_DELIVER_MS\x01{1 << 60}\x02", 18),
        ("DELAY\x0118\x02TIMER_DELAY_SEC\x015\x02", 18),
        ("DELAY\x01-1\x02", 0),
        ("DELAY\x010\x02", 0),
    ],
)
def test_delay_level_above_the_last_one_is_accepted(
    broker: Broker, store: MessageStore, properties: str, level: int
) -> None:
    """As with RocketMQ's broker: a client's 16th send-back asks for level 19."""
    assert broker.send(b"later", properties=properties).code == ResponseCode.SUCCESS
    if level:
        assert store.max_offset("SCHEDULE_TOPIC_XXXX", level - 1) == 1
        assert store.max_offset("orders", 0) == 0
    else:
        assert store.max_offset("orders", 0) == 1


def test_batch_of_one_is_a_batch(broker: Broker, store: MessageStore) -> None:
    """RocketMQ's broker does not treat a message in a batch as a half message."""
    half = "PGROUP\x01producers\x02"
    answer = broker.ask(
        RequestCode.SEND_BATCH_MESSAGE, send(properties=half), encode_batch([Batched(0, b"a", b"TRAN_MSG\x01true\x02")])
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert store.max_offset("orders", 0) == 1


def test_wrong_delay_is_refused(broker: Broker) -> None:
    answer = broker.send(b"", properties="DELAY\x01soon\x02")
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "property DELAY='soon' is no number")
