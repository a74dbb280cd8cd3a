import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from examples.shared_topic import count
from pyspark_mq.flights import as_messages, load_flights
from store import MessageStore
from tests.waiting import until

ROOT = Path(__file__).parents[2]
ROWS = 20_000


def test_worker_and_query_both_read_everything(spark: SparkSession, tmp_path: Path) -> None:
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
    program = [sys.executable, ROOT / "examples" / "shared_topic.py", "worker", "--store", tmp_path / "mq"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    worker = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True)
    count(spark, str(tmp_path / "mq"), str(tmp_path / "checkpoint"))
    with MessageStore.open(tmp_path / "mq", read_only=True) as store:
        for group in ("alerts", "counts"):
            until(lambda: [store.consumer_offset(group, "flights", n) for n in range(4)] == ends)  # noqa: B023
    worker.send_signal(signal.SIGINT)
    said, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0
    late = [flight for flight in bodies if (flight["dep_delay"] or 0) >= 360]
    assert len(said.splitlines()) == len(late) > 0
