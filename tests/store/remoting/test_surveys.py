"""Requests whose cost grows with the store do not block others, and do not write files each."""

from __future__ import annotations

import json
from concurrent.futures import wait
from contextlib import ExitStack

from store import Message, MessageStore
from store.model.codes import RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.headers import CommitOffset, Topic, TopicQueue
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker, send

WIDE = 8192


def test_surveys_do_not_block_other_requests(store: MessageStore, broker: Broker) -> None:
    store.create_topic("wide", WIDE)
    with ExitStack() as clients:
        others = [Broker(broker.serving, clients.enter_context(Client(timeout=60))) for _ in range(8)]
        asked = [other.begin(RequestCode.GET_TOPIC_STATS_INFO, Topic("wide")) for other in others]
        wait(asked, return_when="FIRST_COMPLETED")  # so that all worker threads are busy
        assert broker.ask(RequestCode.GET_MAX_OFFSET, TopicQueue("orders", 0)).code == ResponseCode.SUCCESS
        assert sum(each.done() for each in asked) < len(asked) - 2
        assert {each.result().code for each in asked} == {ResponseCode.SUCCESS}


def test_commits_of_many_groups_share_writes(store: MessageStore, broker: Broker) -> None:
    store.put(Message("orders", b"x", queue_id=0))
    commits = [CommitOffset(f"group-{n}", "orders", 0, 1) for n in range(300)]
    answers = [broker.begin(RequestCode.UPDATE_CONSUMER_OFFSET, commit) for commit in commits]
    assert {each.result().code for each in answers} == {ResponseCode.SUCCESS}
    written = json.loads((store.path / "config/consumerOffset.json").read_text())
    assert len(written["offsetTable"]) == 300
    assert written["dataVersion"]["counter"] < 300


def test_number_of_invented_groups_is_limited(store: MessageStore, client: Client) -> None:
    """A group with settings always has room."""
    store.put(Message("orders", b"x", queue_id=0))
    path = store.path / "config/consumerOffset.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"offsetTable": {f"orders@made-up-{n}": {"0": 1} for n in range(4095)}}))
    with serve(store, "127.0.0.1:0") as serving:
        broker = Broker(serving, client)
        broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName": "readers"}')
        for group in ("a", "b", "c", "readers", "made-up-7"):
            broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset(group, "orders", 0, 0))
    kept = json.loads(path.read_text())["offsetTable"]
    assert len(kept) == 4097
    assert kept["orders@a"] == kept["orders@readers"] == kept["orders@made-up-7"] == {"0": 0}


def test_number_of_new_groups_of_a_heartbeat_is_limited(store: MessageStore, broker: Broker) -> None:
    groups = [f"group-{n}" for n in range(40)]
    subscription = {"topic": "orders", "subString": "*"}
    consumers = [{"groupName": group, "subscriptionDataSet": [subscription]} for group in groups]
    body = json.dumps({"clientID": "a", "consumerDataSet": consumers}).encode()
    for created in (16, 32):
        assert broker.ask(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SYSTEM_BUSY
        assert sum(topic.startswith("%RETRY%") for topic in store.topics()) == created
    assert broker.ask(RequestCode.HEART_BEAT, body=body).code == ResponseCode.SUCCESS
    assert {f"%RETRY%{group}" for group in groups} <= store.topics().keys()


def test_new_topics_do_not_block_senders(store: MessageStore, broker: Broker) -> None:
    made = [broker.begin(RequestCode.SEND_MESSAGE_V2, send(topic=f"made-{n}"), b"x") for n in range(400)]
    with Client(timeout=60) as other:
        assert Broker(broker.serving, other).send(b"x").code == ResponseCode.SUCCESS
        assert sum(each.done() for each in made) < 200
    assert {each.result().code for each in made} == {ResponseCode.SUCCESS}
    assert sum(topic.startswith("made-") for topic in store.topics()) == 400


def test_oldest_message_is_found_in_the_log(store: MessageStore, broker: Broker) -> None:
    def earliest() -> int:
        answer = broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return int(json.loads(bytes(answer.body))["table"]["earliestMessageTimeStamp"])

    assert earliest() == -1
    store.put(Message("orders", b"x", queue_id=1))
    assert earliest() == store.get_message("g", "orders", 1, 0).messages[0].store_timestamp
