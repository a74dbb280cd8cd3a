"""What each held task of a real-time batch really read, so that a replayed batch is the same batch.

The end of a real-time batch is not known when it is planned. A task therefore writes down where it ended before
its iterator does: one file, which appears complete and is never replaced. The first attempt to record wins, and
any other attempt at the task reads exactly the recorded ranges. On an object store, files are objects.

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
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets.checkpoint import READER_ID
from pyspark_mq.offsets.positions import (
    fingerprints_from_json,
    fingerprints_to_json,
    is_long,
    positions_from_json,
    shown,
    to_json,
)
from pyspark_mq.shared_folders import ITSELF, shared_folders
from store.any_log import Fingerprints, Positions, Queue
from store.errors import CorruptStore

RETENTION_SECONDS = 7 * 24 * 3600.0

_NEXT = "next"
_STARVED = "starved"
_SLOTS = "slots"
_LAST = "last"
_PASSED = "passed"
_MAX_BYTES = 256 << 20
_RECORD = re.compile(r"([0-9]+)-[0-9]+\.json")
# What may be deleted: records, marks, and what a killed process left of one.
_OURS = re.compile(rf"\.?({_RECORD.pattern}|{_PASSED})(\.[0-9a-f]{{32}}(\.tmp)?)?")


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
    """The records of one directory, or one place on an object store, which the driver and all executors must see.

    Every method raises `LedgerError` for the id of a reader that is none: it becomes the name of a folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: a directory, or a URL (see `shared_folders`)."""
        self._folders = shared_folders(path)

    def __str__(self) -> str:
        return str(self._folders)

    def prepare(self, reader: str) -> None:
        """Make room for a reader. Raises `LedgerError` where this cannot be written, or records might be replaced."""
        folder = self._folder(reader)
        with self._usable():
            self._folders.make(folder)
            self._folders.must_create_once(folder)

    def find(self, name: TaskName, queues: Collection[Queue]) -> TaskRecord | None:
        """What an attempt at this task, which has `queues`, recorded; None without a record.

        Raises `LedgerError` if it cannot be read, or is about other queues.
        """
        folder, file = self._folder(name.reader), _file(name)
        try:
            json_ = json.loads(self._folders.read(folder, file, _MAX_BYTES))
            last, slots = fingerprints_from_json(json_[_LAST]), json_[_SLOTS]
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
                f"{self._folders.place(folder, file)}: not a record of what a real-time task read ({error}); restore "
                "the file from a copy, or go on without it: delete it if its batch was not committed, else use a new "
                "checkpoint"
            ) from error

    def knows(self, reader: str) -> bool:
        """Whether anything of a reader is there, and so the ledger itself. Raises `LedgerError`."""
        with self._usable():
            return bool(self._folders.files(self._folder(reader)))

    def record(self, name: TaskName, record: TaskRecord) -> TaskRecord:
        """Keep `record` on the device, unless there is one already; returns the one that counts.

        Raises `LedgerError` where it cannot be written.
        """
        folder = self._folder(name.reader)
        last = fingerprints_to_json(record.last)
        content = {_NEXT: to_json(record.next), _STARVED: record.starved, _LAST: last, _SLOTS: record.slots}
        with self._usable():
            is_first = self._folders.create(folder, _file(name), json.dumps(content).encode("ascii"))
        found = self.find(name, record.next)
        if found is None and not is_first:
            raise LedgerError(
                f"{self._folders.place(folder, _file(name))}: is there, written by another attempt at this task, and "
                "cannot be read yet; run the task again. A directory that several machines see must show what another "
                "one wrote"
            )
        return found or record

    def any_ended(self, name: TaskName) -> bool:
        """Whether any task of the same batch has a record. Raises `LedgerError`."""
        with self._usable():
            return name.epoch in self._epochs(name.reader).values()

    def forget_before(self, reader: str, epoch: int) -> None:
        """Delete a reader's records of epochs below `epoch`. For the reader itself, while it runs.

        Raises `LedgerError`.
        """
        with self._usable():
            for file, number in self._epochs(reader).items():
                if number < epoch:
                    self._folders.delete(reader, file)

    def mark_passed(self, reader: str) -> None:
        """Note that another reader went on from `reader`: Spark has logged a batch behind its last one."""
        folder = self._folder(reader)
        with suppress(OSError):  # where a query without realTime may not write, this folder stays
            self._folders.touch(folder, _PASSED)

    def prune(self) -> None:
        """Delete the readers that nobody needs any more: passed long ago, or planned long ago and never begun."""
        oldest = time.time() - RETENTION_SECONDS
        folders: list[str] = []
        with suppress(OSError):
            folders = self._folders.folders()
        for folder in filter(READER_ID.fullmatch, folders):
            with suppress(OSError):  # another process does the same, or it is another user's
                files = self._folders.files(folder)
                if _is_over(files, oldest):
                    self._delete(folder, files)

    def _delete(self, folder: str, files: Iterable[str]) -> None:
        """Our own files, then the folder if nothing else is in it. The mark goes last, so that this goes on."""
        for file in sorted(filter(_OURS.fullmatch, files), key=_PASSED.__eq__):
            self._folders.delete(folder, file)
        self._folders.drop(folder)

    def _epochs(self, reader: str) -> dict[str, int]:
        """The reader's records, by file: which batch each is of."""
        matches = map(_RECORD.fullmatch, self._folders.files(self._folder(reader)))
        return {match[0]: int(match[1]) for match in matches if match}

    def _folder(self, reader: str) -> str:
        if not READER_ID.fullmatch(reader):
            raise LedgerError(
                f"{self}: {reader!r} is no id of a reader (32 hexadecimal digits); the checkpoint that has "
                "it is damaged: restore it from a copy, or use a new one"
            )
        return reader

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LedgerError(
                f"{self}: cannot record what a real-time task read ({error}); set the option ledgerPath to a directory "
                "that the driver and every executor can write, or to a place on S3, such as s3://bucket/ledger"
            ) from error


def _file(name: TaskName) -> str:
    return f"{name.epoch}-{name.task}.json"


def _is_over(files: Mapping[str, float], oldest: float) -> bool:
    """Whether a reader was passed before `oldest` (seconds since 1970), or left nothing since then."""
    if _PASSED in files:
        return files[_PASSED] < oldest
    return not any(map(_RECORD.fullmatch, files)) and files.get(ITSELF, oldest) < oldest


def _names(queues: Collection[Queue]) -> str:
    return ", ".join(map(str, sorted(queues))) or "no queue"
