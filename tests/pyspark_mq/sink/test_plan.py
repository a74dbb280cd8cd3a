"""A batch's plan is known by the file that Spark wrote of it, wherever that is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_mq.sink.plan import plan_of
from store import StoreUnavailable


def test_the_file_of_a_batch_in_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "check # point"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "7").write_text("v1 ...")
    (checkpoint / "offsets" / "8").write_text("v1 ....")
    plans = {plan_of(f"{scheme}{checkpoint}", 7) for scheme in ("", "file:", "file://")}
    assert len(plans - {""}) == len(plans) == 1
    assert plan_of(str(checkpoint), 8) not in {"", *plans}


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("checkpoint", "offsets").mkdir(parents=True)
    Path("checkpoint", "offsets", "7").write_text("v1 ...")
    assert plan_of("checkpoint", 7) == plan_of(f"{tmp_path}/checkpoint", 7) != ""


@pytest.mark.parametrize(
    "checkpoint", [None, "", "relative", "hdfs://host/checkpoint", "s3a://bucket/checkpoint", "/no"]
)
def test_where_it_is_not_seen(checkpoint: str | None) -> None:
    assert plan_of(checkpoint, 7) == ""


@pytest.mark.parametrize("damage", [Path.mkdir, lambda path: path.symlink_to(path)])
def test_what_the_system_refuses(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    (tmp_path / "offsets").mkdir()
    damage(tmp_path / "offsets" / "7")
    with pytest.raises(StoreUnavailable, match="offsets/7: "):
        plan_of(str(tmp_path), 7)
