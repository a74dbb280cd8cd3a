"""Run the command line: the installed script in a process, or its code in this process."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from pyspark_mq.cli import main
from store import MessageStore

SCRIPT = Path(sys.executable).with_name("pyspark-mq")
TIMEOUT_SECONDS = 60


def run(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, or in its own process if it reads `stdin` from a pipe."""
    words = list(map(str, arguments))
    if stdin is None:
        done = CliRunner().invoke(main, words, prog_name="pyspark-mq", catch_exceptions=False)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
    ended = subprocess.run([SCRIPT, *words], input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS)
    return subprocess.CompletedProcess(words, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def succeed(*arguments: object, stdin: bytes | None = None) -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def started(*arguments: object, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    words = list(map(str, arguments))
    with subprocess.Popen([SCRIPT, *words], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def signal_another_thread(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    """Send a signal to a thread other than the main one, which alone runs Python's handlers."""
    tasks = Path(f"/proc/{process.pid}/task")
    others = [int(task.name) for task in tasks.iterdir() if int(task.name) != process.pid]
    takes = [tid for tid in others if "SigBlk:\t0000000000000000" in (tasks / str(tid) / "status").read_text()]
    assert ctypes.CDLL(None).tgkill(process.pid, takes[0], which) == 0


@contextmanager
def tailing(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [SCRIPT, "tail", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def bodies(path: Path, columns: tuple[str, ...] = ("body",)) -> list[dict[str, object]]:
    with MessageStore.open(path, read_only=True) as store:
        return [
            row
            for queue_id in range(2)
            for batch in store.scan("orders", queue_id, 0, store.max_offset("orders", queue_id), columns=columns)
            for row in batch.to_pylist()
        ]
