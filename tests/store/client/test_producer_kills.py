from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from store import MessageStore, StoreConfig
from store.upkeep.verify import verify
from tests.end_to_end.test_kill import ROOT, acknowledged_in, bodies
from tests.store.client.killed_producer import KEYS, QUEUES, TOPIC
from tests.waiting import until

COUNT = 6000
ROUNDS = int(os.environ.get("MQ_PRODUCER_KILLS", "2"))
AT_ONCE = 2
SMALL = StoreConfig(mappedFileSizeCommitLog=1 << 18, mappedFileSizeConsumeQueue=20_000, maxMessageSize=4096)


def test_producers_killed_at_random_moments(tmp_path: Path) -> None:
    path, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, QUEUES)
    for round_ in range(ROUNDS):
        files = [acks / f"{round_}-{number}" for number in range(AT_ONCE)]
        producers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.store.client.killed_producer", path, file.name, file], cwd=ROOT
            )
            for file in files
        ]
        try:
            for producer, file in zip(producers, files, strict=True):
                until(lambda file=file: file.exists() and file.stat().st_size > 0)  # type: ignore[misc]
                time.sleep(random.random() / 20)
                producer.kill()
        finally:
            for producer in producers:
                producer.kill()
                assert producer.wait() < 0
    with MessageStore.open(path):
        pass
    assert verify(path).findings == []
    with MessageStore.open(path, read_only=True) as store:
        found = bodies(store, TOPIC)
    acknowledged = acknowledged_in(acks)
    assert len(acknowledged) >= ROUNDS * AT_ONCE
    assert acknowledged.items() <= found.items()
    assert len(set(found.values())) == len(found)
    last: dict[tuple[int, bytes], int] = {}
    for (queue, _), body in sorted(found.items()):
        key, _, number = body.partition(b"#")
        assert int(number) < KEYS if (queue, key) not in last else int(number) == last[queue, key] + KEYS
        last[queue, key] = int(number)
    keys = [key for _, key in last]
    assert len(set(keys)) == len(keys), "a key is in two queues"


def test_named_producer_sends_all_again_after_each_kill(tmp_path: Path) -> None:
    path, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, QUEUES)
    program = [sys.executable, "-m", "tests.store.client.killed_producer", path, "importer"]
    for round_ in range(ROUNDS):
        file = acks / str(round_)
        producer = subprocess.Popen([*program, file, str(COUNT)], cwd=ROOT)
        until(lambda file=file, producer=producer: producer.poll() == 0 or (file.exists() and file.stat().st_size > 0))  # type: ignore[misc]
        producer.kill()
        producer.wait()
    subprocess.run([*program, acks / "last", str(COUNT)], cwd=ROOT, check=True)
    with MessageStore.open(path, read_only=True) as store:
        found = bodies(store, TOPIC)
    assert acknowledged_in(acks).items() <= found.items()
    numbers: dict[bytes, list[int]] = {}
    for _, body in sorted(found.items()):
        key, _, number = body.partition(b"#")
        numbers.setdefault(key, []).append(int(number))
    assert numbers == {f"importer/{key}".encode(): list(range(key, COUNT, KEYS)) for key in range(KEYS)}
