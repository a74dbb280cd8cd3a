"""Put delayed messages, deliver the due ones, and die: `python -m tests.store.delays.dying_deliverers STORE NAME`."""

from __future__ import annotations

import itertools
import random
import sys
import time

from store import Message, MessageStore

TOPIC, QUEUES = "orders", 3


def waiting(name: str, number: int, chance: random.Random) -> Message:
    """A message due soon."""
    body = f"{name}-{number}".encode()
    if chance.random() < 0.5:
        return Message(TOPIC, body, delay_level=1)
    return Message(TOPIC, body, deliver_at=int(time.time() * 1000) + chance.randrange(1, 1500))


def main(path: str, name: str) -> None:
    chance = random.Random(name)
    with MessageStore.open(path) as store:
        for number in itertools.count():
            store.put_many([waiting(name, number * 20 + n, chance) for n in range(chance.randrange(1, 20))])
            store.put(Message(TOPIC, b"at once"))
            print("put", flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
