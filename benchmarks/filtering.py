"""How much faster is a tag filter in the source than reading all and filtering in Spark?"""

from __future__ import annotations

import time

from benchmarks.bench import RARE_TAG, TOPIC, filled, show, side_by_side, spark


def main(count: int, runs: int) -> None:
    session = spark()
    rows = []
    for body_bytes in (100, 1000):
        with filled(count, body_bytes) as path:

            def seconds(in_source: bool) -> float:
                reader = session.read.format("mq").option("path", str(path)).option("subscribe", TOPIC)
                if in_source:
                    frame = reader.option("subExpression", RARE_TAG).load()
                else:
                    frame = reader.load().where(f"tags = '{RARE_TAG}'")
                begin = time.perf_counter()
                frame.write.format("noop").mode("overwrite").save()
                return time.perf_counter() - begin

            spark_side, source_side = side_by_side(runs, lambda: seconds(False), lambda: seconds(True))
            rows.append(
                [f"{body_bytes} B", f"{spark_side:.2f} s", f"{source_side:.2f} s", f"{spark_side / source_side:.1f}"]
            )
    head = ["body", "where in Spark", "subExpression", "times faster"]
    show(f"A tag on 1 % of {count:,} messages, medians of {runs} runs", head, rows)
