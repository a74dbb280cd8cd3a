"""RocketMQ's unchanged admin tool with a served store."""

from __future__ import annotations

import time

import pytest

from store.disk.consumer_offsets import ConsumerOffsets
from store.format.stored_message import offset_msg_id
from tests.rocketmq.harness import HarnessError, Json, RocketMQ
from tests.rocketmq.served import Served, committed, consumed, ends, left, mqadmin, rows, rows_of, until

pytestmark = pytest.mark.rocketmq


def test_admin_tool_shows_the_progress_of_a_group(served: Served, topic: str) -> None:
    clients = served.clients
    clients.answers("send", topic=topic, messages=8)
    clients.ask("subscribe", id="watched", group="watched", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    consumed(clients, 8)

    def progress() -> list[Json]:
        try:
            return clients.answers("progress", group="watched")
        except HarnessError as error:
            if "CODE: 206" not in str(error):
                raise
            return []

    until(lambda: sum(line["consumer"] for line in progress()[:-1] if line["topic"] == topic) == 8)
    *queues, last = progress()
    assert [id.rpartition("@")[2] for id in last["clients"]] == ["watched"]
    assert sorted(line["broker"] for line in queues if line["topic"] == topic) == [2, 2, 2, 2]
    left(clients, "watched")


def test_admin_tool_creates_and_lists_topics(served: Served) -> None:
    store, clients = served
    clients.answers("createTopic", topic="made_by_admin", queues=6)
    assert store.topics()["made_by_admin"] == 6
    clients.ask("topics")
    assert set(next(clients)["names"]) >= {"made_by_admin"}
    clients.ask("cluster")
    assert next(clients)["brokers"] == ["broker-a"]


def test_admin_tool_shows_offsets(served: Served, topic: str) -> None:
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


def test_admin_tool_finds_messages(served: Served, topic: str) -> None:
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


def test_mqadmin_shows_brokers_topics_and_clients(served: Served, topic: str) -> None:
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
    settings = ConsumerOffsets(store.path).settings.of("settled") or {}
    assert (settings["retryMaxTimes"], settings["retryQueueNums"], settings["consumeEnable"]) == (5, 2, True)
    assert "success" in mqadmin(clients, "deleteSubGroup", "-b", address, "-g", "settled", "-r", "true")
    assert ConsumerOffsets(store.path).settings.of("settled") is None


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


def test_mqadmin_resets_an_inactive_group(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=8)
    store.commit_offsets("away", topic, dict.fromkeys(range(4), 2))
    mqadmin(clients, "updateSubGroup", "-c", "DefaultCluster", "-g", "away")
    mqadmin(clients, "resetOffsetByTime", "-g", "away", "-t", topic, "-s", "0")
    assert committed(store, "away", topic) == [0, 0, 0, 0]
    mqadmin(clients, "skipAccumulatedMessage", "-g", "away", "-t", topic)
    assert committed(store, "away", topic) == [2, 2, 2, 2]


def test_mqadmin_resets_an_active_group(served: Served, topic: str) -> None:
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


def test_mqadmin_deletes_a_topic_in_use(served: Served, topic: str) -> None:
    """Readers no longer see its messages; the next message recreates it, after the old end."""
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
    assert sent["queueOffset"] == 2
    assert len(rows(store, topic)) == 1
    with pytest.raises(HarnessError, match="no_such_topic"):
        mqadmin(clients, "deleteTopic", "-c", "DefaultCluster", "-t", "no_such_topic")


def test_mqadmin_shows_single_queues_and_groups(served: Served, topic: str) -> None:
    store, clients = served
    clients.answers("send", topic=topic, messages=8)
    clients.ask("subscribe", id="original", group="original", topic=topic)
    assert next(clients)["kind"] == "subscribed"
    consumed(clients, 8)
    left(clients, "original")
    until(lambda: committed(store, "original", topic) == [2, 2, 2, 2])
    assert ["DefaultCluster"] in rows_of(mqadmin(clients, "topicClusterList", "-t", topic))
    printed = mqadmin(clients, "printMsgByQueue", "-t", topic, "-a", "broker-a", "-i", "2", "-p", "true")
    assert printed.count("MSGID: ") == store.max_offset(topic, 2) == 2
    sent = [
        row[2]
        for row in rows_of(mqadmin(clients, "checkMsgSendRT", "-t", topic, "-a", "3", "-s", "64"))
        if len(row) == 4
    ]
    assert sent[-2:] == ["true", "true"]
    mqadmin(clients, "cloneGroupOffset", "-s", "original", "-d", "clone", "-t", topic)
    until(lambda: committed(store, "clone", topic) == [2, 2, 2, 2])
