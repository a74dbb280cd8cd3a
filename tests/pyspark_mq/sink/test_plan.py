"""A batch's plan is known by the file that Spark wrote of it, wherever that is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mq.sink.plan import plan_of


def test_the_file_of_a_batch_in_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "check # point"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "7").write_text("v1 ...")
    (checkpoint / "offsets" / "8").write_text("v1 ....")
    plans = {plan_of(f"{scheme}{checkpoint}", 7) for scheme in ("", "file:", "file://")}
    assert len(plans - {""}) == len(plans) == 1
    assert plan_of(str(checkpoint), 8) not in {"", *plans}


@pytest.mark.parametrize(
    "checkpoint", [None, "", "relative", "hdfs://host/checkpoint", "s3a://bucket/checkpoint", "/no"]
)
def test_where_it_is_not_seen(checkpoint: str | None) -> None:
    assert plan_of(checkpoint, 7) == ""
