"""The example as a user runs it: a worker and a query over one topic, side by side."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark_mq.flights import as_messages, load_flights
from store import MessageStore
from tests.waiting import until

ROOT = Path(__file__).parents[2]
ROWS = 20_000


def test_both_read_everything_and_the_groups_say_so(tmp_path: Path) -> None:
    flights = load_flights().slice(0, ROWS)
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("flights", 4)
        store.append_table("flights", as_messages(flights))
        ends = [store.max_offset("flights", queue_id) for queue_id in range(4)]
        bodies = [
            json.loads(body)
            for queue_id in range(4)
            for batch in store.scan("flights", queue_id, 0, ends[queue_id], columns=("body",))
            for body in batch["body"].to_pylist()
        ]
    program = [ROOT / "examples" / "shared_topic.py"]
    of_both = ["--store", tmp_path / "mq"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen(
        [sys.executable, *program, "worker", *of_both], env=environment, stdout=subprocess.PIPE, text=True
    )
    submit = Path(sys.executable).with_name("spark-submit")
    query = subprocess.run(
        [
            *(submit, "--properties-file", ROOT / "conf" / "spark-defaults.conf"),
            *(*program, "query", *of_both, "--checkpoint", tmp_path / "checkpoint"),
        ],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert query.returncode == 0, query.stderr
    with MessageStore.open(tmp_path / "mq", read_only=True) as store:
        for group in ("alerts", "counts"):
            until(lambda: [store.consumer_offset(group, "flights", n) for n in range(4)] == ends)  # noqa: B023
    worker.send_signal(signal.SIGINT)
    said, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0
    late = [flight for flight in bodies if (flight["dep_delay"] or 0) >= 360]
    assert len(said.splitlines()) == len(late) > 0
    assert str(sum(flight["carrier"] == "UA" for flight in bodies)) in query.stdout
