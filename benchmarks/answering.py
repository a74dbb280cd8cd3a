"""How fast does a served store answer small pulls and single sends, against a null broker?

The null broker's rate is the maximum for this client and asyncio.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import psutil

from benchmarks.bench import TOPIC, show, side_by_side
from benchmarks.serving import served, store_with
from store import Message, MessageStore
from store.model.codes import RequestCode
from store.remoting.client import Client
from store.remoting.command import Command
from store.remoting.headers import PullMessage, SendMessageV2

_AT_ONCE = 32
_PULLS_UNDER_WAY, _SENDS_UNDER_WAY = 16, 64
_QUEUES = 4
_RANGES = 64  # each of _AT_ONCE messages, in each queue
_SUBSCRIPTION = 4
_BODY = bytes(100)


class _Server(NamedTuple):
    address: str
    process: psutil.Process


def main(pulls: int, sends: int, runs: int) -> None:
    """CPU time is measured in the server's process."""
    with store_with(_QUEUES, TOPIC) as path:
        with MessageStore.open(path) as store:
            some = range(_QUEUES * _RANGES * _AT_ONCE)
            store.put_many([Message(TOPIC, _BODY, tags="paid", keys=(f"o-{at}",)) for at in some])
            records = store.get_message("bench", TOPIC, 0, 0, _AT_ONCE, as_records=True).records
        with served(path) as own, _null_broker(b"".join(records)) as null:
            kinds = (_ask_pull, pulls, _PULLS_UNDER_WAY), (_ask_send, sends, _SENDS_UNDER_WAY)
            rows = []
            for (ask, count, under_way), name in zip(kinds, (f"pulls of {_AT_ONCE}", "sends of one"), strict=True):
                cpu: dict[str, list[float]] = {}
                both = [partial(_rate, server, ask, count, under_way, cpu) for server in (_Server(*own), null)]
                rate, null_rate = side_by_side(runs, *both)
                own_cpu, null_cpu = (min(each) * 1e6 for each in cpu.values())
                name = f"{name}, {under_way} under way"
                rows.append([name, "serve", f"{rate:,.0f} /s", f"{rate / null_rate:.2f}", f"{own_cpu:.0f} us"])
                rows.append([name, "null broker", f"{null_rate:,.0f} /s", "1.00", f"{null_cpu:.0f} us"])
    head = ["requests of one connection", "server", "answered", "of the null broker's", "server's CPU a request"]
    show(f"A served store and a null broker, medians of {runs} runs, the least CPU", head, rows)


@contextmanager
def _null_broker(body: bytes) -> Iterator[_Server]:
    words = [sys.executable, "-m", "benchmarks.null_broker"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(body)
            process.stdin.close()
            yield _Server(f"127.0.0.1:{int(process.stdout.readline())}", psutil.Process(process.pid))
        finally:
            process.terminate()


def _ask_pull(client: Client, address: str, number: int) -> Future[Command]:
    queue, offset = number % _QUEUES, number // _QUEUES % _RANGES * _AT_ONCE
    header = PullMessage("g", TOPIC, queue, offset, _AT_ONCE, _SUBSCRIPTION, 0, 0, 0, "*")
    return client.ask(address, RequestCode.PULL_MESSAGE, header.texts())


def _ask_send(client: Client, address: str, number: int) -> Future[Command]:
    header = SendMessageV2(
        "p", TOPIC, "TBW102", 4, number % _QUEUES, 0, int(time.time() * 1000), 0, f"TAGS\1paid\2KEYS\1o-{number}\2"
    )
    return client.ask(address, RequestCode.SEND_MESSAGE_V2, header.texts(), _BODY)


def _rate(
    server: _Server,
    ask: Callable[[Client, str, int], Future[Command]],
    count: int,
    under_way: int,
    cpu: dict[str, list[float]],
) -> float:
    """Return requests per second. Records the server's CPU seconds for each request."""
    with Client() as client:
        before, begin = sum(server.process.cpu_times()[:2]), time.perf_counter()
        pending: set[Future[Command]] = set()
        for number in range(count):
            pending.add(ask(client, server.address, number))
            if len(pending) >= under_way:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                assert not any(each.result().code for each in done)
        wait(pending)
        seconds = time.perf_counter() - begin
        cpu.setdefault(server.address, []).append((sum(server.process.cpu_times()[:2]) - before) / count)
    return count / seconds
