from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace

import pytest

from store import Consumer, Message, ReceivedMessage, ReconsumeLater
from store.model.codes import RequestCode
from store.model.log_protocol import Queue
from store.remoting.client import Client
from store.remoting.headers import ResetOffset
from tests.rocketmq.harness import RocketMQ, free_ports
from tests.rocketmq.test_cluster import SMALL, Theirs, of_broker
from tests.store.client.consumers import QUEUES, Seen, config, has_done
from tests.waiting import until

pytestmark = pytest.mark.rocketmq


@pytest.fixture(scope="module")
def theirs(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    ports = free_ports()
    directory = tmp_path_factory.mktemp("theirs") / "mq"
    with rocketmq.broker(directory, SMALL, topic="Live", queues=1, **ports) as broker, Client(60) as client:
        yield Theirs(broker, directory, ports, client)


@pytest.fixture
def topic(request: pytest.FixtureRequest, theirs: Theirs) -> str:
    """A new topic; its group has the same name."""
    name = request.node.name.removeprefix("test_").translate(str.maketrans("[]-.", "____"))[:60]
    theirs.create_topic(name, QUEUES)
    return name


def queues(topic: str) -> list[Queue]:
    return [of_broker(topic, number) for number in range(QUEUES)]


def put(theirs: Theirs, topic: str, numbers: range) -> None:
    theirs.append([Message(topic, b"%d" % n, queue_id=n % QUEUES, tags=("even", "odd")[n % 2]) for n in numbers])


@pytest.mark.parametrize("orderly", [False, True])
def test_two_consumers_share_the_queues(theirs: Theirs, topic: str, orderly: bool) -> None:
    put(theirs, topic, range(20))
    one, other = Seen(), Seen()
    with Consumer(theirs.address, topic, topic, one, orderly=orderly, config=config()) as first:
        until(lambda: len(one.numbers) == 20)
        with Consumer(theirs.address, topic, topic, other, orderly=orderly, config=config()) as second:
            until(lambda: [len({*queues(topic)} & {*each.assigned}) for each in (first, second)] == [2, 2])
            put(theirs, topic, range(20, 60))
            until(lambda: {*one.numbers, *other.numbers} == {*range(60)})
            until(lambda: all(has_done(each, queues(topic)) == {15} for each in (first, second)))
            before = len(one.numbers) + len(other.numbers)
            assert {member.id for member in theirs.address.group(topic).members()} == {first.id, second.id}
        until(lambda: {*queues(topic)} <= {*first.assigned})
        put(theirs, topic, range(60, 80))
        until(lambda: {*one.numbers} >= {*range(60, 80)})
    assert len(one.numbers) + len(other.numbers) == before + 20
    assert theirs.address.group(topic).committed(queues(topic)) == dict.fromkeys(queues(topic), 20)


def test_consumer_shares_its_group_with_a_java_consumer(theirs: Theirs, topic: str) -> None:
    put(theirs, topic, range(20))
    with Consumer(theirs.address, topic, topic, seen := Seen(), config=config()) as consumer:
        until(lambda: len(seen.numbers) == 20)
        until(lambda: theirs.address.group(topic).committed(queues(topic)) == dict.fromkeys(queues(topic), 5))
        theirs._running.ask("consume", topic=topic, group=topic, messages=20)
        until(lambda: len({*queues(topic)} & {*consumer.assigned}) == 2)
        mine = {*queues(topic)} & {*consumer.assigned}
        put(theirs, topic, range(20, 60))
        got = [next(theirs._running) for _ in range(20)]
        assert {of_broker(topic, line["queueId"]) for line in got} == {*queues(topic)} - mine
        numbers = sorted(int(base64.b64decode(line["body"])) for line in got)
        until(lambda: sorted([*seen.numbers, *numbers]) == [*range(60)])
        assert next(theirs._running)["kind"] == "done"
        until(lambda: {*queues(topic)} <= {*consumer.assigned})
        put(theirs, topic, range(60, 80))
        until(lambda: sorted([*seen.numbers, *numbers]) == [*range(80)])


def test_failing_message_is_retried_and_becomes_a_dead_letter(theirs: Theirs, topic: str) -> None:
    def fail(message: ReceivedMessage) -> None:
        if message.body == b"7":
            raise ReconsumeLater(delay_level=1)

    put(theirs, topic, range(20))
    seen = Seen(fail)
    dead = of_broker(f"%DLQ%{topic}", 0)
    with (
        Consumer(theirs.address, topic, topic, seen, config=config(max_reconsume_times=1)),
        theirs.address.open() as log,
    ):
        until(lambda: seen.numbers.count(7) == 2)
        until(lambda: [bounds.max_offset for bounds in log.bounds([dead]).values()] == [1])
    tries = [message for message in seen.messages if message.body == b"7"]
    assert [(message.topic, message.reconsume_times) for message in tries] == [(topic, 0), (topic, 1)]
    assert sorted(seen.numbers) == sorted([*range(20), 7])


@pytest.mark.parametrize("in_its_name", [False, True])
def test_reset_by_an_admin_tool_reaches_the_consumer(theirs: Theirs, topic: str, in_its_name: bool) -> None:
    """A broker announces a reset to committing clients; once a client pulls in the group's name, only to that
    client."""
    put(theirs, topic, range(20))
    address = replace(theirs.address, consumer_group=topic) if in_its_name else theirs.address
    with Consumer(address, topic, topic, seen := Seen(), config=config()):
        until(lambda: len(seen.numbers) == 20)
        until(lambda: theirs.address.group(topic).committed(queues(topic)) == dict.fromkeys(queues(topic), 5))
        header = ResetOffset(topic, topic, 0, is_force=True)
        theirs._client.request(theirs.broker, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.texts())
        until(lambda: len(seen.numbers) == 40)
    assert sorted(seen.numbers) == sorted([*range(20), *range(20)])
    assert theirs.address.group(topic).committed(queues(topic)) == dict.fromkeys(queues(topic), 5)
