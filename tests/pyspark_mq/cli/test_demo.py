import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_mq.cli import demo
from pyspark_mq.cli.demo import spark_errors_in_one_line
from pyspark_mq.errors import DemoFailed, JavaMissing
from pyspark_mq.flights import as_messages, json_objects, load_flights, totals_by_carrier
from pyspark_mq.requirements import require_java
from store import MessageStore

SCRIPT = Path(sys.executable).with_name("pyspark-mq")


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return load_flights()


def test_demo_streams_all_flights_while_they_are_appended(tmp_path: Path) -> None:
    done = run_demo("--store", str(tmp_path / "store"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("336,776 in, 336,776 out, totals equal\n")
    early = re.search(r"([\d,]+) were read while the other process was still appending", done.stdout)
    assert early is not None
    assert int(early[1].replace(",", "")) > 0
    assert {"appended", "streamed"} <= set(re.findall(r"\w+", done.stderr))
    assert "WARN" not in done.stderr
    with MessageStore.open(tmp_path / "store", read_only=True) as store:
        assert sum(store.max_offset("flights", queue_id) for queue_id in range(4)) == 336_776

    again = run_demo("--store", str(tmp_path / "store"))
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert "already exists there" in again.stderr


def test_error_of_a_query_is_one_line() -> None:
    with pytest.raises(DemoFailed, match=r"^Spark failed: No space left$"), spark_errors_in_one_line():
        raise StreamingQueryException("No space left.\n=== Streaming Query ===\n...")
    late = "Query terminated.\n=== Streaming Query ===\nPython worker failed to connect back."
    with (
        pytest.raises(DemoFailed, match=r"^Spark failed: Query terminated\. This .* Run the demo again$"),
        spark_errors_in_one_line(),
    ):
        raise StreamingQueryException(late)


def test_java_error_is_one_line(spark: SparkSession) -> None:
    with (
        pytest.raises(DemoFailed, match=r"^Spark failed: java.lang.IndexOutOfBoundsException: .*$"),
        spark_errors_in_one_line(),
    ):
        spark._jvm.java.util.ArrayList().get(3)


def test_demo_without_java_says_what_to_install(tmp_path: Path) -> None:
    done = run_demo("--store", str(tmp_path / "store"), PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 1
    for hint in ("java is not on PATH", "apt-get install openjdk-17", "dnf install java-21", "brew install"):
        assert hint in done.stderr
    assert not (tmp_path / "store").exists()


def test_old_or_broken_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for script, found in (("echo 'openjdk version \"11.0.2\"' >&2", "11.0.2"), ("exit 1", "does not run")):
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        with pytest.raises(JavaMissing, match=found):
            require_java()


def test_totals_that_differ_are_reported(flights: pa.Table, capsys: pytest.CaptureFixture[str]) -> None:
    expected = totals_by_carrier(flights)
    assert demo.report(expected, expected, 0)
    assert not demo.report(totals_by_carrier(flights.slice(1)), expected, 0)
    printed = capsys.readouterr()
    assert "336,776 in, 336,775 out, totals DIFFER" in printed.out
    assert printed.err.count("expected") == 1


def test_each_flight_is_a_json_object_of_its_columns(flights: pa.Table) -> None:
    some = flights.take(pa.array(range(0, flights.num_rows, 1_000)))
    messages = as_messages(some)
    for flight, message in zip(some.to_pylist(), messages.to_pylist(), strict=True):
        body = json.loads(message["body"])
        assert body.pop("time_hour") == f"{flight['time_hour']:%Y-%m-%d %H:%M:%SZ}"
        assert body == {name: value for name, value in flight.items() if name != "time_hour"}
        assert (message["tags"], message["keys"]) == (flight["carrier"], flight["tailnum"])


def test_scheduled_times_are_new_york_times(flights: pa.Table) -> None:
    """The source's year to minute columns are local; each flight's bornTimestamp must be that instant."""
    from datetime import datetime
    from zoneinfo import ZoneInfo

    some = flights.take(pa.array(range(0, flights.num_rows, 500)))
    born = as_messages(some)["bornTimestamp"].to_pylist()
    for flight, instant in zip(some.to_pylist(), born, strict=True):
        local = (flight[unit] for unit in ("year", "month", "day", "hour", "minute"))
        assert instant == datetime(*local, tzinfo=ZoneInfo("America/New_York"))
    assert born == sorted(born)


def test_json_escapes_quotes_and_backslashes() -> None:
    table = pa.table({"text": ['a "quoted" \\ path', None], "number": pa.array([1, None], pa.int64())})
    assert [json.loads(text) for text in json_objects(table).to_pylist()] == table.to_pylist()
