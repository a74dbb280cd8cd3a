"""A server limited to 512 MiB serves good clients without loss during attacks by hostile clients.

`HOSTILE_SECONDS=600` runs the long trial, which also requires half of the good clients' normal rate. The limit is
RLIMIT_DATA (heap and stacks), because RLIMIT_AS also counts the store's mapped files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store import MessageStore

CHILD = Path(__file__).parent / "hostile_clients.py"
LIMIT_BYTES = 512 << 20
SECONDS = float(os.environ.get("HOSTILE_SECONDS", "5"))


@contextmanager
def limited_server(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    limit = ["prlimit", f"--data={LIMIT_BYTES}"]
    serve = [sys.executable, "-m", "pyspark_mq", "serve", str(directory), "--listen", "127.0.0.1:0"]
    log = directory.parent / "server.log"
    with (
        open(log, "w") as errors,
        subprocess.Popen(limit + serve, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        found = re.search(r"at (\S+);", process.stdout.readline())
        assert found is not None, log.read_text()
        try:
            yield process, found[1]
        finally:
            process.send_signal(signal.SIGTERM)
    assert "MemoryError" not in log.read_text()


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate()
    assert process.returncode == 0
    found: list[float] = json.loads(out)
    return found


def peak_of(process: subprocess.Popen[str]) -> str:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return ", ".join(line for line in status.splitlines() if line.startswith(("VmHWM", "VmData")))


def test_server_in_limited_memory_survives_hostile_clients(tmp_path: Path) -> None:
    directory = tmp_path / "mq"
    with MessageStore.open(directory) as store:
        store.create_topic("orders", 2)
    with limited_server(directory) as (process, address):
        sends, reads, _, lost = result_of(started("work", address, str(min(SECONDS, 20)), "0"))
        assert lost == 0
        attack = started("attack", address, str(SECONDS + 2))
        under = result_of(started("work", address, str(SECONDS), "1"))
        frames, _ = attack.communicate()
        print(f"alone {sends:.0f} sends/s, {reads:.0f} reads/s; attacked {under[0]:.0f}, {under[1]:.0f}", frames)
        print(peak_of(process))
        assert process.poll() is None
        assert under[2] > 0
        assert under[3] == 0
        if SECONDS >= 60:
            assert under[0] >= sends / 2
            assert under[1] >= reads / 2
