"""How much CPU time does the driver take to plan a small micro-batch (bounds, offsets, partitions)?"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import TOPIC, show
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import stream_reader
from store import Message, MessageStore


def main(runs: int, queues: Sequence[int] = (1, 200, 1000)) -> None:
    rows = [[f"{count:,}", *(f"{1000 * seconds:.1f} ms" for seconds in _seconds(count, runs))] for count in queues]
    show(f"Planning a micro-batch, medians of {runs} runs", ["queues", "a batch", "nothing new"], rows)


def _seconds(queues: int, runs: int) -> tuple[float, float]:
    batches, looks = [], []
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(Path(folder) / "store") as store:
        store.create_topic(TOPIC, queues)
        options = {"path": str(store.path), "subscribe": TOPIC, "startingOffsets": "earliest", "holdTimeoutMs": "0"}
        reader = stream_reader(SourceOptions.parse(options), default_schema(False))
        start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        for _ in range(runs + 2):
            store.put_many([Message(TOPIC, b"body", queue_id=queue_id) for queue_id in range(queues)])
            begin = time.process_time()
            end = reader.latestOffset(start, limit)
            assert reader.partitions(start, end)
            batches.append(time.process_time() - begin)
            start = json.loads(json.dumps(end))  # as Spark passes it back
            begin = time.process_time()
            assert reader.latestOffset(start, limit) == start
            looks.append(time.process_time() - begin)
        reader.stop()
    return statistics.median(batches[2:]), statistics.median(looks[2:])  # the first ones also open files
