from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from store import MessageStore, StoreConfig
from store.disk.topics import Topics
from store.format.layout import DELETED_DIR, PUBLISHED_END_FILE
from store.upkeep.verify import verify
from tests.end_to_end.test_kill import ROOT
from tests.store.broker.dying_deleters import QUEUES, TOPIC

CONFIG = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=100)
# at most; the loop stops when the deletion survives
PLACES = int(os.environ.get("MQ_DELETION_KILLS", "1000"))
WRITERS = 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mq"


def said(path: Path) -> dict[int, tuple[int, int, bytes]]:
    """Map log offset to queue, queue offset and body of each acknowledged message."""
    lines = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {int(at): (int(queue), int(offset), body.encode()) for at, queue, offset, body in lines}


@pytest.fixture
def programs() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    with ExitStack() as stack:

        def start(*arguments: object, **how: object) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "tests.store.broker.dying_deleters", *map(str, arguments)]
            program = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload]
            stack.callback(program.wait)
            stack.callback(program.kill)
            return program

        yield start


def test_deletion_killed_at_any_step_while_others_put(
    path: Path, tmp_path: Path, programs: Callable[..., subprocess.Popen[str]]
) -> None:
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic(TOPIC, QUEUES)
        store.commit_offsets("g", TOPIC, {0: 1})
    files = [tmp_path / str(number) for number in range(WRITERS)]
    writers = [programs(path, "put", file.name, stdout=file.open("w")) for file in files]
    deleter, ends = programs(path, "delete", stdout=subprocess.PIPE), []
    assert deleter.stdin is not None
    assert deleter.stdout is not None
    while len(ends) < PLACES and 0 not in ends:
        deleter.stdin.write(f"{len(ends)}\n")
        deleter.stdin.flush()
        status = int(deleter.stdout.readline())
        ends += [status] if status <= 0 else []
    assert set(ends[:-1]) <= {-9}
    assert PLACES < 1000 or len(ends) > 10
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
        assert writer.wait() == 0
    assert verify(path).findings == []
    assert not (path / DELETED_DIR).exists()
    deleted = Topics(path).deletions()[TOPIC]
    acknowledged = {at: where for file in files for at, where in said(file).items()}
    places = [(queue, offset) for queue, offset, _ in acknowledged.values()]
    assert len(places) == len(set(places)), "no offset is given twice"
    left = {(queue, offset): body for at, (queue, offset, body) in acknowledged.items() if at >= deleted}
    assert len(left) == len({at for at in acknowledged if at >= deleted})
    for file in (PUBLISHED_END_FILE, "nothing"):
        (path / file).unlink(missing_ok=True)
        with MessageStore.open(path) as store:
            found = dict[tuple[int, int], bytes]()
            if TOPIC in store.topics():
                for queue in range(QUEUES):
                    begin, end = store.offsets(TOPIC, queue)
                    scanned = store.scan(TOPIC, queue, begin, end, ["queueOffset", "body"])
                    rows = [row for batch in scanned for row in batch.to_pylist()]
                    assert [row["queueOffset"] for row in rows] == list(range(begin, end))
                    found |= {(queue, row["queueOffset"]): row["body"] for row in rows}
            assert found == left
