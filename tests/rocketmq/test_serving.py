"""RocketMQ's unchanged producer and consumers with a served store."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from store import MessageStore
from store.api.group_protocol import Subscription
from store.api.message_store import delete_topic
from store.cluster.address import ClusterAddress
from store.directory.directory_group import DirectoryGroup
from store.disk.figures import HELD, figures_in
from store.format.layout import UNDECIDED_TOPIC
from store.model.log_protocol import Queue
from tests.rocketmq.harness import HarnessError, Json, RocketMQ
from tests.rocketmq.served import Served, committed, consumed, ends, left, mqadmin, rows, until

pytestmark = pytest.mark.rocketmq


@pytest.mark.parametrize("how", ["sync", "async", "batch"])
def test_producer_sends_in_every_mode(served: Served, topic: str, how: str) -> None:
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


def test_batch_stays_in_one_queue(served: Served, topic: str) -> None:
    served.clients.answers("send", how="batch", topic=topic, messages=50)
    assert len({row["queueId"] for row in rows(served.store, topic)}) == 1


def test_oneway_sends_are_stored(served: Served, topic: str) -> None:
    assert served.clients.answers("send", how="oneway", topic=topic, messages=20) == []
    until(lambda: len(rows(served.store, topic)) == 20)


def test_message_goes_to_the_chosen_queue(served: Served, topic: str) -> None:
    (sent,) = served.clients.answers("send", topic=topic, queue=3)
    assert (sent["queueId"], sent["broker"]) == (3, "broker-a")


def test_compressed_body_and_tag_are_stored(served: Served, topic: str) -> None:
    served.clients.answers("send", topic=topic, bodyBytes=100_000, tags=["paid"])
    (row,) = rows(served.store, topic)
    assert (len(row["body"]), row["tags"]) == (100_000, "paid")
    assert sum(served.store.sizes(topic, row["queueId"], 0, 1)) < 2_000


def test_first_message_creates_its_topic(served: Served) -> None:
    (sent,) = served.clients.answers("send", topic="made_by_a_message")
    assert sent["status"] == "SEND_OK"
    assert served.store.topics()["made_by_a_message"] == 4


def test_refusal_names_its_reason(served: Served, topic: str) -> None:
    with pytest.raises(HarnessError, match=r"CODE: 13 .*no subscription can name one"):
        served.clients.answers("send", topic=topic, tags=["a|b"])


def test_push_consumer_gets_old_and_new_messages(served: Served, topic: str) -> None:
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


def test_group_continues_at_its_offset(served: Served, topic: str) -> None:
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
def test_filters_select_messages(served: Served, topic: str, how: Json) -> None:
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
    left(clients, "first")
    until(lambda: readers() == {"second"})
    left(clients, "second")


def test_failed_messages_are_redelivered(served: Served, topic: str) -> None:
    clients = served.clients
    clients.ask("subscribe", id="failing", group="failing", topic=topic, failures=2, level=1)
    assert next(clients)["kind"] == "subscribed"
    clients.ask("send", topic=topic, messages=3)
    lines = [next(clients) for _ in range(3 + 1 + 9)]
    tries = [line for line in lines if line["kind"] == "consumed"]
    assert sorted(line["reconsumeTimes"] for line in tries) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len({line["keys"] for line in tries}) == 3
    assert {line["topic"] for line in tries} == {topic}
    left(clients, "failing")


def test_repeatedly_failing_message_becomes_a_dead_letter(served: Served, topic: str) -> None:
    store, clients = served
    clients.ask("subscribe", id="hopeless", group="hopeless", topic=topic, failures=99, level=-1)
    assert next(clients)["kind"] == "subscribed"
    clients.ask("send", topic=topic, messages=1)
    until(lambda: store.topics().get("%DLQ%hopeless") == 1 and store.max_offset("%DLQ%hopeless", 0) == 1)
    left(clients, "hopeless")


def test_failing_message_blocks_its_own_queue_only(served: Served, topic: str) -> None:
    clients = served.clients
    clients.answers("send", topic=topic, messages=20)
    clients.ask("subscribe", id="orderly", group="orderly", topic=topic, orderly=True, failures=1)
    assert next(clients)["kind"] == "subscribed"
    tries = [(line["queueId"], line["queueOffset"], line["reconsumeTimes"]) for line in consumed(clients, 40)]
    for queue in range(4):
        seen = [(offset, times) for at, offset, times in tries if at == queue]
        assert seen == [(offset, times) for offset in range(5) for times in (0, 1)]
    left(clients, "orderly")


def test_repeatedly_failing_orderly_message_is_a_dead_letter(served: Served, topic: str) -> None:
    """An orderly consumer does not send it back, but sends it as a new message for its group."""
    store, clients = served
    clients.answers("send", topic=topic, messages=1)
    clients.ask("subscribe", id="gives-up", group="gives-up", topic=topic, orderly=True, failures=99, most=2)
    assert next(clients)["kind"] == "subscribed"
    assert [line["reconsumeTimes"] for line in consumed(clients, 3)] == [0, 1, 2]
    until(lambda: store.topics().get("%DLQ%gives-up") == 1 and store.max_offset("%DLQ%gives-up", 0) == 1)
    left(clients, "gives-up")


def test_delayed_messages_are_delivered_later(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=2, level=1)
    assert ends(store, topic) == [0, 0, 0, 0]
    clients.ask("subscribe", id="later", group="later", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    assert all(line["after"] >= 1000 for line in consumed(clients, 2))
    left(clients, "later")


def test_timed_messages_are_delivered_at_their_time(served: Served, topic: str) -> None:
    store, clients = served
    now = int(time.time() * 1000)
    for own in ({"TIMER_DELIVER_MS": now + 2000}, {"TIMER_DELAY_SEC": 2}, {"TIMER_DELAY_MS": 2000}):
        clients.answers("send", topic=topic, properties={name: str(value) for name, value in own.items()})
    assert ends(store, topic) == [0, 0, 0, 0]
    clients.ask("subscribe", id="timed", group="timed", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    assert all(line["after"] >= 1000 for line in consumed(clients, 3))
    left(clients, "timed")


def test_transactions_are_committed_or_rolled_back(served: Served, topic: str) -> None:
    store, clients = served
    sent = clients.answers("transaction", topic=topic, messages=3, tags=["paid"], bodyBytes=50_000)
    clients.answers("transaction", topic=topic, outcome="ROLLBACK_MESSAGE")
    until(lambda: len(rows(store, topic)) == 3)
    found = rows(store, topic)
    assert {row["msgId"] for row in found} == {line["msgId"] for line in sent}
    assert {(row["tags"], len(row["body"])) for row in found} == {("paid", 50_000)}
    assert {row["bornHost"].split(":")[0] for row in found} == {"127.0.0.1"}


def test_undecided_transactions_are_checked_with_the_producer(served: Served, topic: str) -> None:
    """The producer is shown each message as it would be committed, and then decides."""
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


def test_transaction_that_stays_undecided_is_given_up(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("transaction", topic=topic, outcome="UNKNOW")
    assert [next(clients)["kind"] for _ in range(2)] == ["checked", "checked"]
    until(lambda: store.topics().get(UNDECIDED_TOPIC) == 1 and store.max_offset(UNDECIDED_TOPIC, 0) == 1)
    assert rows(store, topic) == []


def test_broadcasting_consumers_all_get_everything(served: Served, topic: str) -> None:
    clients = served.clients
    clients.answers("send", topic=topic, messages=8)
    for name in ("here", "there"):
        clients.ask("subscribe", id=name, group="broadcast", topic=topic, broadcasting=True)
        assert next(clients)["kind"] == "subscribed"
        assert {line["id"] for line in consumed(clients, 8)} == {name}
    clients.ask("send", topic=topic, messages=4)
    lines = [line for line in (next(clients) for _ in range(4 + 1 + 8)) if line["kind"] == "consumed"]
    assert sorted(line["id"] for line in lines) == ["here"] * 4 + ["there"] * 4
    assert committed(served.store, "broadcast", topic) == [None] * 4, "each keeps its own offsets"
    for name in ("here", "there"):
        left(clients, name)


def test_pull_consumer_gets_all_and_continues(served: Served, topic: str) -> None:
    clients = served.clients
    for _ in range(2):
        clients.answers("send", topic=topic, messages=12, tags=["paid", "open"])
        clients.ask("poll", group="pulling", topic=topic, expression="paid", messages=6)
        assert [line["tags"] for line in consumed(clients, 6)] == ["paid"] * 6
        assert next(clients)["kind"] == "done"


def test_client_waits_until_members_beside_the_server_left(served: Served, topic: str) -> None:
    """The client joins with its next heartbeat (every 30 s)."""
    store, clients = served
    with DirectoryGroup(store.path, "beside").join({topic: Subscription()}):
        clients.ask("subscribe", id="second", group="beside", topic=topic)
        assert next(clients)["kind"] == "subscribed"
        assert len(clients.answers("send", topic=topic, messages=8)) == 8
        with pytest.raises(HarnessError, match=r"CODE: 206|not online"):
            mqadmin(clients, "consumerConnection", "-g", "beside")
    assert len({line["keys"] for line in consumed(clients, 8)}) == 8
    left(clients, "second")


def held(store: MessageStore, topic: str) -> int:
    return sum(each.counts[0] for _, each in figures_in(Path(store.path)) if (each.name, each.topic) == (HELD, topic))


@pytest.mark.parametrize("is_told", [False, True])
def test_clients_continue_in_a_recreated_topic(rocketmq: RocketMQ, served: Served, topic: str, is_told: bool) -> None:
    """is_told: the clients got a notification of the deletion. Unlike RocketMQ's broker, the server continues at the
    old offsets, so the clients do not go back."""
    if rocketmq.line < "5":
        pytest.skip("RocketMQ 4's client waits 10 seconds before it goes back")
    store, clients = served
    groups: dict[str, Json] = {"anew": {}, "anew-in-order": {"orderly": True}}
    for group, how in groups.items():
        clients.ask("subscribe", id=group, group=group, topic=topic, **how)
        assert next(clients)["kind"] == "subscribed"
    for count in (50, 80):
        lines = clients.answers("send", topic=topic, messages=count)
        found = [line for line in lines if line["kind"] == "consumed"]
        found += consumed(clients, 2 * count - len(found))
        assert Counter(Counter((line["id"], line["keys"]) for line in found).values()) == {1: 2 * count}
        until(lambda: held(store, topic) == 8)
        if count == 50:
            delete_topic(store.path, topic)
            until(lambda: not is_told or held(store, topic) == 0)
            store.create_topic(topic, 4)
    for group in groups:
        left(clients, group)
    there = ClusterAddress((f"127.0.0.1:{store.config.listenPort}",))
    queues = [Queue(topic, queue, broker="broker-a") for queue in range(4)]
    ends = {queue: store.max_offset(topic, queue.queue_id) for queue in queues}
    until(lambda: all(there.group(group).committed(queues) == ends for group in groups))
    delete_topic(store.path, topic)
