from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message
from store.cluster.address import ClusterAddress
from store.format.properties import encode_properties
from store.model.codes import RequestCode, ResponseCode
from store.model.log_protocol import Positions, Queue
from store.remoting.client import Client
from store.remoting.headers import CreateTopic, SendMessageV2, Topic
from tests.logs.test_cluster import ClusterTests
from tests.rocketmq.harness import Broker, RocketMQ, free_ports
from tests.waiting import until

pytestmark = pytest.mark.rocketmq

SEGMENT = 1 << 16
SMALL = {"mappedFileSizeCommitLog": SEGMENT, "mappedFileSizeConsumeQueue": 2000}
BROKER = "harness"


def of_broker(topic: str, number: int) -> Queue:
    return Queue(topic, number, broker=BROKER)


class Theirs:
    """A running name server and broker, as `conformance.Making`."""

    def __init__(self, running: Broker, directory: Path, ports: dict[str, int], client: Client) -> None:
        self._running = running
        self._log = directory / "commitlog"
        self._name_server, self.broker = (f"127.0.0.1:{ports[name]}" for name in ("namesrvPort", "brokerPort"))
        self._client = client
        self._topics: set[str] = set()
        self._ends: Counter[Queue] = Counter()
        self.address = ClusterAddress((self._name_server,), patience=5.0, broker_timeout=5.0)

    def create_topic(self, topic: str, queues: int) -> None:
        self._topics.add(topic)
        header = CreateTopic(topic, "TBW102", queues, queues, 6, "SINGLE_TAG")
        self._client.request(self.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.texts())
        with self.address.open() as log:
            until(lambda: len(log.topics().get(topic, ())) == queues)

    def append(self, messages: list[Message]) -> None:
        """Send one by one, waiting for each answer, until consumers see the messages."""
        for message in messages:
            properties = encode_properties(message.all_properties()).decode()
            queue_id = message.queue_id or 0
            header = SendMessageV2("producers", message.topic, "TBW102", 4, queue_id, 0, 1, 0, properties)
            until(lambda header=header, body=message.body: self._is_sent(header, body))  # type: ignore[misc]
        self._wait_for(Counter(of_broker(message.topic, message.queue_id or 0) for message in messages))

    def _wait_for(self, sent: Counter[Queue]) -> None:
        """Acknowledged messages get into queues a moment later."""
        self._ends.update(sent)
        with self.address.open() as log:
            until(lambda: all(log.bounds([queue])[queue].max_offset >= self._ends[queue] for queue in sent))

    def _is_sent(self, header: SendMessageV2, body: bytes) -> bool:
        answer = self._client.ask(self.broker, RequestCode.SEND_MESSAGE_V2, header.texts(), body).result()
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)
        return answer.code == ResponseCode.SUCCESS

    def delete_oldest(self, queue: Queue) -> None:
        *old, _ = sorted(self._log.iterdir())
        for segment in old:
            os.utime(segment, (0, 0))
        minimum = 0
        while minimum < int(old[-1].name):
            self._running.ask("clean")
            minimum = int(next(self._running)["min"])

    def commit(self, group: str, positions: Positions) -> Positions:
        with self.address.open() as log:
            log.commit(group, positions)
        return positions

    def forget(self) -> None:
        """Delete all topics, including those that a test created through the log."""
        self._ends.clear()
        with self.address.open() as log:
            self._topics |= log.topics().keys()
        while self._topics:
            header = Topic(self._topics.pop())
            self._client.request(self.broker, RequestCode.DELETE_TOPIC_IN_BROKER, header.texts())
            self._client.request(self._name_server, RequestCode.DELETE_TOPIC_IN_NAMESRV, header.texts())


@pytest.fixture(scope="module")
def theirs(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    ports = free_ports()
    directory = tmp_path_factory.mktemp("theirs") / "mq"
    with rocketmq.broker(directory, SMALL, topic="Live", queues=1, **ports) as broker, Client(60) as client:
        yield Theirs(broker, directory, ports, client)


OTHERWISE_BEFORE_5 = {
    "test_offsets_are_found_by_time": "brokers of RocketMQ 4 return the message with the nearest time",
    "test_committed_offsets_are_read": "they return 0 for a group without commits if no message was deleted yet",
}


class TestTheirLog(ClusterTests):
    queue = staticmethod(of_broker)

    @pytest.fixture(autouse=True)
    def _what_this_line_does(self, request: pytest.FixtureRequest, rocketmq: RocketMQ) -> None:
        reason = OTHERWISE_BEFORE_5.get(request.node.originalname)
        if reason is not None and rocketmq.line < "5":
            pytest.skip(reason)

    @pytest.fixture
    def making(self, theirs: Theirs) -> Iterator[Theirs]:
        theirs.create_topic("Live", 1)
        theirs.forget()
        yield theirs
        theirs.forget()
