"""What each held task of a real-time batch really read, so that a replayed batch is the same batch.

The end of a real-time batch is not known when it is planned. A task therefore writes down where it ended before
its iterator does: one file, which appears complete and is never replaced. The first attempt to record wins, and
any other attempt at the task reads exactly the recorded ranges.

    <ledger>/<reader>/<epoch>-<task>.json    {"next": {"orders": {"0": 57}}, "starved": false}
    <ledger>/<reader>/before                 the reader whose last batch this one goes on from
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets import Positions, positions_from_json, to_json
from store.atomic import create_file, write_file

_NEXT = "next"
_STARVED = "starved"
_BEFORE = "before"  # a file that names the reader before


@dataclass(frozen=True)
class TaskName:
    """One task of one real-time batch. reader: id of the run of the query that planned it."""

    reader: str
    epoch: int
    task: int


@dataclass(frozen=True)
class TaskRecord:
    """Where a task ended: `next` offset of each of its queues.

    starved: it began only when its time was over and another task had ended: there are too few task slots.
    """

    next: Positions
    starved: bool = False


class Ledger:
    """The records of one directory, which the driver and all executors must see."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def __str__(self) -> str:
        return str(self._directory)

    def prepare(self, reader: str, before: str | None = None) -> None:
        """Make room for the records of a reader that goes on from the last batch of reader `before`.

        Raises `LedgerError` where this cannot be written.
        """
        folder = self._directory / reader
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if before is not None:
                write_file(folder / _BEFORE, before.encode("ascii"))
        except OSError as error:
            raise self._unwritable(error) from error

    def find(self, name: TaskName) -> TaskRecord | None:
        """What an attempt at this task recorded, None without one. Raises `LedgerError` if it cannot be read."""
        path = self._path(name)
        try:
            json_ = json.loads(path.read_bytes())
            return TaskRecord(positions_from_json(json_[_NEXT]), bool(json_[_STARVED]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"{path}: not a record of what a real-time task read ({error}); restore the file from a copy, "
                "or go on without it: delete it if its batch was not committed, else use a new checkpoint"
            ) from error

    def record(self, name: TaskName, record: TaskRecord) -> TaskRecord:
        """Keep `record` on the device, unless there is one already; returns the one that counts.

        Raises `LedgerError` where the directory cannot be written.
        """
        path = self._path(name)
        content = {_NEXT: to_json(record.next), _STARVED: record.starved}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            create_file(path, json.dumps(content).encode("ascii"))
        except OSError as error:
            raise self._unwritable(error) from error
        return self.find(name) or record

    def any_ended(self, name: TaskName) -> bool:
        """Whether any task of the same batch has a record."""
        return any((self._directory / name.reader).glob(f"{name.epoch}-*.json"))

    def forget_before(self, reader: str, epoch: int) -> None:
        """Delete a reader's records of epochs below `epoch`."""
        for path in (self._directory / reader).glob("[0-9]*-*.json"):
            if int(path.name.partition("-")[0]) < epoch:
                path.unlink(missing_ok=True)

    def forget(self, reader: str) -> None:
        """Delete all records of a reader, and of those before it that were killed before they could do this."""
        folder = self._directory / reader
        before = folder / _BEFORE
        if before.exists():
            self.forget(before.read_text("ascii"))
        shutil.rmtree(folder, ignore_errors=True)

    def _path(self, name: TaskName) -> Path:
        return self._directory / name.reader / f"{name.epoch}-{name.task}.json"

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self._directory}: cannot record what a real-time task read ({error}); set the option ledgerPath "
            "to a directory that the driver and every executor can write"
        )
