"""`python -m benchmarks.latency_writer STORE RATE SECONDS`: append at a steady rate, with the time of the put as body.

A body is microseconds since 1970 in decimal digits. Puts that are due together are one append.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.bench import QUEUES, TOPIC
from store import Message, MessageStore


def write(path: Path, rate: float, seconds: float) -> None:
    with MessageStore.open(path) as store:
        begin, done = time.monotonic(), 0
        while (now := time.monotonic() - begin) < seconds:
            due = int(now * rate) + 1
            if due > done:
                stamp = b"%d" % (time.time_ns() // 1000)
                store.put_many([Message(TOPIC, stamp, queue_id=n % QUEUES) for n in range(done, due)])
                done = due
            time.sleep(max(0.0, begin + done / rate - time.monotonic()))


if __name__ == "__main__":
    write(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
