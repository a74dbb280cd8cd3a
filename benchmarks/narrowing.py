"""How long do queries for one key, or for one hundredth of the time range, take against a full scan?"""

from __future__ import annotations

import time

from benchmarks.bench import TOPIC, filled, show, side_by_side, spark
from store import MessageStore


def main(count: int, runs: int) -> None:
    session = spark()
    with filled(count, 100) as path:
        with MessageStore.open(path, read_only=True) as store:
            times = store.to_arrow(TOPIC, ("storeTimestamp",)).read_all()["storeTimestamp"]
        first, last = (int(times.to_numpy()[at].astype("datetime64[ms]").astype(int)) for at in (0, -1))
        middle, width = (first + last) // 2, (last - first) // 100
        wanted = {
            "all": {},
            "a key": {"subExpression": f"KEYS = 'o-{count // 2}'", "expressionType": "SQL92"},
            "1 % of the time": {"startingTimestamp": str(middle), "endingTimestamp": str(middle + width)},
        }
        found: dict[str, int] = {}

        def seconds(name: str) -> float:
            frame = session.read.format("mq").options(subscribe=TOPIC, **wanted[name]).load(str(path))
            started = time.perf_counter()
            found[name] = frame.count()
            return time.perf_counter() - started

        took = side_by_side(runs, *(lambda name=name: seconds(name) for name in wanted))
    rows = [
        [name, f"{found[name]:,}", f"{each:.2f} s", f"{each / took[0]:.3f}"]
        for name, each in zip(wanted, took, strict=True)
    ]
    show(f"Wanted of {count:,} messages, medians of {runs} runs", ["wanted", "found", "took", "of all"], rows)
