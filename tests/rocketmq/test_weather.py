"""Brokers, name servers and Spark's driver are killed and restarted while a topic is written and read.

WEATHER_SECONDS sets for how long; without it nothing runs. Every 40 s one process is killed, in turn, and restarted
15 s later. The driver is killed twice. The test prints what it measured.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from pyspark.sql import SparkSession

from store import ConsumeFromWhere, Consumer, ConsumerConfig, Producer, ReceivedMessage
from tests.processes import kill_tree
from tests.rocketmq.harness import Clients, RocketMQ
from tests.rocketmq.weather import Cluster, Outage
from tests.waiting import QUERY_PATIENCE, until

SECONDS = int(os.environ.get("WEATHER_SECONDS", "0"))
EVERY_SECONDS, DOWN_SECONDS = 40.0, 15.0
TOPIC, QUEUES, GROUP = "weather", 4, "readers"
RATE = 50  # rows per second of the writing query
HEALTHY_SECONDS = 10.0  # the longest lag while neither the queue's broker nor the driver is missing
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.rocketmq,
    pytest.mark.skipif(not SECONDS, reason="WEATHER_SECONDS is not set"),
]


class Driver:
    """The program weather_query.py. ended: the queries that ended by themselves."""

    def __init__(self, folder: Path, name_servers: str) -> None:
        given = {"nameServer": name_servers, "folder": str(folder), "topic": TOPIC, "rowsPerSecond": RATE}
        self._command = [sys.executable, str(Path(__file__).with_name("weather_query.py")), json.dumps(given)]
        self._log = folder / "driver.out"
        self.lines: list[str] = []
        self.pids: list[int] = []

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
                start_new_session=True,
            )
        self.pids.append(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "started\n", self._log.read_text()[-4000:]
        threading.Thread(target=self._follow, args=(self._process.stdout,), daemon=True).start()

    def _follow(self, lines: IO[str]) -> None:
        self.lines += lines

    def kill(self) -> None:
        kill_tree(self._process.pid)
        self._process.wait()

    def stop(self) -> int:
        """Stop the queries in order; return the end of the rate source."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        assert self._process.wait(QUERY_PATIENCE) == 0
        until(lambda: any(line.startswith("stopped") for line in self.lines), 0.1)
        return next(int(line.split()[1]) for line in self.lines if line.startswith("stopped"))

    @property
    def ended(self) -> list[str]:
        return [line for line in self.lines if line.startswith("ended")]


