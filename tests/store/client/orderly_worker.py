"""Consume topic t in order until SIGTERM: `python -m tests.store.client.orderly_worker STORE FILE`.

Each call appends a line to FILE: queue, offset, process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from store import ConsumeFromWhere, Consumer, ConsumerConfig, ReceivedMessage


def main(path: str, file: str) -> None:
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def listener(messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            os.write(out, b"%d %d %d\n" % (message.queue_id, message.queue_offset, os.getpid()))
            time.sleep(0.001)

    config = ConsumerConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        consume_thread_max=4,
        suspend_current_queue_time=0.01,
    )
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with Consumer(path, "g", "t", listener, orderly=True, config=config):
        print("ready", flush=True)
        while not told.wait(0.05):  # the signal may arrive in a thread that cannot end the wait
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
