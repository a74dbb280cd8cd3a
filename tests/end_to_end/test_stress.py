"""Topics are created, grown, deleted and recreated, retention runs, and queries run, die and restart.

STRESS_SECONDS sets the duration, 3 by default.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_mq.errors import DataLossError
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import MqStreamReader, stream_reader
from store import MessageStore
from tests.driven import DrivenQuery, Json, Row
from tests.end_to_end.churning import STEADY, acknowledged, make

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("STRESS_SECONDS", "3"))
WRITERS = 2
PATIENCE = 300.0
LOSS = re.compile(r"(\S+ \S.* is lost: .*)\. To continue with the remaining messages")
BUSY = "Python worker failed to connect back"  # Spark's error on a busy machine

ACCEPTING = {"failOnDataLoss": "false"}
QUERIES: dict[str, dict[str, str]] = {
    "by name": {"subscribe": f"{STEADY},churning-0", **ACCEPTING},
    "now": {"subscribePattern": ".*", **ACCEPTING},
    "limited": {"subscribePattern": ".*", "maxOffsetsPerTrigger": "200", **ACCEPTING},
    "strict": {"subscribePattern": f"{STEADY}.*"},
    "strict on all": {"subscribePattern": ".*", "maxOffsetsPerTrigger": "500"},
}


class Put(NamedTuple):
    """An acknowledged message; life: how often its topic had been created."""

    life: int
    place: tuple[str, int, int]


@dataclass
class Churned:
    """A store, and the processes that put it under load for `SECONDS`."""

    path: Path
    processes: list[subprocess.Popen[str]]

    def begin(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.end_to_end.churning"]
        for verb, name in [("rule", "ruler"), *(("write", f"w{number}") for number in range(WRITERS))]:
            arguments = [*command, verb, str(self.path), name, str(SECONDS)]
            process = subprocess.Popen(arguments, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            self.processes.append(process)

    @property
    def is_over(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    def options(self, name: str) -> dict[str, str]:
        return {"path": str(self.path), "startingOffsets": "earliest", "holdTimeoutMs": "20", **QUERIES[name]}

    def check(self, rows: dict[str, list[Row]]) -> None:
        for process in self.processes:
            assert process.returncode == 0, process.communicate()[1]
        put = dict(self._put())
        there = self._there(put)
        assert there
        assert len({each.life for each in put.values()}) > 1
        for name, read in rows.items():
            counts = Counter(body.decode() for *_, body in read)
            assert [(body, put[body], n) for body, n in counts.items() if n != 1][:5] == [], name
            assert [row for row in read if put[row[3].decode()].place != row[:3]][:5] == [], name
            pattern = QUERIES[name].get("subscribePattern") or QUERIES[name]["subscribe"].replace(",", "|")
            wanted = {body for body in there if re.fullmatch(pattern, put[body].place[0])}
            assert sorted(put[body] for body in wanted - counts.keys())[:5] == [], name

    def _put(self) -> Iterator[tuple[str, Put]]:
        for file in acknowledged(self.path).iterdir():
            for line in file.read_text().splitlines():
                topic, life, queue, offset, body = line.split(" ")
                yield body, Put(int(life), (topic, int(queue), int(offset)))

    def _there(self, put: dict[str, Put]) -> set[str]:
        newest: dict[tuple[str, int, int], str] = {}
        for body, (life, place) in put.items():
            if place not in newest or life > put[newest[place]].life:
                newest[place] = body
        with MessageStore.open(self.path, read_only=True) as store:
            places = {
                (topic, queue, offset)
                for topic, queues in store.topics().items()
                for queue in range(queues)
                for offset in range(*store.offsets(topic, queue))
            }
        return {newest[place] for place in places}


def expected_loss(name: str, error: Exception) -> str:
    """Return the kind of loss that ended a query; other errors fail the test."""
    found = LOSS.search(str(error))
    assert found, f"{name}: {error}"
    assert name.startswith("strict"), f"{name}: {error}"
    return found[1]


@pytest.fixture
def churned(tmp_path: Path) -> Iterator[Churned]:
    path = tmp_path / "mq"
    make(path)
    it = Churned(path, [])
    yield it
    for process in it.processes:
        process.kill()
        process.wait()


class Driven(DrivenQuery):
    """A repeated batch has fewer rows if messages were deleted in between."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[str] = []

    def _batch(self, it: MqStreamReader, start: Json) -> Iterator[None]:
        self.sink.pop(self.committed, None)
        yield from super()._batch(it, start)


