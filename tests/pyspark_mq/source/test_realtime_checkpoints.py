"""Damaged, missing or moved checkpoints and ledgers of real-time batches."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import CheckpointError, LedgerError
from tests.filled import Filled
from tests.pyspark_mq.source.driving import latest, reader, run

DAMAGED = [
    {"$epoch": 0, "$reader": "../../outside", "$from": [{"orders": {"0": 0}}], "$last": {}},
    {"$epoch": 0, "$reader": "/outside", "$from": [{"orders": {"0": 0}}], "$last": {}},
    {"$epoch": float("inf"), "$reader": "0" * 32, "$from": [{"orders": {"0": 0}}], "$last": {}},
    {"orders": {"0": float("nan")}, "$last": {}},
    [],
]


@pytest.fixture(autouse=True)
def _pipelined_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")


@pytest.mark.parametrize("json_", DAMAGED)
def test_damaged_checkpoint_is_refused_and_nothing_deleted(filled: Filled, tmp_path: Path, json_: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "0-0.json").write_text('{"next": {"orders": {"0": 1}}, "starved": false}')
    good = reader(filled).initialOffset()
    for real_time in (True, False):
        it = reader(filled, real_time=real_time)
        for call in (
            lambda it=it: latest(it, json_),
            lambda it=it: it.partitions(json_, good),
            lambda it=it: it.partitions(good, json_),
        ):
            with pytest.raises(CheckpointError):
                call()
        with suppress(CheckpointError):
            it.commit(json_)
    assert (outside / "0-0.json").exists()


def test_error_of_a_deleted_ledger_has_a_remedy(filled: Filled) -> None:
    it = reader(filled)
    start = it.initialOffset()
    end = latest(it, start)
    run(it, it.partitions(start, end))
    ledger, how = Path(filled.path) / "ledger", r'use a new checkpoint and startingOffsets {"orders": {"0": 0, "1": 0}}'
    (ledger / end["$reader"] / "0-0.json").unlink()
    with pytest.raises(LedgerError, match=rf"ledger: no record of task 0 of the committed real-time batch 0\. .*{how}"):
        latest(reader(filled), end)
    shutil.rmtree(ledger)
    for real_time in (True, False):
        with pytest.raises(LedgerError, match=f"ledger: nothing of this query is here, so there is no record.*{how}"):
            latest(reader(filled, real_time=real_time), end)


def test_ledger_may_be_elsewhere(filled: Filled, tmp_path: Any) -> None:
    it = reader(filled, ledgerPath=str(tmp_path / "elsewhere"))
    start = it.initialOffset()
    end = latest(it, start)
    run(it, it.partitions(start, end))
    assert len(list((tmp_path / "elsewhere" / end["$reader"]).glob("*.json"))) == 2
    with pytest.raises(LedgerError):
        latest(reader(filled), end)
