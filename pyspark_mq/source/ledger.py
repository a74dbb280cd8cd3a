"""The ledger: what each held task of a real-time batch has read, so that a replayed batch reads the same.

The end of a real-time batch is not known when it is planned. A task therefore records its end before its
iterator ends: one file, which appears complete and is never replaced. The first attempt to record wins, and any other
attempt at the task reads exactly the recorded ranges. On an object store, files are objects.

    <ledger>/<reader>/<epoch>-<task>.json    {"next": {"orders": {"0": 57}}, "starved": false,
                                              "last": {"orders": {"0": [104857, 1763772000123]}}, "slots": 2}
    <ledger>/<reader>/.made                  empty; its time says when the reader began
    <ledger>/<reader>/passed                 empty; its time says when another reader went on from this one last

A reader is one run of a query. While it runs it deletes its records of committed batches. The next run goes on from the
records of its last batch. A checkpoint may be copied, so they stay until `RETENTION_SECONDS` after a run went on from
them, and for ever if none did.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from pyspark_mq.errors import LedgerError
from pyspark_mq.offsets.stream_offsets import (
    READER_ID,
    fingerprints_from_json,
    fingerprints_to_json,
    positions_from_json,
    to_json,
)
from store.format.strict_json import decode, encode
from store.model.errors import ObjectsUnavailable
from store.model.integers import LONG_MAX
from store.model.log_protocol import Fingerprints, Positions, Queue
from store.objects.any_objects import Objects, objects_at

RETENTION_SECONDS = 7 * 24 * 3600.0

_PASSED = "passed"
_MADE = ".made"
_MAX_BYTES = 256 << 20
_RECORD = re.compile(r"([0-9]+)-[0-9]+\.json")
# What may be deleted: records, marks, and what a killed process left of one.
_OURS = re.compile(rf"\.?({_RECORD.pattern}|{_PASSED}|{re.escape(_MADE)})(\.[0-9a-f]{{32}}(\.tmp)?)?")


@dataclass(frozen=True)
class TaskName:
    """One task of one real-time batch. reader: id of the run of the query that planned it."""

    reader: str
    epoch: int
    task: int


class _RecordJson(msgspec.Struct):
    next: dict[str, Any]
    starved: bool
    last: dict[str, Any]
    slots: Annotated[int, msgspec.Meta(ge=1, le=LONG_MAX)] | None


@dataclass(frozen=True)
class TaskRecord:
    """The end of a task: the `next` offset of each of its queues, and the message before it (see `StreamOffset`).

    starved: it began only when its time was over and another task had ended: there are too few task slots.
    slots: how many there are, if the task was told.
    """

    next: Positions
    starved: bool = False
    last: Fingerprints = field(default_factory=dict)
    slots: int | None = None


class Ledger:
    """Records in one directory, or one folder of an object store, that the driver and all executors see.

    Every method raises `LedgerError` for a malformed id of a reader, because the id becomes the name of a folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """path: a directory or a URL."""
        self._path = os.fspath(path)

    def __str__(self) -> str:
        return self._path

    def prepare(self, reader: str) -> None:
        """Begin the folder of a reader. Raises `LedgerError` if records cannot be written, or might be replaced."""
        made = f"{_folder(reader)}/{_MADE}"
        with self._usable() as objects:
            objects.write(made, b"")
            if objects.create(made, b""):
                raise LedgerError(
                    f"{self}: cannot record what a real-time task read there: the server replaces a file that was to "
                    "be made only if it was missing. This needs a server that heeds If-None-Match, and the newest "
                    "version of its package for fsspec"
                )

    def find(self, name: TaskName, queues: Collection[Queue]) -> TaskRecord | None:
        """Return what an attempt at this task, which has `queues`, recorded; None without a record.

        Raises `LedgerError` if it cannot be read, or is about other queues.
        """
        path = _record_path(name)
        try:
            data = self._objects.read(path, 0, _MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
            found = decode(data, _RecordJson)
            last = fingerprints_from_json(found.last)
            record = TaskRecord(positions_from_json(found.next), found.starved, last, found.slots)
            if record.next.keys() != set(queues):
                raise ValueError(f"it has {_names(record.next)}, and the task {_names(queues)}")
            return record
        except FileNotFoundError:
            return None
        except (ObjectsUnavailable, ValueError) as error:
            raise LedgerError(
                f"{self}/{path}: not a record of what a real-time task read ({error}); restore "
                "the file from a copy, or go on without it: delete it if its batch was not committed, else use a new "
                "checkpoint"
            ) from error

    def knows(self, reader: str) -> bool:
        """Whether the ledger has anything of a reader. Raises `LedgerError`."""
        with self._usable() as objects:
            return bool(objects.names(_folder(reader)))

    def record(self, name: TaskName, record: TaskRecord) -> TaskRecord:
        """Write `record` to the device, unless the task has a record, and return the record that counts.

        Raises `LedgerError` if it cannot be written.
        """
        path, last = _record_path(name), fingerprints_to_json(record.last)
        content = _RecordJson(to_json(record.next), record.starved, last, record.slots)
        with self._usable() as objects:
            is_first = objects.create(path, encode(content))
        found = self.find(name, record.next)
        if found is None and not is_first:
            raise LedgerError(
                f"{self}/{path}: is there, written by another attempt at this task, and "
                "cannot be read yet; run the task again. A directory that several machines see must show what another "
                "one wrote"
            )
        return found or record

    def any_ended(self, name: TaskName) -> bool:
        """Whether any task of the same batch has a record. Raises `LedgerError`."""
        with self._usable() as objects:
            return name.epoch in _epochs(objects, name.reader).values()

    def forget_before(self, reader: str, epoch: int) -> None:
        """Delete a reader's records of epochs below `epoch`. For the reader itself, while it runs.

        Raises `LedgerError`.
        """
        with self._usable() as objects:
            for file, number in _epochs(objects, reader).items():
                if number < epoch:
                    objects.delete(f"{reader}/{file}")

    def mark_passed(self, reader: str) -> None:
        """Note that another reader went on from `reader`: Spark has logged a batch after its last one."""
        path = f"{_folder(reader)}/{_PASSED}"
        with suppress(ObjectsUnavailable):  # a query without realTime may have no right to write: then the folder stays
            self._objects.write(path, b"")

    def prune(self) -> None:
        """Delete readers that were passed long ago, or planned long ago and never begun."""
        oldest = time.time() - RETENTION_SECONDS
        with suppress(ObjectsUnavailable):
            objects = self._objects
            for folder, written in objects.names("").items():
                if written is None and READER_ID.fullmatch(folder):
                    with suppress(ObjectsUnavailable):  # another process deletes it, or it is another user's
                        _prune(objects, folder, oldest)

    @property
    def _objects(self) -> Objects:
        return objects_at(self._path, {})  # opened in each process, so that no pickle has credentials

    @contextmanager
    def _usable(self) -> Iterator[Objects]:
        try:
            yield self._objects
        except ObjectsUnavailable as error:
            raise LedgerError(
                f"{self}: cannot record what a real-time task read ({error}); set the option ledgerPath to a directory "
                "that the driver and every executor can write, or to a place on S3, such as s3://bucket/ledger"
            ) from error


def _folder(reader: str) -> str:
    if not READER_ID.fullmatch(reader):
        raise LedgerError(
            f"{reader!r} is no id of a reader (32 hexadecimal digits); the checkpoint that has it is damaged: restore "
            "it from a copy, or use a new one"
        )
    return reader


def _record_path(name: TaskName) -> str:
    return f"{_folder(name.reader)}/{name.epoch}-{name.task}.json"


def _epochs(objects: Objects, reader: str) -> dict[str, int]:
    """Return the batch of each of the reader's records, by file."""
    matches = map(_RECORD.fullmatch, objects.names(_folder(reader)))
    return {match[0]: int(match[1]) for match in matches if match}


def _prune(objects: Objects, folder: str, oldest: float) -> None:
    """Delete our own files of a reader that is over: the mark last, so that the next process goes on if this dies."""
    times = {name: written for name, written in objects.names(folder).items() if written is not None}
    if _is_over(times, oldest):
        for file in sorted(filter(_OURS.fullmatch, times), key=_PASSED.__eq__):
            objects.delete(f"{folder}/{file}")


def _is_over(files: Mapping[str, float], oldest: float) -> bool:
    """Whether a reader was passed before `oldest` (seconds since 1970), or left nothing since then."""
    if _PASSED in files:
        return files[_PASSED] < oldest
    return not any(map(_RECORD.fullmatch, files)) and files.get(_MADE, oldest) < oldest


def _names(queues: Collection[Queue]) -> str:
    return ", ".join(map(str, sorted(queues))) or "no queue"
