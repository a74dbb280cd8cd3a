"""How fast does a served store answer RocketMQ's Java client, and clients that pull?"""

from __future__ import annotations

import random
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.bench import show
from store import Message, MessageStore
from store.format.layout import RECORD_HEADER
from store.model.codes import RequestCode
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import Pulled, PullMessage, SendMessageV2
from tests.rocketmq.harness import LINES, RocketMQ, unavailable

_SUSPEND, _SUBSCRIPTION = 2, 4
_READ_QUEUES = 4
_AT_A_TIME = 64  # concurrent pulls
_CLI = "from pyspark_mq.cli import main; main()"
_SIZE = struct.Struct(">i")
_PATIENCE = 600.0


def main(sends: int, latencies: int, held: int, read_bytes: int) -> None:
    """sends: for each thread. latencies: messages for each. held: pulls. read_bytes: of the bodies of each size."""
    why_not = unavailable()
    rows = [] if why_not else _java(sends, latencies)
    rows += _held(held, latencies)
    for body_bytes in (100, 4096):
        for limits in ({}, {"maxTransferCountOnMessageInMemory": 1024, "maxTransferBytesOnMessageInMemory": 4 << 20}):
            rows.append(_pulls(body_bytes, read_bytes // body_bytes, limits))
    title = "A served store" + (f"; without RocketMQ's client, which {why_not}" if why_not else "")
    show(title, ["what", "measured"], rows)


@contextmanager
def served(path: Path, settings: dict[str, int] | None = None) -> Iterator[tuple[str, psutil.Process]]:
    conf = path.parent / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in (settings or {}).items()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = [sys.executable, "-c", _CLI, "serve", str(path), "--listen", address, "--config", str(conf)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield address, psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def store_with(queues: int, *topics: str) -> Iterator[Path]:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path) as store:
            for topic in topics:
                store.create_topic(topic, queues)
        yield path


def _java(sends: int, latencies: int) -> list[list[str]]:
    with (
        store_with(8, "bench", "late") as path,
        served(path) as (address, _),
        RocketMQ(LINES[0]).clients(address) as clients,
    ):
        rates = []
        for batch in (1, 100):
            for each in (max(1, sends // 10), sends if batch == 1 else max(1, sends // 10)):  # the first is a warm-up
                clients.ask("burst", topic="bench", threads=8, each=each, batch=batch, bodyBytes=100)
                found = next(clients)
                assert not found["failed"]
            rates.append(8 * each * batch / found["nanos"] * 1e9)
        clients.ask("subscribe", id="bench", group="bench", topic="late", latest=True)
        late: list[float] = []
        while len(late) < latencies + latencies // 5:
            clients.ask("send", topic="late")
            kinds: set[str] = set()
            while kinds != {"sent", "done", "consumed"}:
                line = next(clients)
                if line["kind"] == "subscribed":  # its client knows no queue earlier
                    continue
                kinds.add(line["kind"])
                if line["kind"] == "consumed":
                    late.append(line["after"])
    return [
        ["Java producer, 8 threads, sync sends of 100 B", f"{rates[0]:,.0f} messages/s"],
        ["the same, batches of 100", f"{rates[1]:,.0f} messages/s"],
        ["Java send to Java push consumer, held", f"{_spread(late[latencies // 5 :])} (whole ms)"],
    ]


def _spread(ms: list[float]) -> str:
    ordered = sorted(ms)
    return f"p50 {statistics.median(ordered):.1f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.1f} ms"


def _held(held: int, arrivals: int) -> list[list[str]]:
    """Each pull has its own queue. Each arrival answers one of them."""
    with store_with(held, "bench") as path:
        with MessageStore.open(path) as store:  # create each queue's first file
            store.put_many([Message("bench", b"", queue_id=queue) for queue in range(held)])
        return _arrivals(path, held, arrivals)


def _arrivals(path: Path, held: int, arrivals: int) -> list[list[str]]:
    with served(path) as (address, process), Client(_PATIENCE) as client:
        offsets = [1] * held

        def hold(queue: int) -> Future[Command]:
            flags = _SUSPEND | _SUBSCRIPTION
            pull = PullMessage("g", "bench", queue, offsets[queue], 32, flags, 0, 100_000, 0, "*")
            return client.ask(address, RequestCode.PULL_MESSAGE, pull.texts())

        waiting = [hold(queue) for queue in range(held)]
        client.request(address, RequestCode.GET_BROKER_CLUSTER_INFO)
        time.sleep(min(1.0, held / 400))
        began, before = time.monotonic(), sum(process.cpu_times()[:2])
        time.sleep(min(5.0, held / 400))
        idle = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        late = []
        for _ in range(arrivals):
            queue = random.randrange(held)
            header = SendMessageV2("p", "bench", "TBW102", 4, queue, 0, 0, 0)
            sent = time.perf_counter()
            client.ask(address, RequestCode.SEND_MESSAGE_V2, header.texts(), b"body")
            answer = waiting[queue].result()
            late.append((time.perf_counter() - sent) * 1000)
            assert answer.body
            offsets[queue] = Pulled.of(answer.fields).next_begin_offset
            assert not any(each.done() for at, each in enumerate(waiting) if at != queue)
            waiting[queue] = hold(queue)
            time.sleep(0.002)
    return [
        [f"{held:,} held pulls on as many queues, idle", f"{idle:.1%} of a core"],
        ["a send to one of them, until its pull is answered", _spread(late)],
    ]


def _pulls(body_bytes: int, count: int, settings: dict[str, int]) -> list[str]:
    """Measure pulls of four queues. The next ranges are requested before the last ones have arrived."""
    with store_with(_READ_QUEUES, "bench") as path:
        with MessageStore.open(path) as store:
            for _ in range(0, count, 10_000):
                some = [Message("bench", bytes(body_bytes), queue_id=at % _READ_QUEUES) for at in range(10_000)]
                store.put_many(some)
            ends = [store.max_offset("bench", queue) for queue in range(_READ_QUEUES)]
        record = RECORD_HEADER.itemsize + body_bytes + len("bench") + 3
        most = settings.get("maxTransferCountOnMessageInMemory", 32)
        step = min(most, settings.get("maxTransferBytesOnMessageInMemory", 256 << 10) // record)
        offsets = range(0, max(ends), step)
        asked = [(queue, offset) for offset in offsets for queue in range(_READ_QUEUES) if offset < ends[queue]]
        with served(path, settings) as (address, _), Client(_PATIENCE) as client:
            _pull_all(client, address, asked[:200], step)
            began = time.perf_counter()
            read = _pull_all(client, address, asked, step)
            seconds = time.perf_counter() - began
    assert read >= sum(ends) * record
    name = f"pulls of {body_bytes:,} B, up to {step} messages each, {_AT_A_TIME} under way"
    return [name, f"{sum(ends) / seconds:,.0f} messages/s, {sum(ends) * body_bytes / seconds / 1e6:,.0f} MB/s"]


def _pull_all(client: Client, address: str, asked: list[tuple[int, int]], step: int) -> int:
    under_way: set[Future[Command]] = set()
    read = 0
    for queue, offset in asked:
        pull = PullMessage("g", "bench", queue, offset, step, _SUBSCRIPTION, 0, 0, 0, "*")
        under_way.add(client.ask(address, RequestCode.PULL_MESSAGE, pull.texts()))
        if len(under_way) >= _AT_A_TIME:
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            read += sum(len(each.result().body) for each in done)
    return read + sum(len(each.result().body) for each in under_way)
