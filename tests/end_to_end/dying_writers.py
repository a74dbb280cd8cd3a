"""Writers that die. The program forks them, so that a hundred deaths take seconds.

    python -m tests.end_to_end.dying_writers random STORE KILLS SEED
    python -m tests.end_to_end.dying_writers at

`random`: runs three writers at any time and kills one after the other with SIGKILL. Each writes its acknowledged
messages to STORE.acks/, one line `queue offset body` a message.
`at`: reads lines `VERB STORE MODE CALL` from standard input. VERB is append (one `put_many`), publish (several parts in
one publication) or open (one open and close). The process dies before its CALL-th system call that changes anything. If
MODE is half, it dies in the middle of that call's write, or after the call if it writes nothing. Prints "done" if it
made fewer calls, then the exit status.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from store import Message, MessageStore
from store.append.published_end import PublishedEnd

TOPIC, QUEUES = "t", 3
_WORD_BYTES = 8  # the kernel copies aligned words, such as the published end, in one instruction
WRITERS = 3


def key_of(body: str) -> str:
    return body.rpartition("-")[0]


def append_until_killed(store_path: str, name: str) -> None:
    chance = random.Random(name)
    acknowledged = os.open(f"{store_path}.acks/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    store = MessageStore.open(store_path)
    numbers = itertools.count()
    while True:
        count = chance.choice([1, 1, 2, 7, 60])
        bodies = [f"{name}-{next(numbers)}-{'x' * chance.randrange(200)}" for _ in range(count)]
        if chance.random() < 0.5:
            put = store.put_many([Message(TOPIC, body.encode(), tags="x", keys=(key_of(body),)) for body in bodies])
            placed = [(result.queue_id, result.queue_offset) for result in put]
        else:
            result = store.append_table(TOPIC, pa.table({"body": bodies, "keys": list(map(key_of, bodies))}))
            placed = list(zip(result.queue_ids.tolist(), result.queue_offsets.tolist(), strict=True))
        lines = [f"{queue} {offset} {body}\n" for (queue, offset), body in zip(placed, bodies, strict=True)]
        os.write(acknowledged, "".join(lines).encode())


def start(store_path: str, name: str) -> int:
    pid = os.fork()
    if pid == 0:
        append_until_killed(store_path, name)
    return pid


def kill_at_random(store_path: str, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    names = (f"w{seed}.{number}" for number in itertools.count())
    alive = [start(store_path, next(names)) for _ in range(WRITERS)]
    acks = Path(f"{store_path}.acks")
    while not any(each.stat().st_size for each in acks.glob(f"w{seed}.*")):
        time.sleep(0.001)
    for _ in range(kills):
        time.sleep(chance.random() * 0.06)
        victim = alive.pop(chance.randrange(len(alive)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        alive.append(start(store_path, next(names)))
    for victim in alive:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)


@cache
def to_append() -> tuple[list[Message], pa.Table]:
    """Return messages, and some of them as a table; pyarrow may import pandas to make it."""
    messages = [
        Message(TOPIC, bytes([65 + n]) * 700, queue_id=n % 2, tags="x", keys=(f"k{n}", "all")) for n in range(12)
    ]
    rows = [{"body": each.body, "queueId": each.queue_id, "keys": list(each.keys)} for each in messages]
    return messages, pa.Table.from_pylist(rows[1:7])


def die_at(verb: str, store_path: str, mode: str, call: int) -> None:
    """Count the calls that touch the directory, and die at number `call`."""
    calls = itertools.count()

    def dying(original: Any, *, splits: bool = False, counts: Callable[..., object] = lambda *args: True) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            mine = bool(counts(*args)) and next(calls) == call
            if mine and mode == "before":
                os._exit(9)
            if mine and mode == "half" and splits and len(args[1]) > _WORD_BYTES:
                fd, data, position = args
                original(fd, data[: len(data) // 2], position)
                os._exit(9)
            try:
                return original(*args, **kwargs)
            finally:
                if mine:
                    os._exit(9)

        return wrapped

    store = MessageStore.open(store_path) if verb != "open" else None
    os.pwrite = dying(os.pwrite, splits=True)
    os.open = dying(os.open, counts=lambda path, flags, *mode: flags & os.O_CREAT)
    for name in ("ftruncate", "truncate", "mkdir", "unlink", "link", "rename", "replace", "fsync"):
        setattr(os, name, dying(getattr(os, name)))
    PublishedEnd.announce = dying(PublishedEnd.announce)  # type: ignore[method-assign]
    messages, table = to_append()
    if store is None:
        MessageStore.open(store_path).close()
    elif verb == "append":
        store.put_many(messages)
    else:
        append = store.begin()
        append.add_messages(messages[:1])
        append.add(TOPIC, table)
        append.add_messages(messages[7:])
        append.publish()
    print("done", flush=True)
    os._exit(0)


def main() -> None:
    if sys.argv[1] == "random":
        store_path, kills, seed = sys.argv[2:]
        kill_at_random(store_path, int(kills), int(seed))
        return
    to_append()
    for line in sys.stdin:
        verb, store_path, mode, call = line.split()
        pid = os.fork()
        if pid == 0:
            die_at(verb, store_path, mode, int(call))
        print(f"exit {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}", flush=True)


if __name__ == "__main__":
    main()