def drive(churned: Churned, name: str, begun: Barrier) -> Driven:
    """Run one query repeatedly; runs end, die or raise data loss. The last run reads to the end."""
    query, chance = Driven(), random.Random(name)
    before: list[MqStreamReader] = []

    def new_reader(**options: str) -> Callable[[], MqStreamReader]:
        def make_one() -> MqStreamReader:
            for it in before:
                it.stop()
            parsed = SourceOptions.parse({**churned.options(name), **options})
            before[:] = [stream_reader(parsed, default_schema(False))]
            if options or (name == "now" and query.committed):
                before[0].prepareForTriggerAvailableNow()
            return before[0]

        return make_one

    query.run(new_reader())
    begun.wait()
    while not churned.is_over:
        try:
            query.run(new_reader(), chance.randrange(1, 30), killed_at=chance.choice([-1, -1, chance.randrange(100)]))
        except DataLossError as error:
            query.losses.append(expected_loss(name, error))
            query.run(new_reader(**ACCEPTING))
    query.run(new_reader(**ACCEPTING))
    before[0].stop()
    return query


def test_queries_survive_load_and_recreated_topics_without_spark(churned: Churned) -> None:
    with ThreadPoolExecutor(len(QUERIES)) as pool:
        begun = Barrier(len(QUERIES), churned.begin)
        running = {name: pool.submit(drive, churned, name, begun) for name in QUERIES}
        queries = {name: query.result() for name, query in running.items()}
    for name, query in queries.items():
        print(f"{name}: {query.committed} batches, {len(query.rows):,} messages, losses: {query.losses[:5]}")
    churned.check({name: query.rows for name, query in queries.items()})


class SparkQuery:
    """A streaming query, restarted from one checkpoint, and the rows of each batch."""

    def __init__(self, spark: SparkSession, churned: Churned, name: str) -> None:
        self.name = name
        self.batches: dict[int, list[Row]] = {}
        self.losses: list[str] = []
        self.runs = 0
        self._spark = spark
        self._churned = churned
        self._running: StreamingQuery | None = None
        self._accepts = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("topic", "queueId", "queueOffset", "body").collect()
        self.batches[batch_id] = [(r.topic, r.queueId, r.queueOffset, bytes(r.body)) for r in rows]

    def go_on(self, *, stop: bool = False, to_the_end: bool = False) -> bool:
        """Start the query if it does not run or is to `stop`; return False if it keeps running."""
        if self._running is not None and self._running.isActive and not stop:
            return False
        self.stop()
        accepting = ACCEPTING if to_the_end or self._accepts else {}
        trigger = {"availableNow": True} if accepting or self.name == "now" else {"processingTime": "0 seconds"}
        frame = self._spark.readStream.format("mq").options(**{**self._churned.options(self.name), **accepting}).load()
        checkpoint = self._churned.path.with_name(f"checkpoint of {self.name}")
        writer = frame.writeStream.foreachBatch(self).option("checkpointLocation", str(checkpoint))
        self._running = writer.trigger(**trigger).start()
        self._accepts = False
        self.runs += 1
        return True

    def stop(self) -> None:
        if self._running is None:
            return
        self._running.stop()
        error, self._running = self._running.exception(), None
        if error is not None and BUSY not in str(error):
            self.losses.append(expected_loss(self.name, error))
            self._accepts = True

    def finish(self) -> None:
        while True:
            self.go_on(stop=True, to_the_end=True)
            assert self._running is not None
            with suppress(StreamingQueryException):
                assert self._running.awaitTermination(PATIENCE)
            is_done = self._running.exception() is None
            self.stop()
            if is_done:
                return


def test_queries_survive_load_and_recreated_topics(spark: SparkSession, churned: Churned) -> None:
    queries = [SparkQuery(spark, churned, name) for name in ("by name", "now", "strict on all")]
    for query in queries:
        query.finish()
    churned.begin()
    turns, deadline = 0, time.monotonic() + SECONDS + PATIENCE
    while not churned.is_over:
        assert time.monotonic() < deadline
        turns += 1
        for number, query in enumerate(queries):
            query.go_on(stop=turns % 15 == 5 * number + 4)
        time.sleep(0.3)
    for query in queries:
        query.finish()
        rows = sum(map(len, query.batches.values()))
        print(f"{query.name}: {query.runs} runs, {len(query.batches)} batches, {rows:,} messages, {query.losses[:5]}")
    churned.check({query.name: [row for rows in query.batches.values() for row in rows] for query in queries})
