"""Kill, stop and start orderly consumers at random: each queue keeps its order and no message is lost.

Only messages in hand when their consumer was killed may be delivered twice. `MQ_ORDERLY_SECONDS` sets the duration.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from store import Message, MessageStore
from tests.waiting import until

SECONDS = float(os.environ.get("MQ_ORDERLY_SECONDS", "4"))
SEED = os.environ.get("MQ_ORDERLY_SEED", "")
QUEUES, WORKERS = 16, 4
ROOT = Path(__file__).parents[3]


class Workers:
    def __init__(self, store: Path, file: Path) -> None:
        self._program = [sys.executable, "-m", "tests.store.client.orderly_worker", str(store), str(file)]
        self.living: list[subprocess.Popen[bytes]] = []
        self.killed: set[int] = set()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.living.append(subprocess.Popen(self._program, env=environment, stdout=subprocess.PIPE))

    def kill(self, chance: random.Random) -> None:
        worker = self._one(chance)
        self.killed.add(worker.pid)
        worker.kill()
        worker.wait()

    def stop(self, chance: random.Random) -> None:
        worker = self._one(chance)
        assert worker.stdout is not None
        if worker.stdout.readline():
            worker.terminate()
        assert worker.wait(120) == 0

    def freeze(self, chance: random.Random) -> None:
        worker = chance.choice(self.living)
        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        worker.send_signal(signal.SIGCONT)

    def _one(self, chance: random.Random) -> subprocess.Popen[bytes]:
        return self.living.pop(chance.randrange(len(self.living)))


def consumed(file: Path) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, process) by queue, in the order of consumption."""
    found = defaultdict(list)
    for line in file.read_text().splitlines() if file.exists() else ():
        queue_id, offset, process = map(int, line.split())
        found[queue_id].append((offset, process))
    return found


def test_killed_and_stopped_consumers_keep_the_order(tmp_path: Path) -> None:
    seed = int(SEED or random.randrange(1 << 30))
    print("MQ_ORDERLY_SEED", seed)
    chance = random.Random(seed)
    file = tmp_path / "consumed"
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("t", QUEUES)
        workers = Workers(store.path, file)
        try:
            for _ in range(WORKERS):
                workers.start()
            until(lambda: len(consumed(file)) > 0 or put(store))
            end = time.monotonic() + SECONDS
            while time.monotonic() < end or not workers.killed:
                put(store)
                if chance.random() < 0.1:
                    what = chance.choice([workers.kill, workers.kill, workers.stop, workers.freeze])
                    what(chance)
                    while len(workers.living) < WORKERS:
                        workers.start()
                time.sleep(0.05)
            ends = {queue_id: store.max_offset("t", queue_id) for queue_id in range(QUEUES)}
            until(lambda: all(consumed(file)[queue_id][-1:] and consumed(file)[queue_id][-1][0] + 1 == ends[queue_id]
                              for queue_id in ends), every=0.1)  # fmt: skip
        finally:
            for worker in workers.living:
                worker.kill()
                worker.wait()
    twice = 0
    for queue_id, calls in consumed(file).items():
        expected, before = 0, 0
        for offset, process in calls:
            if offset == expected - 1:
                assert before in workers.killed, (
                    f"queue {queue_id}: {offset} was delivered twice, and process {before} was not killed"
                )
                twice += 1
            else:
                assert offset == expected, f"queue {queue_id}: {offset} after {expected - 1}"
                expected += 1
            before = process
        assert expected == ends[queue_id]
    print(f"{len(workers.killed)} killed, {sum(ends.values())} messages, {twice} came twice")


def put(store: MessageStore) -> bool:
    store.put_many([Message("t", b"x", queue_id=n % QUEUES) for n in range(3 * QUEUES)])
    return False
