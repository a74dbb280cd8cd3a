from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from store import (
    Consumer,
    InvalidArgument,
    MessageStore,
    ReceivedMessage,
    ReconsumeLater,
    RequestRefused,
    Subscription,
    UnknownTopic,
    Unreachable,
)
from store.api.message_store import delete_topic
from store.client import rebalancer
from store.cluster import member
from store.cluster.address import ClusterAddress, Credentials
from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue
from store.remoting.access import Access
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.name_server import name_server
from tests.store.client.consumers import QUEUES, Seen, config, has_done, opened, put
from tests.store.client.consumers import TOPIC as TOPIC_HERE
from tests.waiting import PATIENCE, another_millisecond, until

TOPIC = [Queue("t", number, broker=BrokerConfig.brokerName) for number in range(QUEUES)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with opened(tmp_path) as it:
        yield it


@pytest.fixture
def cluster(store: MessageStore) -> Iterator[ClusterAddress]:
    with serve(store, "127.0.0.1:0") as serving:
        yield ClusterAddress((serving.address,))


@pytest.fixture
def consumers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("orderly", [False, True])
def test_listener_gets_each_message_once(store: MessageStore, cluster: ClusterAddress, orderly: bool) -> None:
    put(store, range(100))
    with Consumer(cluster, "g", "t", seen := Seen(), orderly=orderly, config=config()):
        until(lambda: len(seen.numbers) >= 100)
        put(store, range(100, 150))
        until(lambda: len(seen.numbers) >= 150)
    assert sorted(seen.numbers) == [*range(150)]
    if orderly:
        assert [seen.of_queue(number) for number in TOPIC_IDS] == [[*range(n, 150, QUEUES)] for n in range(QUEUES)]
    assert cluster.group("g").committed(TOPIC) == {queue: 38 - (n > 1) for n, queue in enumerate(TOPIC)}
    with Consumer(cluster, "g", "t", again := Seen(), orderly=orderly):
        put(store, [150])
        until(lambda: again.numbers != [])
    assert again.numbers == [150]


TOPIC_IDS = [queue.queue_id for queue in TOPIC]


@pytest.mark.parametrize("orderly", [False, True])
def test_two_consumers_share_the_queues(
    store: MessageStore, cluster: ClusterAddress, consumers: ExitStack, orderly: bool
) -> None:
    one, other = Seen(), Seen()
    put(store, range(20))
    first = consumers.enter_context(Consumer(cluster, "g", "t", one, orderly=orderly, config=config()))
    until(lambda: len(one.numbers) == 20)
    second = consumers.enter_context(Consumer(cluster, "g", "t", other, orderly=orderly, config=config()))
    shares = ([*TOPIC[:2]], [*TOPIC[2:]])
    until(lambda: sorted(sorted({*TOPIC} & {*each.assigned}) for each in (first, second)) == [*shares])
    put(store, range(20, 60))
    until(lambda: {*one.numbers, *other.numbers} == {*range(60)})
    assert min(len(set(one.numbers)), len(set(other.numbers))) >= 20
    until(lambda: all(has_done(each, TOPIC) == {15} for each in (first, second)))
    before = len(one.numbers) + len(other.numbers)
    first.close()
    until(lambda: {*TOPIC} <= {*second.assigned})
    put(store, range(60, 80))
    until(lambda: {*range(60, 80)} <= {*other.numbers})
    assert len(one.numbers) + len(other.numbers) == before + 20, "a clean close leaves no message to be delivered twice"


def test_failing_message_is_retried_and_becomes_a_dead_letter(store: MessageStore, cluster: ClusterAddress) -> None:
    def fail(message: ReceivedMessage) -> None:
        if message.body == b"7":
            raise ReconsumeLater(delay_level=1)

    put(store, range(20))
    seen = Seen(fail)
    with Consumer(cluster, "g", "t", seen, config=config(max_reconsume_times=1)) as consumer:
        until(lambda: seen.numbers.count(7) == 2)
        until(lambda: "%DLQ%g" in store.topics() and store.max_offset("%DLQ%g", 0) == 1)
        until(lambda: consumer._member.committed(consumer.assigned) == dict(_ends(store)))
    tries = [message for message in seen.messages if message.body == b"7"]
    assert [(message.topic, message.reconsume_times) for message in tries] == [("t", 0), ("t", 1)]
    assert tries[1].properties["ORIGIN_MESSAGE_ID"] == tries[0].msg_id
    assert sorted(seen.numbers) == sorted([*range(20), 7])
    (dead,) = store.get_message("g", "%DLQ%g", 0, 0).messages
    assert dead.body == b"7"


def _ends(store: MessageStore) -> Iterator[tuple[Queue, int]]:
    retried = Queue("%RETRY%g", 0, broker=BrokerConfig.brokerName)
    for queue in (*TOPIC, retried):
        yield queue, store.max_offset(queue.topic, queue.queue_id)


def test_consumer_survives_an_outage_of_the_cluster(
    store: MessageStore, cluster: ClusterAddress, consumers: ExitStack
) -> None:
    held = threading.Event()
    with serve(store, "127.0.0.1:0") as serving:
        put(store, range(20))
        seen = Seen(lambda message: held.wait(60) and None if message.body == b"19" else None)
        there = ClusterAddress((serving.address,))
        consumers.enter_context(Consumer(there, "h", "t", seen, config=config()))
        until(lambda: len(seen.numbers) == 20)
    held.set()
    with serve(store, serving.address):
        put(store, range(20, 40))
        until(lambda: {*seen.numbers} == {*range(40)})
        consumers.close()
        assert there.group("h").committed(TOPIC) == dict.fromkeys(TOPIC, 10)


def test_outage_longer_than_the_timeout_ends_the_consumer(store: MessageStore) -> None:
    with serve(store, "127.0.0.1:0") as serving:
        there = ClusterAddress((serving.address,), patience=0.2, broker_timeout=0.2)
        consumer = Consumer(there, "g", "t", Seen(), config=config())
        until(lambda: {*TOPIC} <= {*consumer.assigned})
    with pytest.raises(Unreachable):
        consumer.wait(PATIENCE)
    with pytest.raises(Unreachable):
        consumer.close()


@pytest.mark.parametrize(("count", "is_served"), [(8, True), (80, True), (8, False)])
def test_consumer_continues_in_a_recreated_topic(store: MessageStore, count: int, is_served: bool) -> None:
    put(store, range(40))
    serving = serve(store, "127.0.0.1:0")
    address = ClusterAddress((serving.address,))
    with Consumer(address, "g", "t", seen := Seen(), config=config()) as consumer:
        until(lambda: len(seen.numbers) == 40)
        until(lambda: serving.held == QUEUES + 1)
        if not is_served:
            serving.close()
        delete_topic(store.path, "t")
        store.create_topic("t", QUEUES)
        put(store, range(100, 100 + count))
        if not is_served:
            serving = serve(store, serving.address)
        until(lambda: len(seen.numbers) >= 40 + count)
        assert sorted(seen.numbers[40:]) == [*range(100, 100 + count)]
        until(lambda: has_done(consumer, TOPIC) == {(40 + count) // QUEUES})
    with closing(serving):
        assert address.group("g").committed(TOPIC) == dict.fromkeys(TOPIC, (40 + count) // QUEUES)


def test_wrong_topics_and_logs_are_refused(cluster: ClusterAddress) -> None:
    with pytest.raises(UnknownTopic, match=r"topic 'x' does not exist\. Existing topics: t"):
        Consumer(cluster, "g", "x", Seen())
    with cluster.open() as log, pytest.raises(InvalidArgument, match="give a Group object"):
        Consumer(log, "g", "t", Seen())
    with cluster.open() as log, Consumer(log, cluster.group("g"), "t", Seen()) as consumer:
        until(lambda: {*TOPIC} <= {*consumer.assigned})


def test_cluster_is_named_by_its_url(store: MessageStore, cluster: ClusterAddress) -> None:
    put(store, range(4))
    with Consumer(f"rocketmq://{cluster.name_servers[0]}", "g", "t", seen := Seen(), config=config()):
        until(lambda: len(seen.numbers) == 4)


@pytest.mark.parametrize("orderly", [False, True])
def test_consumer_reads_two_brokers(tmp_path: Path, consumers: ExitStack, orderly: bool) -> None:
    def fail(message: ReceivedMessage) -> None:
        if message.body in (b"3", b"103") and message.reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)

    stores = [consumers.enter_context(opened(tmp_path / name)) for name in "ab"]
    brokers = [
        consumers.enter_context(serve(each, "127.0.0.1:0", config=BrokerConfig(brokerName=name)))
        for each, name in zip(stores, "ab", strict=True)
    ]
    names = consumers.enter_context(name_server(*(broker.address for broker in brokers)))
    there = ClusterAddress((names,))
    queues = {Queue("t", number, broker=name) for name in "ab" for number in range(QUEUES)}
    seen = Seen(fail)
    one, other = (
        consumers.enter_context(
            Consumer(there, "g", "t", seen, orderly=orderly, config=config(suspend_current_queue_time=0.05))
        )
        for _ in range(2)
    )
    until(lambda: [len(queues & {*each.assigned}) for each in (one, other)] == [QUEUES, QUEUES])
    put(stores[0], range(100))
    put(stores[1], range(100, 200))
    until(lambda: {*seen.numbers} == {*range(200)} and [seen.numbers.count(n) for n in (3, 103)] == [2, 2])
    one.close()
    until(lambda: queues <= {*other.assigned})
    other.close()
    assert there.group("g").committed(queues) == dict.fromkeys(queues, 25)
    assert len(seen.numbers) == 202


@pytest.mark.parametrize("orderly", [False, True])
def test_consumer_continues_while_a_broker_is_missing(
    tmp_path: Path,
    consumers: ExitStack,
    orderly: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The outage outlasts the retry limit of an address. The other broker's queues are read and committed; later its
    own."""
    monkeypatch.setattr(rebalancer, "_PERSIST_SECONDS", 0.0)
    monkeypatch.setattr(rebalancer, "_RENEW_SECONDS", 0.0)
    monkeypatch.setattr(member, "_UNANSWERED_SECONDS", 0.5)
    here, away = (consumers.enter_context(opened(tmp_path / name)) for name in "ab")
    broker, leaving = (
        serve(each, "127.0.0.1:0", config=BrokerConfig(brokerName=name))
        for each, name in zip((here, away), "ab", strict=True)
    )
    consumers.enter_context(broker)
    there = ClusterAddress(
        (consumers.enter_context(name_server(broker.address, leaving.address)),), patience=0.5, broker_timeout=0.5
    )
    queues = [{Queue("t", number, broker=name) for number in range(QUEUES)} for name in "ab"]
    with Consumer(there, "g", "t", seen := Seen(), orderly=orderly, config=config()) as consumer:
        until(lambda: {*consumer.assigned} >= queues[0] | queues[1])
        leaving.close()
        if orderly:
            until(lambda: not queues[1] & {*consumer.assigned})
        until(lambda: sum("tried again" in each or "are committed later" in each for each in caplog.messages) > 3)
        put(here, range(100))
        until(lambda: {*seen.numbers} == {*range(100)})
        until(lambda: DirectoryGroup(here.path, "g").committed(TOPIC_HERE) == dict.fromkeys(TOPIC_HERE, 25))
        put(away, range(100, 200))
        with serve(away, leaving.address, config=BrokerConfig(brokerName="b")):
            until(lambda: {*seen.numbers} == {*range(200)})
            consumer.close()
            assert there.group("g").committed(queues[0] | queues[1]) == dict.fromkeys(queues[0] | queues[1], 25)


def waits_for(go: threading.Event) -> Callable[[ReceivedMessage], None]:
    def listener(message: ReceivedMessage) -> None:
        assert go.wait(PATIENCE)

    return listener


@pytest.mark.parametrize("orderly", [False, True])
def test_pulled_messages_are_delivered_after_a_broker_left(tmp_path: Path, consumers: ExitStack, orderly: bool) -> None:
    """They are of the other broker's queues."""
    here, away = (consumers.enter_context(opened(tmp_path / name)) for name in "ab")
    broker, leaving = (
        serve(each, "127.0.0.1:0", config=BrokerConfig(brokerName=name))
        for each, name in zip((here, away), "ab", strict=True)
    )
    consumers.enter_context(broker)
    names = name_server(broker.address, leaving.address, remembers=False)
    there = ClusterAddress((consumers.enter_context(names),), patience=0.5, broker_timeout=0.5)
    queues = [{Queue("t", number, broker=name) for number in range(QUEUES)} for name in "ab"]
    for first in range(0, 200, 20):
        another_millisecond()
        put(here, range(first, first + 20))
    seen = Seen(waits_for(go := threading.Event()))
    with Consumer(there, "g", "t", seen, orderly=orderly, config=config(consume_thread_max=4)) as consumer:
        until(lambda: {*consumer.assigned} >= queues[0] | queues[1])
        until(lambda: len(seen.numbers) == 4 and broker.held == leaving.held == QUEUES + 1)
        leaving.close()
        until(lambda: not queues[1] & {*consumer.assigned})
        go.set()
        until(lambda: {*seen.numbers} == {*range(200)})
        until(lambda: has_done(consumer, queues[0]) == {50})
    assert len(seen.numbers) == 200
    assert there.group("g").committed(queues[0]) == dict.fromkeys(queues[0], 50)


@pytest.mark.parametrize("orderly", [False, True])
def test_consumer_continues_after_a_broker_lost_messages(tmp_path: Path, orderly: bool) -> None:
    """As after a crash with ASYNC_FLUSH. The surviving messages, those pulled but not delivered, and the new ones all
    arrive."""
    with opened(tmp_path) as store:
        store.create_topic("%RETRY%g", 1)  # without this topic the consumer waits for it
        put(store, range(100))
    shorter = Path(shutil.copytree(store.path, tmp_path / "shorter"))
    seen = Seen(waits_for(go := threading.Event()))
    with MessageStore.open(store.path) as store, serve(store, "127.0.0.1:0") as serving:
        another_millisecond()
        put(store, range(100, 200))
        there = ClusterAddress((serving.address,))
        consumer = Consumer(there, "g", "t", seen, orderly=orderly, config=config(consume_thread_max=4))
        until(lambda: len(seen.numbers) == 4 and serving.held == QUEUES + 1)
        pulled = [queue for name, queue in consumer._rebalancer._mine.items() if name in TOPIC]
    with MessageStore.open(shorter) as store, serve(store, serving.address), consumer:
        put(store, range(1000, 1008))
        until(lambda: all(queue.is_stopped for queue in pulled))
        go.set()
        until(lambda: {*range(100), *range(1000, 1008)} <= {*seen.numbers})


ACCOUNTS = """
accounts:
  - {accessKey: reader, secretKey: 12345678, topicPerms: [t=SUB], groupPerms: [g=SUB, TOOLS_CONSUMER=SUB]}
"""


def test_account_may_consume_in_one_group_only(store: MessageStore, tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    put(store, range(20))
    access = Access.load(tmp_path / "plain_acl.yml")
    with serve(store, "127.0.0.1:0", access=access) as serving:
        there = ClusterAddress((serving.address,), Credentials("reader", "12345678"))
        for orderly in (False, True):
            with Consumer(there, "g", "t", Seen(), orderly=orderly, config=config()) as consumer:
                until(lambda: {*TOPIC} <= {*consumer.assigned})
        with pytest.raises(RequestRefused, match=r"HEART_BEAT: .*SUB of group 'h'"):
            Consumer(there, "h", "t", Seen(), config=config())


def test_foreign_messages_are_not_sent_back(store: MessageStore, cluster: ClusterAddress) -> None:
    put(store, [0])
    (message,) = store.get_message("g", "t", 0, 0).messages
    with cluster.group("g").join({"t": Subscription()}) as member, pytest.raises(InvalidArgument, match="as they were"):
        member.send_back([message])
