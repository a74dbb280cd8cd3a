"""RocketMQ opens our directories after kills, and we open directories that RocketMQ appended to after us."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from tests.end_to_end.dying_writers import QUEUES, TOPIC
from tests.end_to_end.test_kill import ROOT, acknowledged_in, bodies
from tests.rocketmq.harness import RocketMQ, put
from tests.rocketmq.mixes import INDEX

pytestmark = pytest.mark.rocketmq

DYING_WRITERS = [sys.executable, "-m", "tests.end_to_end.dying_writers"]
ROUNDS = int(os.environ.get("ROUNDS", "5"))  # each kills writers, then RocketMQ recovers their directory
ROUNDS_A_STORE = 5
KILLS = 8
WHOLE = re.compile(rb"w\d+\.\d+-\d+-x*")  # bodies of dying_writers
WRITES_THE_LOG = 1  # the call of a dying append
SIZES = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2000}
SMALL = StoreConfig(**SIZES, **INDEX)


def new_store(path: Path) -> None:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, QUEUES)


def seen_by(rocketmq: RocketMQ, path: Path) -> dict[tuple[int, int], bytes]:
    lines = rocketmq.read(path, INDEX)
    assert not [line for line in lines if line["kind"] == "gap"]
    return {
        (line["queueId"], line["queueOffset"]): base64.b64decode(line["body"])
        for line in lines
        if line["kind"] == "message"
    }


def test_rocketmq_recovers_a_directory_of_killed_writers(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ ignores the watermark, so it may also find unacknowledged messages; none is missing or torn."""
    for first in range(0, ROUNDS, ROUNDS_A_STORE):
        path, acks = tmp_path / f"mq-{first}", tmp_path / f"mq-{first}.acks"
        acks.mkdir()
        new_store(path)
        for seed in range(first, min(first + ROUNDS_A_STORE, ROUNDS)):
            subprocess.run([*DYING_WRITERS, "random", str(path), str(KILLS), str(seed)], cwd=ROOT, check=True)
            with MessageStore.open(path, read_only=True) as reader:
                published = bodies(reader)
            assert acknowledged_in(acks).items() <= published.items()
            assert (path / "abort").exists()
            recovered = seen_by(rocketmq, path)
            assert published.items() <= recovered.items()
            assert max(Counter(recovered.values()).values()) == 1
            assert all(WHOLE.fullmatch(body) for body in recovered.values())
            with MessageStore.open(path) as store:
                assert published.items() <= bodies(store).items() <= recovered.items()
        shutil.rmtree(path)


def test_rocketmq_recovers_an_interrupted_repair_of_queue_files(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ counts the first entry of an empty last file when the log ends before it. Only a repair leaves such a
    file, for a moment, while the log has the records."""
    base, sizes = tmp_path / "base", {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 200}
    with MessageStore.open(base, config=StoreConfig(**sizes, **INDEX)) as store:
        store.create_topic(TOPIC, 2)
        store.put_many([Message(TOPIC, f"old {n}".encode(), queue_id=n % 2) for n in range(20)])
        old = bodies(store)
    new = {(n % 2, 10 + n // 2): bytes([65 + n]) * 700 for n in range(12)}
    paths = [shutil.copytree(base, tmp_path / f"{call}") for call in range(30)]
    calls = "".join(f"append {path} after {call}\n" for call, path in enumerate(paths))
    subprocess.run([*DYING_WRITERS, "at"], cwd=ROOT, input=calls, text=True, check=True, capture_output=True)
    assert not any(map(has_empty_queue_file, paths))
    begun = [path for path in paths if len(list((path / "consumequeue").glob("*/*/*"))) > 2]
    again = [shutil.copytree(path, tmp_path / f"{path.name}-{call}") for path in begun for call in range(3)]
    calls = "".join(f"append {path} after {path.name.partition('-')[2]}\n" for path in again)
    subprocess.run([*DYING_WRITERS, "at"], cwd=ROOT, input=calls, text=True, check=True, capture_output=True)
    empty = [path for path in again if has_empty_queue_file(path)]
    for path in (begun[0], empty[0], empty[-1]):
        assert seen_by(rocketmq, path) == old | new


@pytest.mark.parametrize(("ending", "messages"), [("clean", 4), ("halt", 4), ("clean", 0)])
def test_rocketmq_appends_after_a_dead_append(rocketmq: RocketMQ, tmp_path: Path, ending: str, messages: int) -> None:
    """RocketMQ continues after the dead append's last whole record, before the announced end."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic(TOPIC, 2)
        store.put_many([Message(TOPIC, f"old {n}".encode(), queue_id=n % 2) for n in range(20)])
        old = bodies(store)
    subprocess.run(
        [*DYING_WRITERS, "at"], cwd=ROOT, input=f"append {path} half {WRITES_THE_LOG}\n", text=True, check=True
    )
    rocketmq.write(path, [put(TOPIC, b"theirs", n % 2) for n in range(messages)], {**SIZES, **INDEX}, exit=ending)
    with MessageStore.open(path) as store:
        found = list(bodies(store).values())
    assert found.count(b"theirs") == messages
    died = [body for body in found if len(body) == 700]
    assert 0 < len(died) < 12, "messages that RocketMQ served stay"
    assert len(found) == len(old) + len(died) + messages


def has_empty_queue_file(path: Path) -> bool:
    return any(not any(file.read_bytes()) for file in (path / "consumequeue").glob("*/*/*"))


def test_messages_that_rocketmq_appends_after_us_are_found(rocketmq: RocketMQ, tmp_path: Path) -> None:
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
