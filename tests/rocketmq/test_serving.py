"""RocketMQ's own producer, push consumer and admin tool, unchanged, against a store that is served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from store import MessageStore, StoreConfig
from store.files.consumer_offsets import ConsumerOffsets
from store.format.layout import UNDECIDED_TOPIC
from store.format.stored_message import offset_msg_id
from store.remoting.serving import serve
from store.remoting.transactions import Checks
from tests.rocketmq.harness import Clients, HarnessError, Json, RocketMQ, free_ports

pytestmark = pytest.mark.rocketmq

SECONDS = 120.0  # as long as a busy machine may take


class Served(NamedTuple):
    """A store that is served, and RocketMQ's clients of it."""

    store: MessageStore
    clients: Clients


@pytest.fixture(scope="module")
def served(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port = free_ports()["brokerPort"]  # which ids of messages name
    config = StoreConfig(mappedFileSizeCommitLog=1 << 22, mappedFileSizeConsumeQueue=20_000, listenPort=port)
    with (
        MessageStore.open(tmp_path_factory.mktemp("served") / "mq", config=config) as store,
        serve(store, f"127.0.0.1:{port}", checks=Checks(interval_seconds=0.5, immunity_seconds=1, most=2)) as serving,
        rocketmq.clients(serving.address) as clients,
    ):
        yield Served(store, clients)


@pytest.fixture
def topic(request: pytest.FixtureRequest, served: Served) -> str:
    """A topic of this test's own, with four queues."""
    name = request.node.originalname.removeprefix("test_")[:60]
    if name not in served.store.topics():
        served.store.create_topic(name, 4)
    return name


def rows(store: MessageStore, topic: str) -> list[Json]:
    columns = ("body", "tags", "keys", "properties", "queueId", "queueOffset", "msgId", "bornHost")
    return [row for batch in store.to_arrow(topic, columns) for row in batch.to_pylist()]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def consumed(clients: Clients, count: int) -> list[Json]:
    """So many messages as consumers get them."""
    found: list[Json] = []
    while len(found) < count:
        line = next(clients)
        assert line["kind"] == "consumed", line
        found.append(line)
    return found


@pytest.mark.parametrize("how", ["sync", "async", "batch"])
def test_sends(served: Served, topic: str, how: str) -> None:
    before = {row["msgId"] for row in rows(served.store, topic)}
    sent = served.clients.answers("send", how=how, topic=topic, messages=20)
    new = [row for row in rows(served.store, topic) if row["msgId"] not in before]
    assert len(new) == 20
    assert {line["status"] for line in sent} == {"SEND_OK"}
    assert {id for line in sent for id in line["msgId"].split(",")} == {row["msgId"] for row in new}
    offsets = {(line["queueId"], line["queueOffset"]) for line in sent}
    assert offsets <= {(row["queueId"], row["queueOffset"]) for row in new}
    for row in new:
        number = dict(row["properties"])["number"]
        assert (row["body"], row["keys"]) == (number.encode(), f"key-{number}")
        assert row["bornHost"].startswith("127.0.0.1:")
    ids = [id for line in sent for id in line["offsetMsgId"].split(",")]
    assert {served.store.message_by_id(id).body for id in ids} == {row["body"] for row in new}


def test_a_batch_stays_together(served: Served, topic: str) -> None:
    served.clients.answers("send", how="batch", topic=topic, messages=50)
    assert len({row["queueId"] for row in rows(served.store, topic)}) == 1


def test_sends_that_nobody_answers(served: Served, topic: str) -> None:
    assert served.clients.answers("send", how="oneway", topic=topic, messages=20) == []
    until(lambda: len(rows(served.store, topic)) == 20)


def test_a_queue_that_is_named(served: Served, topic: str) -> None:
    (sent,) = served.clients.answers("send", topic=topic, queue=3)
    assert (sent["queueId"], sent["broker"]) == (3, "broker-a")


def test_a_compressed_body_and_a_tag(served: Served, topic: str) -> None:
    served.clients.answers("send", topic=topic, bodyBytes=100_000, tags=["paid"])
    (row,) = rows(served.store, topic)
    assert (len(row["body"]), row["tags"]) == (100_000, "paid")
    assert sum(served.store.sizes(topic, row["queueId"], 0, 1)) < 2_000


def test_a_topic_is_made_by_its_first_message(served: Served) -> None:
    (sent,) = served.clients.answers("send", topic="made_by_a_message")
    assert sent["status"] == "SEND_OK"
    assert served.store.topics()["made_by_a_message"] == 4


def test_a_message_that_is_refused_is_refused_in_words(served: Served, topic: str) -> None:
    with pytest.raises(HarnessError, match=r"CODE: 13 .*no subscription could name it"):
        served.clients.answers("send", topic=topic, tags=["a|b"])


def test_a_push_consumer_gets_what_is_there_and_what_comes(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=40)
    clients.ask("subscribe", id="push", group="pushed", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    first = consumed(clients, 40)
    assert len({line["keys"] for line in first}) == 40
    assert {line["bornHost"] for line in first} == {"127.0.0.1"}
    clients.ask("send", topic=topic, messages=40)
    later = [next(clients) for _ in range(81)]
    kinds = [line["kind"] for line in later]
    assert (kinds.count("sent"), kinds.count("consumed"), kinds.count("done")) == (40, 40, 1)
    clients.ask("leave", id="push")
    assert next(clients)["kind"] == "left"
    until(lambda: committed(store, "pushed", topic) == ends(store, topic))


def committed(store: MessageStore, group: str, topic: str) -> list[int | None]:
    return [store.consumer_offset(group, topic, queue) for queue in range(store.topics()[topic])]


def ends(store: MessageStore, topic: str) -> list[int | None]:
    return [store.max_offset(topic, queue) for queue in range(store.topics()[topic])]


def test_a_group_goes_on_where_it_was(served: Served, topic: str) -> None:
    store, clients = served
    for _ in range(2):
        clients.answers("send", topic=topic, messages=12)
        clients.ask("subscribe", id="again", group="going-on", topic=topic)
        assert next(clients)["kind"] == "subscribed"
        consumed(clients, 12)
        clients.ask("leave", id="again")
        assert next(clients)["kind"] == "left"
        until(lambda: committed(store, "going-on", topic) == ends(store, topic))


@pytest.mark.parametrize("how", [{"expression": "paid || shipped"}, {"sql": "number >= 0 AND TAGS <> 'open'"}])
def test_a_filter(served: Served, topic: str, how: Json) -> None:
    clients = served.clients
    if not rows(served.store, topic):
        clients.answers("send", topic=topic, messages=30, tags=["paid", "open", "shipped"])
    group = f"filtered-{next(iter(how))}"
    clients.ask("subscribe", id=group, group=group, topic=topic, **how)
    assert next(clients)["kind"] == "subscribed"
    assert {line["tags"] for line in consumed(clients, 20)} == {"paid", "shipped"}
    clients.ask("leave", id=group)
    assert next(clients)["kind"] == "left"


def test_two_members_share_the_queues_until_one_leaves(served: Served, topic: str) -> None:
    clients = served.clients
    for name in ("first", "second"):
        clients.ask("subscribe", id=name, group="shared", topic=topic)
        assert next(clients)["kind"] == "subscribed"

    def readers() -> set[str]:
        clients.ask("send", topic=topic, messages=8)
        lines = [next(clients) for _ in range(17)]
        return {line["id"] for line in lines if line["kind"] == "consumed"}

    until(lambda: readers() == {"first", "second"})
    clients.ask("leave", id="first")
    assert next(clients)["kind"] == "left"
    until(lambda: readers() == {"second"})
    clients.ask("leave", id="second")
    assert next(clients)["kind"] == "left"


def left(clients: Clients, name: str) -> None:
    """Wait until that consumer has left."""
    clients.ask("leave", id=name)
    for line in clients:
        if line["kind"] == "left":
            return


def test_messages_that_fail_come_again(served: Served, topic: str) -> None:
    clients = served.clients
    clients.ask("subscribe", id="failing", group="failing", topic=topic, failures=2, level=1)
    assert next(clients)["kind"] == "subscribed"
    clients.ask("send", topic=topic, messages=3)
    lines = [next(clients) for _ in range(3 + 1 + 9)]
    tries = [line for line in lines if line["kind"] == "consumed"]
    assert sorted(line["reconsumeTimes"] for line in tries) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({line["keys"] for line in tries}) == 3
    assert {line["topic"] for line in tries} == {topic}  # as RocketMQ's client shows them
    left(clients, "failing")


def test_a_message_that_always_fails_is_dead(served: Served, topic: str) -> None:
    store, clients = served
    clients.ask("subscribe", id="hopeless", group="hopeless", topic=topic, failures=99, level=-1)
    assert next(clients)["kind"] == "subscribed"
    clients.ask("send", topic=topic, messages=1)
    until(lambda: store.topics().get("%DLQ%hopeless") == 1 and store.max_offset("%DLQ%hopeless", 0) == 1)
    left(clients, "hopeless")


def test_in_order(served: Served, topic: str) -> None:
    """A message that fails holds up its queue, and no other."""
    clients = served.clients
    clients.answers("send", topic=topic, messages=20)
    clients.ask("subscribe", id="orderly", group="orderly", topic=topic, orderly=True, failures=1)
    assert next(clients)["kind"] == "subscribed"
    tries = [(line["queueId"], line["queueOffset"], line["reconsumeTimes"]) for line in consumed(clients, 40)]
    for queue in range(4):
        seen = [(offset, times) for at, offset, times in tries if at == queue]
        assert seen == [(offset, times) for offset in range(5) for times in (0, 1)]
    left(clients, "orderly")


def test_messages_that_are_delivered_later(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=2, level=1)
    assert ends(store, topic) == [0, 0, 0, 0]
    clients.ask("subscribe", id="later", group="later", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    assert all(line["after"] >= 1000 for line in consumed(clients, 2))
    left(clients, "later")


def test_messages_that_are_delivered_at_a_time(served: Served, topic: str) -> None:
    store, clients = served
    now = int(time.time() * 1000)
    for own in ({"TIMER_DELIVER_MS": now + 2000}, {"TIMER_DELAY_SEC": 2}, {"TIMER_DELAY_MS": 2000}):
        clients.answers("send", topic=topic, properties={name: str(value) for name, value in own.items()})
    assert ends(store, topic) == [0, 0, 0, 0]
    clients.ask("subscribe", id="timed", group="timed", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    assert all(line["after"] >= 1000 for line in consumed(clients, 3))
    left(clients, "timed")


def test_transactions_that_are_ended_at_once(served: Served, topic: str) -> None:
    store, clients = served
    sent = clients.answers("transaction", topic=topic, messages=3, tags=["paid"], bodyBytes=50_000)
    clients.answers("transaction", topic=topic, outcome="ROLLBACK_MESSAGE")
    until(lambda: len(rows(store, topic)) == 3)
    found = rows(store, topic)
    assert {row["msgId"] for row in found} == {line["msgId"] for line in sent}
    assert {(row["tags"], len(row["body"])) for row in found} == {("paid", 50_000)}
    assert {row["bornHost"].split(":")[0] for row in found} == {"127.0.0.1"}


def test_transactions_that_are_asked_for(served: Served, topic: str) -> None:
    """Their producer is shown each message as it would be committed, and decides then."""
    store, clients = served
    shown: dict[str, Json] = {}
    for checked in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
        (sent,) = clients.answers("transaction", topic=topic, outcome="UNKNOW", checked=checked, bodyBytes=5000)
        line = next(clients)
        shown[checked] = line
        assert (line["kind"], line["topic"], line["queueId"]) == ("checked", topic, sent["queueId"])
        assert (line["transactionId"], len(line["body"])) == (sent["msgId"], 6668)
    until(lambda: len(rows(store, topic)) == 1)
    (row,) = rows(store, topic)
    assert row["keys"] == shown["COMMIT_MESSAGE"]["keys"]


def test_a_transaction_that_nobody_knows_of_is_given_up(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("transaction", topic=topic, outcome="UNKNOW")
    assert [next(clients)["kind"] for _ in range(2)] == ["checked", "checked"]
    until(lambda: store.topics().get(UNDECIDED_TOPIC) == 1 and store.max_offset(UNDECIDED_TOPIC, 0) == 1)
    assert rows(store, topic) == []


def test_the_admin_tool_sees_how_far_a_group_is(served: Served, topic: str) -> None:
    clients = served.clients
    clients.answers("send", topic=topic, messages=8)
    clients.ask("subscribe", id="watched", group="watched", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    consumed(clients, 8)

    def progress() -> list[Json]:
        return clients.answers("progress", group="watched")

    until(lambda: sum(line["consumer"] for line in progress()[:-1] if line["topic"] == topic) == 8)
    *queues, last = progress()
    assert [id.rpartition("@")[2] for id in last["clients"]] == ["watched"]
    assert sorted(line["broker"] for line in queues if line["topic"] == topic) == [2, 2, 2, 2]
    left(clients, "watched")


def test_the_admin_tool_makes_topics_and_lists_them(served: Served) -> None:
    store, clients = served
    clients.answers("createTopic", topic="made_by_admin", queues=6)
    assert store.topics()["made_by_admin"] == 6
    clients.ask("topics")
    assert set(next(clients)["names"]) >= {"made_by_admin"}
    clients.ask("cluster")
    assert next(clients)["brokers"] == ["broker-a"]


def test_the_admin_tool_sees_offsets(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=10)
    found = {line["queueId"]: line for line in clients.answers("offsets", topic=topic)}
    assert [found[queue]["max"] for queue in range(4)] == ends(store, topic)
    assert {(line["min"], line["at"]) for line in found.values()} == {(0, 0)}
    later = clients.answers("offsets", topic=topic, time=int(time.time() * 1000) + 100_000)
    assert {line["queueId"]: line["at"] for line in later} == {line["queueId"]: line["max"] for line in later}
    stats = {line["queueId"]: line for line in clients.answers("stats", topic=topic)}
    assert [stats[queue]["max"] for queue in range(4)] == ends(store, topic)
    assert all(line["time"] > 0 for line in stats.values() if line["max"])


def test_the_admin_tool_finds_messages(served: Served, topic: str) -> None:
    clients = served.clients
    sent = clients.answers("send", topic=topic, messages=5)
    where = [(line["queueId"], line["queueOffset"]) for line in sent]
    keys = {(row["queueId"], row["queueOffset"]): row["keys"] for row in rows(served.store, topic)}
    for line, at in zip(sent, where, strict=True):
        key = keys[at]
        (found,) = clients.answers("find", topic=topic, key=key)
        assert (found["queueId"], found["queueOffset"], found["msgId"]) == (*at, line["msgId"])
        (found,) = clients.answers("find", topic=topic, id=line["msgId"])
        assert (found["queueId"], found["queueOffset"], found["keys"]) == (*at, key)


def mqadmin(clients: Clients, *words: str) -> str:
    """What a command of mqadmin writes."""
    clients.ask("mqadmin", words=words)
    for line in clients:
        if line["kind"] == "failed":
            raise HarnessError(f"{words}: {line['why']}")
        if line["kind"] == "written":
            return str(line["text"])
    raise AssertionError


def rows_of(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines() if line.strip()]


def test_mqadmin_looks_at_broker_topics_and_clients(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=4)
    clients.ask("subscribe", id="seen", group="seen", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    consumed(clients, 4)
    address = f"127.0.0.1:{store.config.listenPort}"
    assert ["DefaultCluster", "broker-a", "0", address] in [row[:4] for row in rows_of(mqadmin(clients, "clusterList"))]
    status = dict(row[::2] for row in rows_of(mqadmin(clients, "brokerStatus", "-b", address)) if len(row) == 3)
    assert 0 < int(status["commitLogMaxOffset"]) <= store.confirm_offset
    settings = rows_of(mqadmin(clients, "getBrokerConfig", "-b", address))
    assert ["listenPort", "=", str(store.config.listenPort)] in settings
    assert {(topic,), ("%RETRY%seen",)} <= {tuple(row) for row in rows_of(mqadmin(clients, "topicList"))}
    assert '"readQueueNums":4' in mqadmin(clients, "topicRoute", "-t", topic)
    assert len([row for row in rows_of(mqadmin(clients, "topicStatus", "-t", topic)) if row[0] == "broker-a"]) == 4
    producers = mqadmin(clients, "producerConnection", "-g", "remote-producers", "-t", topic)
    assert "127.0.0.1:" in producers
    assert "JAVA" in producers
    assert "seen" in mqadmin(clients, "consumerConnection", "-g", "seen")
    until(lambda: committed(store, "seen", topic) == ends(store, topic))
    assert "Diff Total: 0" in mqadmin(clients, "consumerProgress", "-g", "seen")
    everybody = [row[:2] for row in rows_of(mqadmin(clients, "consumerProgress"))]
    assert ["seen", "1"] in everybody
    of_broker = [row[:4] for row in rows_of(mqadmin(clients, "brokerConsumeStats", "-b", address))]
    assert [topic, "seen", "broker-a", "0"] in of_broker
    assert [topic, "seen", "0"] in [row[:3] for row in rows_of(mqadmin(clients, "statsAll", "-t", topic))]
    left(clients, "seen")


def test_mqadmin_changes_groups(served: Served) -> None:
    store, clients = served
    address = f"127.0.0.1:{store.config.listenPort}"
    mqadmin(clients, "updateSubGroup", "-c", "DefaultCluster", "-g", "settled", "-r", "5", "-q", "2")
    settings = ConsumerOffsets(store.path).settings("settled") or {}
    assert (settings["retryMaxTimes"], settings["retryQueueNums"], settings["consumeEnable"]) == (5, 2, True)
    assert "success" in mqadmin(clients, "deleteSubGroup", "-b", address, "-g", "settled", "-r", "true")
    assert ConsumerOffsets(store.path).settings("settled") is None


def test_mqadmin_lets_a_group_consume_no_more_and_again(served: Served, topic: str) -> None:
    store, clients = served
    group = ("updateSubGroup", "-b", f"127.0.0.1:{store.config.listenPort}", "-g", "enabled")
    mqadmin(clients, *group, "-s", "false")
    clients.ask("subscribe", id="enabled", group="enabled", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    assert len(clients.answers("send", topic=topic, messages=8)) == 8
    assert ["consumeEnable", "=", "false"] in rows_of(mqadmin(clients, "getConsumerConfig", "-g", "enabled"))
    mqadmin(clients, *group, "-s", "true")
    assert len({line["keys"] for line in consumed(clients, 8)}) == 8
    left(clients, "enabled")


def test_mqadmin_finds_sends_and_reads_messages(rocketmq: RocketMQ, served: Served, topic: str) -> None:
    store, clients = served
    assert "SEND_OK" in mqadmin(clients, "sendMessage", "-t", topic, "-p", "by mqadmin", "-k", "own", "-c", "paid")
    (row,) = rows(store, topic)
    assert (row["body"], row["keys"], row["tags"]) == (b"by mqadmin", "own", "paid")
    queue = ["-b", "broker-a", "-i", str(row["queueId"]), "-o", "0"]
    offset_id = offset_msg_id(*store.config.store_host, store.query(topic, "own")[0].physical_offset)
    for words in (
        ["queryMsgById", "-i", offset_id, *(["-t", topic] if rocketmq.line >= "5" else [])],
        ["queryMsgByUniqueKey", "-t", topic, "-i", row["msgId"]],
        ["queryMsgByOffset", "-t", topic, *queue],
    ):
        assert ["Keys:", "[own]"] in rows_of(mqadmin(clients, *words)), words
    assert [row["msgId"], str(row["queueId"]), "0"] in [
        found[:3] for found in rows_of(mqadmin(clients, "queryMsgByKey", "-t", topic, "-k", "own"))
    ]
    assert "BODY: by mqadmin" in mqadmin(clients, "consumeMessage", "-t", topic, *queue)
    assert "BODY: by mqadmin" in mqadmin(clients, "printMsg", "-t", topic)


def test_mqadmin_resets_a_group_that_is_away(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=8)
    store.commit_offsets("away", topic, dict.fromkeys(range(4), 2))
    mqadmin(clients, "updateSubGroup", "-c", "DefaultCluster", "-g", "away")
    mqadmin(clients, "resetOffsetByTime", "-g", "away", "-t", topic, "-s", "0")
    assert committed(store, "away", topic) == [0, 0, 0, 0]
    mqadmin(clients, "skipAccumulatedMessage", "-g", "away", "-t", topic)
    assert committed(store, "away", topic) == [2, 2, 2, 2]


def test_mqadmin_resets_a_group_that_reads(served: Served, topic: str) -> None:
    """Its members are told, and get the messages again."""
    clients = served.clients
    clients.answers("send", topic=topic, messages=8)
    clients.ask("subscribe", id="reset", group="reset", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    first = {line["keys"] for line in consumed(clients, 8)}
    clients.ask("mqadmin", words=["resetOffsetByTime", "-g", "reset", "-t", topic, "-s", "0"])
    again = set()
    while again != first:
        line = next(clients)
        again |= {line["keys"]} if line["kind"] == "consumed" else set()
    left(clients, "reset")


def test_mqadmin_deletes_a_topic_that_is_in_use(served: Served, topic: str) -> None:
    """Its messages are gone for who reads it; the next one makes it anew, at offset 0."""
    store, clients = served
    clients.answers("send", topic=topic, messages=8)
    clients.ask("subscribe", id="bereft", group="bereft", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    consumed(clients, 8)
    until(lambda: committed(store, "bereft", topic) == [2, 2, 2, 2])
    assert "success" in mqadmin(clients, "deleteTopic", "-c", "DefaultCluster", "-t", topic)
    assert topic not in store.topics()
    assert [topic] not in rows_of(mqadmin(clients, "topicList"))
    left(clients, "bereft")
    (sent,) = clients.answers("send", topic=topic)
    assert sent["queueOffset"] == 0
    assert len(rows(store, topic)) == 1
    with pytest.raises(HarnessError, match="no_such_topic"):
        mqadmin(clients, "deleteTopic", "-c", "DefaultCluster", "-t", "no_such_topic")