class Group:
    """What both members of the group were given: how often each body, and when it came again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.times: dict[bytes, list[tuple[float, str]]] = {}

    def add(self, member: str, bodies: Sequence[bytes]) -> None:
        now = time.time()
        with self._lock:
            for body in bodies:
                self.times.setdefault(body, []).append((now, member))

    def listen(self, messages: Sequence[ReceivedMessage]) -> None:
        self.add("python", [message.body for message in messages])

    def follow(self, clients: Clients) -> None:
        for line in clients:
            if line["kind"] == "consumed":
                self.add("java", [base64.b64decode(line["body"])])


@contextmanager
def steadily_sent(cluster: Cluster, acknowledged: list[bytes], failed: list[str]) -> Iterator[None]:
    """Send twenty messages a second until the block ends, and note the acknowledged ones."""
    stop = threading.Event()

    def work(producer: Producer) -> None:
        number = 0
        while not stop.wait(0.05):
            body, number = b"sent-%d" % number, number + 1
            future = producer.send(TOPIC, body)
            future.add_done_callback(
                lambda done, body=body: (
                    acknowledged.append(body)  # type: ignore[misc]
                    if done.exception() is None
                    else failed.append(f"{body!r}: {done.exception()}")
                )
            )

    with Producer(cluster.address) as producer:
        thread = threading.Thread(target=work, args=(producer,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def storm(cluster: Cluster, driver: Driver, count: int) -> list[Outage]:
    """Kill and restart the nodes in turn, and the driver twice; return the outages."""
    outages = []
    begin = time.monotonic()
    for number in range(count):
        node = cluster.nodes[number % len(cluster.nodes)]
        killed = time.time()
        node.kill()
        time.sleep(DOWN_SECONDS)
        node.start()
        outages.append(Outage(node.name, killed, cluster.wait_for(node)))
        if number in (count // 3, 2 * count // 3):
            killed = time.time()
            driver.kill()
            driver.start()
            outages.append(Outage("driver", killed, time.time()))
        time.sleep(max(0.0, begin + (number + 1) * EVERY_SECONDS - time.monotonic()))
    return outages


class ReadRow(NamedTuple):
    """A row of the Parquet files. seen: when its file was written, seconds since 1970, as `stored`."""

    broker: str
    queue: int
    offset: int
    body: bytes
    msg_id: str
    stored: float
    seen: float


def rows_of(spark: SparkSession, folder: Path) -> list[ReadRow]:
    columns = "brokerName, queueId, queueOffset, body, msgId, double(storeTimestamp), "
    seen = "double(_metadata.file_modification_time) seen"
    frame = spark.read.parquet(str(folder)).selectExpr(*columns.rstrip(", ").split(", "), seen)
    return [ReadRow(*row) for row in frame.collect()]


def lags(rows: Sequence[ReadRow], outages: Sequence[Outage]) -> dict[str, float]:
    """Return the longest lag of rows of healthy brokers, by the outage that it overlaps ("none" without one).

    A missing broker or driver has ten seconds to catch up. The batch that reads when a broker dies waits for it, and
    the first batch of a driver has to begin: rows that were stored before these batches ended are left out.
    """
    masters = {"broker-a": "master-a", "broker-b": "master-b"}
    longest: dict[str, float] = {}
    first_batches = []
    for outage in outages:
        begin = outage.end if outage.name == "driver" else outage.begin
        if outage.name in ("driver", *masters.values()):
            first_batches.append((outage.begin, min((row.seen for row in rows if row.seen > begin), default=begin)))
    for row in rows:
        near = [each for each in outages if row.stored <= each.end + 10 and row.seen >= each.begin - 1]
        if any(each.name == masters[row.broker] for each in near):
            continue
        if any(row.seen >= begin and row.stored <= end for begin, end in first_batches):
            continue
        for name in [f"{each.name} at {each.begin - outages[0].begin:.0f} s" for each in near] or ["none"]:
            longest[name] = max(longest.get(name, 0.0), row.seen - row.stored)
    return longest


def told(
    rows: Sequence[ReadRow], group: Group, outages: Sequence[Outage], found: dict[str, float], numbers: int
) -> str:
    """Return what was measured."""
    times = Counter(row.body for row in rows)
    again = [body for body, came in group.times.items() if len(came) > times[body]]
    brokers = {row.body: row.broker for row in rows}
    lines = [
        f"{len(rows):,} rows, of which {numbers:,} of the rate source; {len(rows) - len(times):,} were stored twice",
        f"{len(again):,} came to the group again, that is {len(again) / len(times):.1%}",
        *(
            f"{each.name} was missing for {each.end - each.begin:.1f} s; {_again(each, group, again, brokers)}"
            for each in outages
        ),
        *(f"longest lag, {name}: {seconds:.1f} s" for name, seconds in found.items()),
    ]
    return "\n".join(lines)


def _again(outage: Outage, group: Group, bodies: Sequence[bytes], brokers: Mapping[bytes, str]) -> str:
    """Return how many bodies came to the group again around an outage, by broker and by member."""
    came = {body: group.times[body] for body in bodies}
    around = {body: each for body, each in came.items() if outage.begin <= each[-1][0] < outage.begin + EVERY_SECONDS}
    members = Counter((brokers[body], each[0][1], each[-1][1]) for body, each in around.items())
    kinds = (f"{count:,} of {broker} to {first}, then {last}" for (broker, first, last), count in members.items())
    return f"{len(around):,} came again then: {'; '.join(kinds)}"


def test_a_storm(rocketmq5: RocketMQ, spark: SparkSession, tmp_path: Path) -> None:
    cluster, group = Cluster(rocketmq5, tmp_path / "cluster"), Group()
    driver = Driver(tmp_path, cluster.name_servers)
    acknowledged: list[bytes] = []
    failed: list[str] = []
    config = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with (
        cluster.running(TOPIC, QUEUES),
        rocketmq5.clients(cluster.name_servers) as clients,
        Consumer(cluster.address, GROUP, TOPIC, group.listen, config=config),
    ):
        clients.ask("subscribe", group=GROUP, topic=TOPIC)
        threading.Thread(target=group.follow, args=(clients,)).start()
        begun = time.time()
        driver.start()
        started = Outage("driver", begun, time.time())
        try:
            with steadily_sent(cluster, acknowledged, failed):
                until(lambda: {member for came in group.times.values() for _, member in came} == {"python", "java"})
                outages = [started, *storm(cluster, driver, max(len(cluster.nodes), round(SECONDS / EVERY_SECONDS)))]
            numbers = RATE * driver.stop()
        finally:
            driver.kill()
        rows = rows_of(spark, tmp_path / "rows")
        bodies = {row.body for row in rows}
        until(lambda: group.times.keys() >= bodies, 0.5)
        ends = cluster.ends(TOPIC)
    found = lags(rows, outages)
    print(told(rows, group, outages, found, numbers))
    print(*(line for line in driver.lines if line.startswith("slow")), sep="\n")
    assert driver.ended == []
    assert failed == []
    assert Counter((row.broker, row.queue, row.offset) for row in rows) == Counter(
        (queue.broker, queue.queue_id, offset) for queue, end in ends.items() for offset in range(end)
    )
    assert bodies >= {*acknowledged}
    assert bodies >= {b"rate-%d" % number for number in range(numbers)}
    assert len({row.msg_id for row in rows}) == len(bodies)  # what was stored twice has the same id
    assert max(found.values()) < HEALTHY_SECONDS
