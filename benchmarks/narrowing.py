"""How much of a full scan does a query take that wants one key, or one hundredth of the time, by the filters that Spark
hands down?"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pyspark.sql import functions as F

from benchmarks.bench import TOPIC, filled, show, side_by_side, spark
from store import MessageStore

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def main(count: int, runs: int) -> None:
    """Prints the table; `count` messages of 100 B."""
    session = spark()
    session.conf.set(_PUSHDOWN, "true")
    with filled(count, 100) as path:
        with MessageStore.open(path, read_only=True) as store:
            times = store.to_arrow(TOPIC, ("storeTimestamp",)).read_all()["storeTimestamp"]
        first, last = (times.to_numpy()[at].astype("datetime64[us]").astype(int) for at in (0, -1))
        middle, width = (first + last) // 2, (last - first) // 100
        begin, end = (datetime.fromtimestamp(at / 1e6, UTC) for at in (middle, middle + width))
        wanted = {
            "all": F.lit(True),
            "a key": F.col("keys") == f"o-{count // 2}",
            "1 % of the time": F.col("storeTimestamp").between(F.lit(begin), F.lit(end)),
        }
        found: dict[str, int] = {}

        def seconds(name: str) -> float:
            frame = session.read.format("mq").options(subscribe=TOPIC, pushDownPredicate="true").load(str(path))
            started = time.perf_counter()
            found[name] = frame.where(wanted[name]).count()
            return time.perf_counter() - started

        took = side_by_side(runs, *(lambda name=name: seconds(name) for name in wanted))
    session.conf.unset(_PUSHDOWN)
    rows = [
        [name, f"{found[name]:,}", f"{each:.2f} s", f"{each / took[0]:.3f}"]
        for name, each in zip(wanted, took, strict=True)
    ]
    show(f"Wanted of {count:,} messages, medians of {runs} runs", ["wanted", "found", "took", "of all"], rows)
