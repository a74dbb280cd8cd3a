"""Produce until killed: `python -m tests.store.client.killed_producer STORE NAME ACKS [COUNT]`.

It uses four sharding keys of its own, with ascending numbers in each. Acknowledged messages are appended to the file
ACKS, each in one write. With COUNT it is a named producer that sends COUNT messages, and starts again from the first
one in each run.
"""

from __future__ import annotations

import itertools
import os
import sys
from concurrent.futures import Future

from store import Producer, PutStatus
from store.append.putting import PutResult

TOPIC, QUEUES, KEYS = "t", 3, 4


def main(path: str, name: str, acks: str, count: str | None = None) -> None:
    fd = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(body: str, future: Future[PutResult]) -> None:
        result = future.result()
        if result.status is not PutStatus.PUT_OK:
            return
        os.write(fd, f"{result.queue_id} {result.queue_offset} {body}\n".encode())

    with Producer(path, None if count is None else name, buffer_bytes=50_000) as producer:
        for number in itertools.count() if count is None else range(int(count)):
            key = f"{name}/{number % KEYS}"
            body = f"{key}#{number}"
            producer.send(
                TOPIC, body, tags="tag", keys=body, sharding_key=key, sequence=None if count is None else number
            ).add_done_callback(
                lambda future, body=body: note(body, future)  # type: ignore[misc]
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
