"""A RocketMQ cluster whose processes tests kill and restart: two name servers, two masters, a slave of the first."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from store.cluster.address import ClusterAddress
from store.model.errors import Unreachable
from store.model.log_protocol import Queue
from tests.rocketmq.harness import RocketMQ, free_port
from tests.waiting import until

_USUAL = {
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "registerNameServerPeriod": 10_000,
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 200_000,
    "diskMaxUsedSpaceRatio": 99,
}


class Outage(NamedTuple):
    """What was killed, and from when to when it was missing; seconds since 1970."""

    name: str
    begin: float
    end: float


class Node:
    """A name server or a broker, in a process of its own. broker: the broker's name, "" of a name server or a slave."""

    def __init__(self, rocketmq: RocketMQ, main: str, settings: Path, port: int, broker: str = "") -> None:
        self.name = settings.stem
        self.broker = broker
        self.address = f"127.0.0.1:{port}"
        self._rocketmq, self._main, self._settings = rocketmq, main, settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = self._rocketmq.daemon(self._main, self._settings)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Cluster:
    """The nodes. name_servers: their addresses, as the option of queries writes them."""

    def __init__(self, rocketmq: RocketMQ, folder: Path) -> None:
        servers = [(f"server-{number}", free_port()) for number in "12"]
        self.name_servers = ";".join(f"127.0.0.1:{port}" for _, port in servers)
        self.nodes = [
            Node(rocketmq, "namesrv.NamesrvStartup", _settings(folder / name, {"listenPort": port}), port)
            for name, port in servers
        ]
        for name, broker, more in (
            ("master-a", "broker-a", {"brokerRole": "ASYNC_MASTER"}),
            ("master-b", "broker-b", {"brokerRole": "ASYNC_MASTER"}),
            ("slave-a", "broker-a", {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": "true"}),
        ):
            port = free_port(-2)
            of_broker = {"brokerName": broker, "namesrvAddr": self.name_servers, "listenPort": port, **_USUAL, **more}
            settings = _settings(folder / name, {**of_broker, "haListenPort": free_port()})
            is_slave = more["brokerRole"] == "SLAVE"
            self.nodes.append(Node(rocketmq, "broker.BrokerStartup", settings, port, "" if is_slave else broker))

    @property
    def address(self) -> ClusterAddress:
        return ClusterAddress.parse(self.name_servers)

    @contextmanager
    def running(self, topic: str, queues: int) -> Iterator[None]:
        """Run all nodes, with a topic on both masters."""
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.kill)
                node.start()
            for node in self.nodes:
                self.wait_for(node)
            with self.address.open_writer() as writer:
                writer.create_topic(topic, queues)
                until(lambda: len(writer.topics().get(topic, ())) == 2 * queues, 0.2)
            yield

    def wait_for(self, node: Node) -> float:
        """Wait until a name server answers, or name servers list a master; return the time."""
        alone = ClusterAddress.parse(node.address if not node.broker else self.name_servers)

        def is_up() -> bool:
            with suppress(Unreachable), alone.open() as log:
                listed = {address for each in log._brokers.routes.brokers() for _, address in each.addresses}
                return not node.broker or node.address in listed
            return False

        if node.broker or node.name.startswith("server"):
            until(is_up, 0.2)
        return time.time()

    def ends(self, topic: str) -> dict[Queue, int]:
        with self.address.open() as log:
            return {queue: bounds.max_offset for queue, bounds in log.bounds(log.topics()[topic]).items()}


def _settings(home: Path, settings: dict[str, object]) -> Path:
    """Write the settings of a node, which keeps its files in `home`."""
    home.mkdir(parents=True)
    more = {"storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog"}
    path = home / f"{home.name}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**settings, **more}.items()))
    return path
