"""Programs that delete a topic while others put into it, run as processes so that they can be killed.

python -m tests.store.broker.dying_deleters STORE delete: for each number N read from standard input, a child deletes
the topic and is killed before call N, from 0, of its file system calls from the first that leaves a trace. Prints how
the child ended.

python -m tests.store.broker.dying_deleters STORE put NAME: puts until standard input ends, and creates the topic if it
is missing. Prints the acknowledged messages.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

from store import Message, MessageStore, UnknownTopic
from store.api.message_store import delete_topic
from store.disk.topics import Topics
from store.format.layout import DELETED_DIR
from tests.waiting import until

TOPIC, QUEUES = "t", 2
STEPS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")


def delete(path: Path) -> None:
    for line in sys.stdin:
        until(lambda: Topics(path).queue_count(TOPIC) > 0)
        child = os.fork()
        if not child:
            _delete_and_die(path, int(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _delete_and_die(path: Path, at: int) -> None:
    left = itertools.count(at, -1)
    begun = False

    def look(event: str, args: tuple[object, ...]) -> None:
        nonlocal begun
        if event in STEPS and isinstance(args[0], str | Path) and str(args[0]).startswith(str(path)):
            begun = begun or Path(args[0]).name == DELETED_DIR
            if begun and not next(left):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    delete_topic(path, TOPIC)
    os._exit(0)


def put(path: Path, name: str) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    with MessageStore.open(path) as store:
        for number in itertools.count():
            if over.is_set():
                return
            messages = [Message(TOPIC, f"{name}-{number}-{n}", keys=("k",)) for n in range(1 + number % 40)]
            try:
                for message, result in zip(messages, store.put_many(messages), strict=True):
                    print(result.physical_offset, result.queue_id, result.queue_offset, message.body)
            except UnknownTopic:
                store.create_topic(TOPIC, QUEUES)
            sys.stdout.flush()
            time.sleep(0.003)


if __name__ == "__main__":
    put(Path(sys.argv[1]), sys.argv[3]) if sys.argv[2] == "put" else delete(Path(sys.argv[1]))
