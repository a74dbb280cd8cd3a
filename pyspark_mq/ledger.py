"""What each held task of a real-time batch really read, so that a replayed batch is the same batch.

The end of a real-time batch is not known when it is planned. A task therefore writes down where it ended before
its iterator does: one file, which appears complete and is never replaced. The first attempt to record wins, and
any other attempt at the task reads exactly the recorded ranges.

    <ledger>/<reader>/<epoch>-<task>.json    {"next": {"orders": {"0": 57}}, "starved": false,
                                              "last": {"orders": {"0": [104857, 1763772000123]}}, "slots": 2}
    <ledger>/<reader>/passed                 empty; its time says when another reader went on from this one last

A reader is one run of a query. While it runs it deletes its records of batches that are passed. Those of its last
batch are what the next run goes on from, and nobody can tell a checkpoint from its copy: so they stay until
`RETENTION_SECONDS` after a run went on from them, and for ever where none did.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets import READER_ID
from pyspark_mq.positions import (
    fingerprints_from_json,
    fingerprints_to_json,
    is_long,
    positions_from_json,
    shown,
    to_json,
)
from store.any_log import Fingerprints, Positions, Queue
from store.errors import CorruptStore
from store.files.atomic import create_file, make_folder, open_file, read_file

RETENTION_SECONDS = 7 * 24 * 3600.0

_NEXT = "next"
_STARVED = "starved"
_SLOTS = "slots"
_LAST = "last"
_PASSED = "passed"
_MAX_BYTES = 256 << 20
_RECORD = re.compile(r"([0-9]+)-[0-9]+\.json")
# What may be deleted: records, this or an earlier version's marks, and what a killed process left of one.
_OURS = re.compile(rf"\.?({_RECORD.pattern}|{_PASSED}|before)(\.[0-9a-f]{{32}}(\.tmp)?)?")


@dataclass(frozen=True)
class TaskName:
    """One task of one real-time batch. reader: id of the run of the query that planned it."""

    reader: str
    epoch: int
    task: int


@dataclass(frozen=True)
class TaskRecord:
    """Where a task ended: `next` offset of each of its queues, and which message stood before (see `StreamOffset`).

    starved: it began only when its time was over and another task had ended: there are too few task slots.
    slots: how many there are, if the task was told.
    """

    next: Positions
    starved: bool = False
    last: Fingerprints = field(default_factory=dict)
    slots: int | None = None


class Ledger:
    """The records of one directory, which the driver and all executors must see.

    Every method raises `LedgerError` for the id of a reader that is none: it becomes the name of a folder.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    def __str__(self) -> str:
        return str(self._directory)

    def prepare(self, reader: str) -> None:
        """Make room for the records of a reader. Raises `LedgerError` where this cannot be written."""
        try:
            make_folder(self._folder(reader))
        except OSError as error:
            raise self._unwritable(error) from error

    def find(self, name: TaskName, queues: Collection[Queue]) -> TaskRecord | None:
        """What an attempt at this task, which has `queues`, recorded; None without a record.

        Raises `LedgerError` if it cannot be read, or is about other queues.
        """
        path = self._path(name)
        try:
            json_ = json.loads(read_file(path, _MAX_BYTES))
            last, slots = fingerprints_from_json(json_.get(_LAST, {})), json_.get(_SLOTS)  # an earlier version has none
            if slots is not None and not is_long(slots, 1):
                raise ValueError(f"{_SLOTS} is {shown(slots)} where a number belongs")
            record = TaskRecord(positions_from_json(json_[_NEXT]), bool(json_[_STARVED]), last, slots)
            if record.next.keys() != set(queues):
                raise ValueError(f"it has {_names(record.next)}, and the task {_names(queues)}")
            return record
        except FileNotFoundError:
            return None
        except (OSError, CorruptStore, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LedgerError(
                f"{path}: not a record of what a real-time task read ({error}); restore the file from a copy, "
                "or go on without it: delete it if its batch was not committed, else use a new checkpoint"
            ) from error

    def record(self, name: TaskName, record: TaskRecord) -> TaskRecord:
        """Keep `record` on the device, unless there is one already; returns the one that counts.

        Raises `LedgerError` where the directory cannot be written.
        """
        path = self._path(name)
        last = fingerprints_to_json(record.last)
        content = {_NEXT: to_json(record.next), _STARVED: record.starved, _LAST: last, _SLOTS: record.slots}
        try:
            make_folder(path.parent)
            create_file(path, json.dumps(content).encode("ascii"))
        except OSError as error:
            raise self._unwritable(error) from error
        return self.find(name, record.next) or record

    def any_ended(self, name: TaskName) -> bool:
        """Whether any task of the same batch has a record."""
        return any(epoch == name.epoch for epoch, _ in _records(self._folder(name.reader)))

    def forget_before(self, reader: str, epoch: int) -> None:
        """Delete a reader's records of epochs below `epoch`. For the reader itself, while it runs."""
        for number, path in _records(self._folder(reader)):
            if number < epoch:
                path.unlink(missing_ok=True)

    def mark_passed(self, reader: str) -> None:
        """Note that another reader went on from `reader`: Spark has logged a batch behind its last one."""
        path = self._folder(reader) / _PASSED
        with suppress(OSError):  # where a query without realTime may not write, this folder stays
            os.close(open_file(path))
            os.utime(path)

    def prune(self) -> None:
        """Delete the readers that nobody needs any more: passed long ago, or planned long ago and never begun."""
        oldest = time.time() - RETENTION_SECONDS
        for folder in _entries(self._directory):
            if READER_ID.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another process does the same, or it is another user's
                    if _is_over(Path(folder), oldest):
                        _delete(Path(folder))

    def _path(self, name: TaskName) -> Path:
        return self._folder(name.reader) / f"{name.epoch}-{name.task}.json"

    def _folder(self, reader: str) -> Path:
        if not READER_ID.fullmatch(reader):
            raise LedgerError(
                f"{self._directory}: {reader!r} is no id of a reader (32 hexadecimal digits); the checkpoint that has "
                "it is damaged: restore it from a copy, or use a new one"
            )
        return self._directory / reader

    def _unwritable(self, error: OSError) -> LedgerError:
        return LedgerError(
            f"{self._directory}: cannot record what a real-time task read ({error}); set the option ledgerPath "
            "to a directory that the driver and every executor can write"
        )


def _is_over(folder: Path, oldest: float) -> bool:
    """Whether a reader was passed before `oldest` (seconds since 1970), or left nothing since then."""
    try:
        return (folder / _PASSED).lstat().st_mtime < oldest
    except FileNotFoundError:
        return not any(_records(folder)) and folder.lstat().st_mtime < oldest


def _delete(folder: Path) -> None:
    """Our own files in `folder`, then the folder if nothing else is in it. The mark goes last, so that this goes on."""
    ours = [entry.name for entry in _entries(folder) if _OURS.fullmatch(entry.name)]
    for name in sorted(ours, key=_PASSED.__eq__):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _records(folder: Path) -> Iterator[tuple[int, Path]]:
    """The epoch of each record in `folder`, and its file."""
    for entry in _entries(folder):
        if match := _RECORD.fullmatch(entry.name):
            yield int(match[1]), Path(entry)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:
        return []


def _names(queues: Collection[Queue]) -> str:
    return ", ".join(map(str, sorted(queues))) or "no queue"
