"""How much slower are appends while another process archives the same store?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import TOPIC, filled, messages, side_by_side
from store import MessageStore

_AT_ONCE = 1_000
_PACE = 20_000
_ARCHIVER = """
import sys
from itertools import count
from tempfile import TemporaryDirectory
from store import MessageStore
with MessageStore.open(sys.argv[1], read_only=True) as store:
    print("begins", flush=True)
    for _ in count():
        with TemporaryDirectory(dir=sys.argv[2]) as folder:
            store.archive(folder)
"""


@contextmanager
def archiver(path: Path) -> Iterator[None]:
    """Archives the whole store repeatedly, each time to another directory."""
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        command = [sys.executable, "-c", _ARCHIVER, str(path), folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield
            finally:
                process.kill()


def append_seconds(path: Path, body_bytes: int, seconds: float, pace: float | None, *, archiving: bool) -> float:
    """pace: messages per second, None for full speed."""
    (table,) = messages(_AT_ONCE, body_bytes, at_once=_AT_ONCE)
    if archiving:
        with archiver(path):
            return append_seconds(path, body_bytes, seconds, pace, archiving=False)
    took: list[float] = []
    with MessageStore.open(path) as store:
        end = due = time.perf_counter()
        end += seconds
        while (begin := time.perf_counter()) < end:
            store.append_table(TOPIC, table)
            took.append(time.perf_counter() - begin)
            due += _AT_ONCE / pace if pace else 0
            time.sleep(max(0.0, due - time.perf_counter()))
    return statistics.fmean(took) if pace is None else statistics.median(took)


def rows(count: int, runs: int, body_bytes: int, seconds: float) -> list[list[str]]:
    """Measure at full speed and at a pace, with and without an archiver of at least `count` messages."""
    found = []
    for name, pace in (("full speed", None), (f"{_PACE:,}/s", _PACE)):
        with filled(count, body_bytes) as path:
            measure = partial(append_seconds, path, body_bytes, seconds, pace)
            alone, beside = side_by_side(runs, partial(measure, archiving=False), partial(measure, archiving=True))
        each = f"{alone * 1e3:.2f} ms", f"{beside * 1e3:.2f} ms", f"{alone / beside:.2f}"
        found.append([f"{body_bytes} B", name, *each])
    return found
