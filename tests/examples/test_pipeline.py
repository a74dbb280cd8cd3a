import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pyspark_mq.flights import as_messages, load_flights
from store import MessageStore

pytest.importorskip("pyspark.pipelines")
pytest.importorskip("grpc")

ROOT = Path(__file__).parents[2]
ROWS = 2_000


# A race of Spark's driver: it plans both flows concurrently, and one changes a map while the other serializes it.
OF_SPARK = "java.lang.IllegalStateException: Illegal size"


def run(folder: Path) -> None:
    """Run the pipeline; repeat a run that failed with Spark's race, since the next one continues."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = finished(folder, paths)
    if OF_SPARK in done.stdout + done.stderr:
        done = finished(folder, paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run is COMPLETED" in done.stdout + done.stderr


def finished(folder: Path, paths: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "run"],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    return sorted(body for batch in store.to_arrow(topic, ("body",)) for body in batch.column(0).to_pylist())


def test_flights_are_routed_once(tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", folder, ignore=shutil.ignore_patterns("__pycache__"))
    spec = folder / "spark-pipeline.yml"
    text = spec.read_text().replace("/tmp/late_flights", f"{tmp_path}/storage")
    spec.write_text(text.replace("mq.store: /tmp/mq", f"mq.store: {tmp_path}/mq"))

    flights = load_flights().slice(0, ROWS)
    messages, delays = as_messages(flights), flights["dep_delay"]
    wanted = {"late": pc.fill_null(pc.greater(delays, 60), False), "cancelled": pc.is_null(delays)}
    with MessageStore.open(tmp_path / "mq") as store:
        for topic in ("flights", *wanted):
            store.create_topic(topic, 2)
        store.append_table("flights", messages)
        run(folder)
        for topic, chosen in wanted.items():
            expected = messages.filter(chosen)["body"].to_pylist()
            assert bodies(store, topic) == sorted(body.encode() for body in expected)
            assert expected
