"""Executors share no disk with the driver, only the archive, the ledger and staged rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fsspec import filesystem

from store import Message, MessageStore
from tests.end_to_end.test_realtime import needs_pipelined_workers
from tests.hidden import hiding_python, needs_hiding, spark_home
from tests.s3 import SECRET
from tests.waiting import until

ROOT = Path(__file__).parents[2]
BEFORE, LATER = 200, 50


def bodies(store: MessageStore, topic: str) -> list[int]:
    scans = (store.scan(topic, queue, *store.offsets(topic, queue), columns=("body",)) for queue in range(2))
    return sorted(int(body.as_py()) for scan in scans for batch in scan for body in batch["body"])


@needs_pipelined_workers
@needs_hiding
def test_executors_without_the_directory_copy_each_message_once(tmp_path: Path, bucket: str) -> None:
    driver, log = tmp_path / "driver", tmp_path / "log"
    home, python = spark_home(tmp_path), hiding_python(tmp_path)
    with (
        MessageStore.open(driver / "source") as source,
        MessageStore.open(driver / "target") as target,
        log.open("w") as errors,
    ):
        source.create_topic("orders", 2)
        for topic in ("copied", "held"):
            target.create_topic(topic, 2)
        source.put_many([Message("orders", b"%d" % number) for number in range(BEFORE)])
        source.archive(f"{bucket}/archive")
        with subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("elsewhere_query.py")), str(driver), bucket, str(python)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "seen [[], []]\n", log.read_text()
                assert process.stdout.readline() == "copied\n", log.read_text()
                assert bodies(target, "copied") == list(range(BEFORE))
                source.put_many([Message("orders", b"%d" % number) for number in range(BEFORE, BEFORE + LATER)])
                source.archive()
                until(lambda: process.poll() is not None or len(bodies(target, "held")) >= BEFORE + LATER, 0.1)
                process.communicate("stop\n")
                assert process.returncode == 0, log.read_text()
            finally:
                process.kill()
        assert bodies(target, "held") == list(range(BEFORE + LATER))
    assert {name.split("/")[1] for name in filesystem("s3").find(bucket)} == {"archive", "ledger"}
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert SECRET.encode() not in path.read_bytes(), path
