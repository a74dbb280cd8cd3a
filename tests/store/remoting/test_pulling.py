from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from store import Message, MessageStore
from store.api.message_store import delete_topic
from store.disk.figures import HELD, figures_in
from store.format.stored_message import decode_record
from store.model.codes import RequestCode, ResponseCode
from store.remoting.client import Client
from store.remoting.headers import Pulled, PullMessage
from tests.store.remoting.broker import SUBSCRIPTION, SUSPEND, Broker
from tests.waiting import until


def put(store: MessageStore, count: int, tags: str | None = None) -> None:
    store.put_many([Message("orders", b"%d" % n, tags=tags, queue_id=0) for n in range(count)])


def bodies(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(decode_record(data[at : at + size], at).body)
        at += size
    return found


@pytest.mark.parametrize(
    ("offset", "queue_id", "code", "next_begin"),
    [
        (0, 0, ResponseCode.SUCCESS, 32),
        (30, 0, ResponseCode.SUCCESS, 40),
        (40, 0, ResponseCode.PULL_NOT_FOUND, 40),
        (99, 0, ResponseCode.PULL_OFFSET_MOVED, 40),
        (-1, 0, ResponseCode.PULL_OFFSET_MOVED, 0),
        (0, 1, ResponseCode.PULL_NOT_FOUND, 0),
        (0, 2, ResponseCode.INVALID_PARAMETER, 0),
    ],
)
def test_pull_is_answered_at_once(
    broker: Broker, store: MessageStore, offset: int, queue_id: int, code: int, next_begin: int
) -> None:
    put(store, 40)
    answer = broker.pull(offset, queue_id=queue_id).result()
    pulled = Pulled.of(answer.fields)
    assert (answer.code, pulled.next_begin_offset) == (code, next_begin)
    assert bodies(bytes(answer.body)) == [b"%d" % n for n in range(offset, next_begin if code == 0 else offset)]
    if code in (ResponseCode.SUCCESS, ResponseCode.PULL_OFFSET_MOVED):
        assert (pulled.min_offset, pulled.max_offset) == (0, 40)


def test_slow_condition_does_not_block_others(broker: Broker, store: MessageStore) -> None:
    """However much is requested at once: the next pull continues with the rest."""
    for _ in range(4):
        store.put_many([Message("orders", b"", queue_id=0, properties={"a": "1"})] * 1000)
    flags, condition = SUBSCRIPTION, " OR ".join(["a = 2"] * 100)
    header = PullMessage("group", "orders", 0, 0, (1 << 31) - 1, flags, 0, 0, 0, condition, "SQL92")
    answer = broker.ask(RequestCode.PULL_MESSAGE, header)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 0 < Pulled.of(answer.fields).next_begin_offset < 4000
    long = replace(header, subscription=" OR ".join(["a = 2"] * 10_000))
    assert broker.ask(RequestCode.PULL_MESSAGE, long).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_pull_is_held_until_a_message_arrives(broker: Broker, store: MessageStore) -> None:
    held = broker.pull(0, seconds=60)
    other = broker.pull(0, queue_id=1, seconds=60)
    until(lambda: broker.serving.held == 2)
    put(store, 1)
    assert bodies(bytes(held.result().body)) == [b"0"]
    assert broker.serving.held == 1
    assert not other.done()


def test_held_pulls_are_counted(broker: Broker, store: MessageStore) -> None:
    def held() -> list[tuple[str, str, int]]:
        return [(each.topic, each.group, each.counts[0]) for _, each in figures_in(store.path) if each.name == HELD]

    with Client() as other:
        for queue_id in (0, 1):
            broker.pull(0, queue_id=queue_id, seconds=60)
        Broker(broker.serving, other).pull(0, seconds=60)
        until(lambda: held() == [("orders", "group", 3)])
    until(lambda: held() == [("orders", "group", 2)])
    put(store, 1)
    until(lambda: held() == [("orders", "group", 1)])
    broker.serving.close()
    until(lambda: held() == [])


def test_counts_of_groups_without_held_pulls_are_dropped(broker: Broker, store: MessageStore) -> None:
    for number in range(5):
        header = PullMessage(f"group-{number}", "orders", 0, 0, 32, SUBSCRIPTION | SUSPEND, 0, 60_000, 0, "*")
        with Client() as other:
            Broker(broker.serving, other).begin(RequestCode.PULL_MESSAGE, header)
            until(lambda: store.figures.of(HELD, "orders", header.consumer_group).counts[0] == 1)  # noqa: B023
        until(lambda: header.consumer_group not in {group for *_, group in store.figures._figures})  # noqa: B023


def test_pull_is_held_until_its_timeout(broker: Broker) -> None:
    began = time.monotonic()
    assert broker.pull(0, seconds=0.3).result().code == ResponseCode.PULL_NOT_FOUND
    assert time.monotonic() - began >= 0.3


def test_other_tag_wakes_no_pull(broker: Broker, store: MessageStore) -> None:
    held = broker.pull(0, seconds=60, tags="paid || shipped")
    until(lambda: broker.serving.held == 1)
    put(store, 3, "open")
    put(store, 1, "shipped")
    answer = held.result()
    assert bodies(bytes(answer.body)) == [b"0"]
    assert Pulled.of(answer.fields).next_begin_offset == 4


def test_disconnected_client_holds_nothing(broker: Broker, store: MessageStore) -> None:
    with Client() as other:
        asked = Broker(broker.serving, other).pull(0, seconds=60)
        until(lambda: broker.serving.held == 1)
    assert asked.exception() is not None
    until(lambda: broker.serving.held == 0)


@pytest.mark.parametrize("is_held", [True, False])
def test_recreated_topic_continues_after_the_old_end(broker: Broker, store: MessageStore, is_held: bool) -> None:
    put(store, 3)
    asked = broker.pull(3, seconds=60)
    until(lambda: broker.serving.held == 1)
    delete_topic(store.path, "orders")
    store.create_topic("orders", 2)
    put(store, 2)
    answer = (asked if is_held else broker.pull(3)).result()
    assert (answer.code, Pulled.of(answer.fields).next_begin_offset) == (ResponseCode.SUCCESS, 5)
    stale = broker.pull(1).result()
    assert (stale.code, Pulled.of(stale.fields).next_begin_offset) == (ResponseCode.PULL_OFFSET_MOVED, 3)


def test_closing_answers_held_pulls(broker: Broker) -> None:
    held = [broker.pull(0, queue_id=n % 2, seconds=60) for n in range(20)]
    until(lambda: broker.serving.held == 20)
    broker.serving.close()
    assert {answer.result().code for answer in held} == {ResponseCode.PULL_NOT_FOUND}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"subscription": "a >", "expression_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "||"}, ResponseCode.PULL_RETRY_IMMEDIATELY),  # no tag at all: matches nothing in RocketMQ
        ({"sys_flag": SUSPEND}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"max_msg_nums": 0}, ResponseCode.SUCCESS),
    ],
)
def test_wrong_pulls_are_refused(
    broker: Broker, store: MessageStore, fields: dict[str, object], code: ResponseCode
) -> None:
    put(store, 3, "paid")
    usual: dict[str, object] = {
        "consumer_group": "group",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_timeout_millis": 0,
        "sub_version": 0,
    }
    header = PullMessage(**{**usual, **fields})  # type: ignore[arg-type]
    answer = broker.ask(RequestCode.PULL_MESSAGE, header)
    assert answer.code == code, answer.remark


@pytest.mark.parametrize("flags", [SUBSCRIPTION, SUBSCRIPTION | SUSPEND])
@pytest.mark.parametrize("group", ["g" * 900_000, "", "a b"], ids=["long", "none", "words"])
def test_pull_of_a_wrong_group_is_refused(broker: Broker, store: MessageStore, group: str, flags: int) -> None:
    """State kept for such a name would stay as long as the server runs."""
    header = PullMessage(group, "orders", 0, 0, 32, flags, 0, 50, 0, "*")
    answer = broker.ask(RequestCode.PULL_MESSAGE, header)
    assert (answer.code, (answer.remark or "")[:7]) == (ResponseCode.INVALID_PARAMETER, "group '")
    assert not any(name == HELD for name, *_ in store.figures._figures)
