"""Our directories after kills, opened by RocketMQ; and directories that RocketMQ appended to after us."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from tests.end_to_end.dying_writers import QUEUES, TOPIC
from tests.end_to_end.test_kill import ROOT, bodies
from tests.rocketmq.harness import RocketMQ, put
from tests.rocketmq.mixes import INDEX

pytestmark = pytest.mark.rocketmq

SMALL = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=2000, **INDEX)


def new_store(path: Path) -> None:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, QUEUES)


def seen_by(rocketmq: RocketMQ, path: Path) -> dict[tuple[int, int], bytes]:
    """(queue, offset) to body of what its reader sees."""
    lines = rocketmq.read(path, INDEX)
    assert not [line for line in lines if line["kind"] == "gap"]
    return {
        (line["queueId"], line["queueOffset"]): base64.b64decode(line["body"])
        for line in lines
        if line["kind"] == "message"
    }


def test_killed_writers_leave_what_rocketmq_recovers(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """It does not know the watermark, so it may also find what was not acknowledged; but nothing less."""
    path, acks = tmp_path / "mq", tmp_path / "mq.acks"
    acks.mkdir()
    new_store(path)
    for seed in range(5):
        command = [sys.executable, "-m", "tests.end_to_end.dying_writers", "random", str(path), "8", str(seed)]
        subprocess.run(command, cwd=ROOT, check=True)
        with MessageStore.open(path, read_only=True) as reader:
            published = bodies(reader)
        assert (path / "abort").exists()
        recovered = seen_by(rocketmq, path)
        assert published.items() <= recovered.items()
        with MessageStore.open(path) as store:  # and back: what RocketMQ recovered is not taken away again
            assert published.items() <= bodies(store).items() <= recovered.items()
        for file in acks.iterdir():
            file.unlink()


def test_killed_between_a_new_queue_file_and_its_first_entry(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ counts the first entry of an empty last file when the log ends before it; here it does not."""
    base, sizes = tmp_path / "base", {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 200}
    with MessageStore.open(base, config=StoreConfig(**sizes, **INDEX)) as store:
        store.create_topic(TOPIC, 2)
        store.put_many([Message(TOPIC, f"old {n}".encode(), queue_id=n % 2) for n in range(20)])
        old = bodies(store)
    new = {(n % 2, 10 + n // 2): bytes([65 + n]) * 700 for n in range(12)}
    paths = [tmp_path / f"{call}" for call in range(40)]
    for path in paths:
        shutil.copytree(base, path)
    calls = "".join(f"append {path} after {call}\n" for call, path in enumerate(paths))
    command = [sys.executable, "-m", "tests.end_to_end.dying_writers", "at"]
    subprocess.run(command, cwd=ROOT, input=calls, text=True, check=True, capture_output=True)
    empty = [path for path in paths if has_empty_queue_file(path)]
    assert len(empty) >= 2
    for path in empty:
        assert seen_by(rocketmq, path) == old | new


def has_empty_queue_file(path: Path) -> bool:
    return any(not any(file.read_bytes()) for file in (path / "consumequeue").glob("*/*/*"))


def test_what_rocketmq_appends_after_us_is_found(rocketmq: RocketMQ, tmp_path: Path) -> None:
    path = tmp_path / "mq"
    new_store(path)
    sizes = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2000, **INDEX}
    expected: dict[tuple[int, int], bytes] = {}
    keys: dict[str, tuple[int, int]] = {}
    for round_number, ending in enumerate(["clean", "halt", "clean", "halt"]):
        with MessageStore.open(path) as store:
            assert bodies(store) == expected
            for n in range(50):
                key = f"ours-{round_number}-{n}"
                result = store.put(Message(TOPIC, f"ours {round_number} {n}".encode() * 5, keys=(key,)))
                keys[key] = result.queue_id, result.queue_offset
                expected[result.queue_id, result.queue_offset] = f"ours {round_number} {n}".encode() * 5
        theirs = [f"theirs {round_number} {n}".encode() * 20 for n in range(200)]
        puts = [
            put(TOPIC, body, n % QUEUES, properties={"KEYS": f"theirs-{round_number}-{n}"})
            for n, body in enumerate(theirs)
        ]
        rocketmq.write(path, puts, sizes, exit=ending)
        for n, body in enumerate(theirs):
            place = n % QUEUES, 1 + max(offset for queue, offset in expected if queue == n % QUEUES)
            expected[place], keys[f"theirs-{round_number}-{n}"] = body, place
        with MessageStore.open(path, read_only=True) as reader:
            assert bodies(reader) == expected
    with MessageStore.open(path) as store:
        for key, place in keys.items():
            assert [(message.queue_id, message.queue_offset) for message in store.query(TOPIC, key)] == [place]
