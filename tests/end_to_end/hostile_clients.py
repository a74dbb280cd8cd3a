"""Child processes of `test_hostile_clients`: a server, hostile clients, and a good producer and consumer.

hostile_clients.py serve DIRECTORY                   prints its address, serves until its input ends
hostile_clients.py attack ADDRESS SECONDS            50 connections; prints how many frames each kind sent
hostile_clients.py work ADDRESS SECONDS QUEUE        prints rates of sends and reads, acknowledged, lost
"""

from __future__ import annotations

import json
import math
import socket
import struct
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import count, cycle
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from store.remoting.client import Client
    from store.remoting.command import Command

MIB = 1 << 20
CONNECTIONS = 50
IN_FLIGHT = 32
RATE = 500


def hostile_frames() -> dict[str, bytes]:
    from store.model.codes import RequestCode
    from store.remoting.bodies import MIN_BATCHED_BYTES
    from store.remoting.command import Command, encode
    from store.remoting.headers import PullMessage, SendMessageV2

    def batch(parts: int, properties: str = "") -> bytes:
        header = SendMessageV2("p", "orders", "TBW102", 4, 0, 0, 0, 0, properties, batch=True)
        body = struct.pack(">iiiiih", MIN_BATCHED_BYTES, 0, 0, 0, 0, 0) * parts
        return encode(Command(RequestCode.SEND_BATCH_MESSAGE, header.texts(), body))

    def pull(expression: str, kind: str) -> bytes:
        header = PullMessage("g", "orders", 0, 0, 32, 4, 0, 0, 0, expression, kind)
        return encode(Command(RequestCode.PULL_MESSAGE, header.texts()))

    beats = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "t"}] * 50_000}]}
    fields = {str(number): "" for number in range(60_000)}
    return {
        "batch with properties": batch(20_000, "k\1" + "v" * 30_000),
        "batch of 300,000": batch(300_000),
        "batch of 32,000": batch(32_000),
        "dashes": pull("-" * 32_000, "SQL92"),
        "parentheses": pull("(" * 16_000, "SQL92"),
        "condition": pull(" OR ".join(["a = 1"] * 3_000), "SQL92"),
        "heart-beat": encode(Command(RequestCode.HEART_BEAT, body=json.dumps(beats).encode())),
        "fields": encode(Command(RequestCode.GET_MAX_OFFSET, fields)),
        "unfinished": struct.pack(">i", 15 * MIB) + bytes(14 * MIB),
    }


def tags(number: int) -> bytes:
    """Return a pull with 0.9 MB of tags that no other pull names."""
    from store.model.codes import RequestCode
    from store.remoting.command import Command, encode
    from store.remoting.headers import PullMessage

    header = PullMessage("g", "orders", 0, 0, 32, 4, 0, 0, 0, f"{number}||" + "0123456789||" * 75_000, "TAG")
    return encode(Command(RequestCode.PULL_MESSAGE, header.texts()))


def attack(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    frames = hostile_frames()
    until, sent = time.monotonic() + seconds, Counter[str]()
    numbers = count()

    def run(first: int) -> None:
        kinds = cycle([*list(frames)[first % len(frames) :], *list(frames)[: first % len(frames)], "tags"])
        while time.monotonic() < until:
            kind = next(kinds)
            with suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as hostile:
                hostile.sendall(tags(next(numbers)) if kind == "tags" else frames[kind])
                sent[kind] += 1
                hostile.recv(1)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(sent), flush=True)


def work(address: str, seconds: float, queue_id: int) -> None:
    from store.model.codes import RequestCode
    from store.remoting.client import Client
    from store.remoting.headers import SendMessageV2, TopicQueue

    acknowledged: list[bytes] = []
    read: list[bytes] = []
    ended = threading.Event()
    with Client(timeout=60) as client:
        queue = TopicQueue("orders", queue_id).texts()
        first = int(client.request(address, RequestCode.GET_MAX_OFFSET, queue).fields["offset"])
        pulls = _read(client, address, Queue(queue_id, first), ended, acknowledged)
        reader = threading.Thread(target=lambda: read.extend(pulls))
        reader.start()
        begin = time.monotonic()
        waiting: deque[tuple[bytes, Future[Command]]] = deque()
        header = SendMessageV2("good", "orders", "TBW102", 4, queue_id, 0, 0, 0).texts()
        for number in count():
            if time.monotonic() - begin > seconds:
                break
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            body = b"%d-%d" % (queue_id, number)
            waiting.append((body, client.ask(address, RequestCode.SEND_MESSAGE_V2, header, body)))
            if len(waiting) == IN_FLIGHT:
                _finish(waiting, acknowledged)
        sent_in_time, read_in_time = len(acknowledged), len(read)
        while waiting:
            _finish(waiting, acknowledged)
        ended.set()
        reader.join()
    lost = len(set(acknowledged) - set(read))
    print(json.dumps([sent_in_time / seconds, read_in_time / seconds, len(acknowledged), lost]), flush=True)


def _finish(waiting: deque[tuple[bytes, Future[Command]]], acknowledged: list[bytes]) -> None:
    body, answer = waiting.popleft()
    found = answer.result()
    assert found.code == 0, found
    acknowledged.append(body)


class Queue(NamedTuple):
    id: int
    offset: int


def _read(client: Client, address: str, queue: Queue, ended: threading.Event, sent: list[bytes]) -> Iterator[bytes]:
    from store.format.stored_message import decode_record
    from store.model.codes import RequestCode
    from store.remoting.headers import PullMessage

    offset, read, deadline = queue.offset, 0, math.inf
    while not ended.is_set() or (read < len(sent) and time.monotonic() < deadline):
        if ended.is_set():
            deadline = min(deadline, time.monotonic() + 60)
        header = PullMessage("good", "orders", queue.id, offset, 32, 2 | 4, 0, 1_000, 0, "*", "TAG")
        pulled = client.ask(address, RequestCode.PULL_MESSAGE, header.texts()).result()
        offset = int(pulled.fields.get("nextBeginOffset", offset))
        body, at = bytes(pulled.body), 0
        while at < len(body):
            (size,) = struct.unpack_from(">i", body, at)
            yield decode_record(body[at : at + size], "a pulled record").body
            at, read = at + size, read + 1


if __name__ == "__main__":
    _, what, where, *rest = sys.argv
    if what == "attack":
        attack(where, float(rest[0]))
    else:
        work(where, float(rest[0]), int(rest[1]))
