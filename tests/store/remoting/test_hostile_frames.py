"""Send randomly changed frames: other clients are served, and no resources leak.

HOSTILE_FRAMES=100000 runs so many. Each run has a new seed; HOSTILE_SEED repeats one.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from itertools import count

import psutil
import pytest

from store import MessageStore
from store.model.codes import CommandFlag, RequestCode, ResponseCode, Serialization
from store.remoting.client import Client
from store.remoting.command import Command, Frames, decode, encode
from store.remoting.headers import (
    CommitOffset,
    ConsumerGroup,
    ConsumeStats,
    EndTransaction,
    GetRoute,
    GroupQueue,
    PullMessage,
    QueryMessage,
    ResetOffset,
    SearchOffset,
    SendBack,
    SendMessage,
    Topic,
    TopicQueue,
    ViewMessage,
)
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.store.remoting.broker import SUBSCRIPTION, SUSPEND, Broker, send
from tests.waiting import until

FRAMES = int(os.environ.get("HOSTILE_FRAMES", "400"))
SEED = int(os.environ.get("HOSTILE_SEED", str(random.randrange(1 << 30))))
SECONDS = 0.2
MEMORY_BYTES = 64 << 20  # allowed growth, whatever the number of frames
BEAT = (
    b'{"clientID":"me@1","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"other","subString":"*",'
    b'"subVersion":1}],"consumeType":"CONSUME_PASSIVELY"}],"producerDataSet":[{"groupName":"p"}]}'
)
LOCK = b'{"consumerGroup":"g","clientId":"me@1","mqSet":[{"topic":"other","queueId":0,"brokerName":"broker-a"}]}'
BATCH = struct.pack(">iiiii", 27, 0, 0, 0, 1) + b"a" + struct.pack(">h", 4) + b"a\1b\2"
HELD = PullMessage("g", "other", 0, 0, 32, SUSPEND | SUBSCRIPTION, 0, 2000, 0, "a || b")
REQUESTS = [
    Command(RequestCode.SEND_MESSAGE, send(SendMessage, topic="other").texts(), b"body"),
    Command(RequestCode.SEND_MESSAGE_V2, send(topic="other", properties="TAGS\1a\2KEYS\1k\2").texts(), b"body" * 20),
    Command(RequestCode.SEND_MESSAGE_V2, send(topic="other", properties="TRAN_MSG\1true\2").texts(), b"half"),
    Command(RequestCode.SEND_MESSAGE_V2, send(topic="other", properties="DELAY\0011\2").texts(), b"later"),
    Command(RequestCode.SEND_BATCH_MESSAGE, send(topic="other", batch=True).texts(), BATCH),
    Command(RequestCode.PULL_MESSAGE, HELD.texts()),
    Command(RequestCode.QUERY_MESSAGE, QueryMessage("other", "k", 32, 0, 1 << 50).texts()),
    Command(RequestCode.QUERY_CONSUMER_OFFSET, GroupQueue("g", "other", 0).texts()),
    Command(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset("g", "other", 0, 1).texts()),
    Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset("other", 0, 1).texts()),
    Command(RequestCode.GET_MAX_OFFSET, TopicQueue("other", 0).texts()),
    Command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(0).texts()),
    Command(RequestCode.HEART_BEAT, {}, BEAT),
    Command(RequestCode.CONSUMER_SEND_MSG_BACK, SendBack(0, "g", 0).texts()),
    Command(RequestCode.END_TRANSACTION, EndTransaction("p", 0, 0, 8, "id").texts(), flag=CommandFlag.ONEWAY),
    Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroup("g").texts()),
    Command(RequestCode.LOCK_BATCH_MQ, {}, LOCK),
    Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("other").texts()),
    Command(RequestCode.GET_TOPIC_STATS_INFO, Topic("other").texts()),
    Command(RequestCode.GET_CONSUME_STATS, ConsumeStats("g").texts()),
    Command(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset("g", "other", 0, is_force=True).texts()),
    Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"g","retryMaxTimes":3}'),
]


def changed(frame: bytes, chance: random.Random) -> bytes:
    """Change some of a frame; half of the time only letters and digits, so that it can still be decoded."""
    found = bytearray(frame)
    if chance.random() < 0.5:
        readable = [at for at in range(8, len(found)) if chr(found[at]).isalnum()]
        for at in chance.sample(readable, chance.randrange(1, 4)):
            found[at] = ord(chance.choice("0123456789" if chr(found[at]).isdigit() else "abTU%"))
        return bytes(found)
    ways: list[Callable[[int], object]] = [
        lambda at: found.__setitem__(at, chance.randrange(256)),
        lambda at: found.__setitem__(chance.randrange(8), chance.randrange(256)),
        lambda at: found.__delitem__(slice(at, at + chance.randrange(9))),
        lambda at: found.__setitem__(slice(at, at), chance.randbytes(3)),
        lambda at: found.__setitem__(slice(at, at), found[8:at]),
        lambda at: found.__setitem__(slice(at, at), b'{"a":[' * 30),
        lambda at: found.__setitem__(slice(at, at), b"9" * 40),
    ]
    for _ in range(chance.randrange(1, 4)):
        if len(found) > 10:
            chance.choice(ways)(chance.randrange(8, len(found)))
    if chance.random() < 0.9:
        (mark,) = struct.unpack_from(">i", frame, 4)
        grown = len(found) - len(frame) if chance.random() < 0.8 else 0
        struct.pack_into(">ii", found, 0, len(found) - 4, max(0, mark + grown))
    return bytes(found)


def frames(number: int, chance: random.Random) -> Iterator[bytes]:
    real = []
    for command in REQUESTS:
        for command.serialization in Serialization:
            real.append(encode(command))
    return (changed(chance.choice(real), chance) for _ in range(number))


def test_changed_frames_leak_no_resources(
    store: MessageStore, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    chance, process = random.Random(SEED), psutil.Process()
    caplog.set_level(logging.ERROR, "store.remoting")
    store.create_topic("other", 2)
    with serve(store, "127.0.0.1:0", config=BrokerConfig(autoCreateTopicEnable=False)) as serving:
        broker = Broker(serving, client)
        feed(broker, frames(min(FRAMES, 500), chance), chance)  # load modules and fill pools first
        gc.collect()
        before, descriptors, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
        heard = feed(broker, frames(FRAMES, chance), chance)
        assert FRAMES / 5 < heard < FRAMES, f"HOSTILE_SEED={SEED}"  # otherwise most frames would not even be decoded
        until(lambda: serving.connections <= 1)
        until(lambda: serving.held == 0)
        gc.collect()
        assert process.memory_info().rss - before < MEMORY_BYTES, f"HOSTILE_SEED={SEED}"
        assert process.num_fds() <= descriptors + 100
        assert process.num_threads() <= threads + 8
        assert broker.send(b"still here").code == ResponseCode.SUCCESS
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [], f"HOSTILE_SEED={SEED}"
    assert [message.body for message in store.get_message("g", "orders", 0, 0).messages] == [b"still here"]


class Stranger:
    """A connection that sends any frame, and then checks whether it is still served."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=SECONDS)
        self._frames, self._opaques = Frames(), count(1 << 20)

    def says(self, frame: bytes) -> bool:
        """Return whether the next request was answered; every answer must be a frame."""
        asked = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders").texts(), opaque=next(self._opaques))
        try:
            self.socket.sendall(frame + encode(asked))
            while data := self.socket.recv(1 << 16):
                for found in self._frames.feed(data):
                    answer = decode(found)
                    if answer.opaque == asked.opaque and answer.is_response:
                        assert answer.code == ResponseCode.SUCCESS
                        return True
        except (ConnectionError, TimeoutError):
            pass
        self.socket.close()
        return False


def feed(broker: Broker, found: Iterator[bytes], chance: random.Random) -> int:
    """Return how many frames left their connection open."""
    stranger, heard = Stranger(broker.address), 0
    for frame in found:
        if stranger.says(frame):
            heard += 1
        else:
            stranger = Stranger(broker.address)
        if chance.random() < 0.01:
            route = broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRoute("orders"))
            assert route.code == ResponseCode.SUCCESS, f"HOSTILE_SEED={SEED}"
    stranger.socket.close()
    return heard
