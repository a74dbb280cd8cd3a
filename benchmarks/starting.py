"""How much CPU does a process take before its first message, against `import pyarrow`, which it includes?"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import TOPIC, show, side_by_side
from store import MessageStore

_PROGRAMS = {
    "import pyarrow": "import pyarrow",
    "import store": "import store",
    "one message put and got": (
        "import sys, store\n"
        "with store.MessageStore.open(sys.argv[1]) as opened:\n"
        f"    put = opened.put(store.Message({TOPIC!r}, b'body', tags='paid', keys='o-1'))\n"
        f"    opened.get_message('g', {TOPIC!r}, put.queue_id, put.queue_offset)\n"
    ),
}


def main(runs: int) -> None:
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        path = Path(folder) / "store"
        with MessageStore.open(path) as store:
            store.create_topic(TOPIC, 1)
        seconds = side_by_side(runs, *(partial(_seconds, program, path) for program in _PROGRAMS.values()))
    rows = [
        [name, f"{took:.2f} s", f"{took - seconds[0]:.2f} s", f"{took / seconds[0]:.2f}"]
        for name, took in zip(_PROGRAMS, seconds, strict=True)
    ]
    show(f"Starting, medians of {runs} runs", ["process", "processor time", "beyond pyarrow", "times pyarrow"], rows)


def _seconds(program: str, path: Path) -> float:
    process = os.posix_spawn(sys.executable, [sys.executable, "-c", program, str(path)], os.environ)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"ended with {os.waitstatus_to_exitcode(status)}: {program}")
    return usage.ru_utime + usage.ru_stime
