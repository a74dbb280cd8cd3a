"""`Ledger`: what each task of a real-time batch has read, so that a replayed batch reads the same messages.

A task writes its record before it ends: one file or object, which is created atomically and never replaced. If Spark
runs a task several times, the first record counts, and every other run reads exactly the recorded ranges.

    <ledger>/<reader>/<epoch>-<task>.json    {"next": {"orders": {"0": 57}}, "starved": false,
                                              "last": {"orders": {"0": [104857, 1763772000123]}}, "slots": 2}
    <ledger>/<reader>/.made                  empty; modified when the reader began
    <ledger>/<reader>/passed                 empty; modified when another reader last continued after this one

A reader is one run of a query. It deletes its records of earlier batches when a batch is committed. The next run starts
from the records of the last batch. They are kept for `RETENTION_SECONDS` after that, because a copy of the checkpoint
may need them.
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
# Names of the ledger's files, including temporary files of a killed process.
_OURS = re.compile(rf"\.?({_RECORD.pattern}|{_PASSED}|{re.escape(_MADE)})(\.[0-9a-f]{{32}}(\.tmp)?)?")


@dataclass(frozen=True)
class TaskName:
    """Identifies a task. reader: id of the query's run that planned the batch. epoch: number of the batch."""

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
    """The end of a task: the `next` offset of each of its queues, and the fingerprint of the message before it.

    starved: whether the task began only after the batch's time was over, because Spark has too few task slots.
    slots: how many tasks Spark runs concurrently, if known.
    """

    next: Positions
    starved: bool = False
    last: Fingerprints = field(default_factory=dict)
    slots: int | None = None


class Ledger:
    """Records in a directory, or a folder of an object store, that the driver and all executors see.

    Every method except `prune` raises `LedgerError`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def __str__(self) -> str:
        return self._path

    def prepare(self, reader: str) -> None:
        """Create a reader's folder. Check that records can be written, and that an existing one is never replaced."""
        made = f"{_folder(reader)}/{_MADE}"
        with self._usable() as objects:
            objects.write(made, b"")
            if objects.create(made, b""):
                raise LedgerError(
                    f"{self}: cannot record what a real-time task read, because this server ignores If-None-Match "
                    "and replaces existing files. Use a server that supports If-None-Match, and the newest version of "
                    "its fsspec package. Or set ledgerPath to a directory"
                )

    def find(self, name: TaskName, queues: Collection[Queue]) -> TaskRecord | None:
        path = _record_path(name)
        try:
            data = self._objects.read(path, 0, _MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ValueError(f"the file has more than {_MAX_BYTES:,} bytes")
            found = decode(data, _RecordJson)
            last = fingerprints_from_json(found.last)
            record = TaskRecord(positions_from_json(found.next), found.starved, last, found.slots)
            if record.next.keys() != set(queues):
                raise ValueError(f"the file has queues {_names(record.next)}, but the task has {_names(queues)}")
            return record
        except FileNotFoundError:
            return None
        except (ObjectsUnavailable, ValueError) as error:
            raise LedgerError(
                f"{self}/{path}: this file does not record what a real-time task read ({error}). Restore the "
                "file from a copy. Without a copy: delete the file if its batch was not committed; if the batch was "
                "committed, use a new checkpoint"
            ) from error

    def knows(self, reader: str) -> bool:
        with self._usable() as objects:
            return bool(objects.names(_folder(reader)))

    def record(self, name: TaskName, record: TaskRecord) -> TaskRecord:
        """Write and sync `record`, unless the task has a record already. Return the task's record."""
        path, last = _record_path(name), fingerprints_to_json(record.last)
        content = _RecordJson(to_json(record.next), record.starved, last, record.slots)
        with self._usable() as objects:
            is_first = objects.create(path, encode(content))
        found = self.find(name, record.next)
        if found is None and not is_first:
            raise LedgerError(
                f"{self}/{path}: another attempt at this task wrote this file, but it cannot be read yet. If Spark "
                "does not repeat the task, restart the query. If this error comes again, set ledgerPath to a directory "
                "in which each machine sees the files of the others"
            )
        return found or record

    def any_ended(self, name: TaskName) -> bool:
        with self._usable() as objects:
            return name.epoch in _epochs(objects, name.reader).values()

    def forget_before(self, reader: str, epoch: int) -> None:
        """Delete a reader's records of epochs below `epoch`. Only a running reader may do this, for itself."""
        with self._usable() as objects:
            for file, number in _epochs(objects, reader).items():
                if number < epoch:
                    objects.delete(f"{reader}/{file}")

    def mark_passed(self, reader: str) -> None:
        """Note that another reader has continued after `reader`. Spark has to have logged the other reader's batch."""
        path = f"{_folder(reader)}/{_PASSED}"
        with suppress(ObjectsUnavailable):  # a query without realTime may lack permission; then keep the folder
            self._objects.write(path, b"")

    def prune(self) -> None:
        """Delete the folders of readers that another reader passed more than `RETENTION_SECONDS` ago, and of readers
        that began before then and left no record.
        """
        oldest = time.time() - RETENTION_SECONDS
        with suppress(ObjectsUnavailable):
            objects = self._objects
            for folder, written in objects.names("").items():
                if written is None and READER_ID.fullmatch(folder):
                    with suppress(ObjectsUnavailable):  # another process deletes it, or another user owns it
                        _prune(objects, folder, oldest)

    @property
    def _objects(self) -> Objects:
        return objects_at(self._path, {})  # opened in each process, to keep credentials out of pickles

    @contextmanager
    def _usable(self) -> Iterator[Objects]:
        try:
            yield self._objects
        except ObjectsUnavailable as error:
            raise LedgerError(
                f"{self}: cannot record what a real-time task read ({error}). If the disk is full, free some "
                "space. Otherwise set ledgerPath to a directory that the driver and all executors can write, "
                "or to an S3 URL such as s3://bucket/ledger"
            ) from error


def _folder(reader: str) -> str:
    if not READER_ID.fullmatch(reader):
        raise LedgerError(
            f"The checkpoint is damaged: {reader!r} is no id of a reader (32 hexadecimal digits). Restore the "
            "checkpoint from a copy, or use a new one"
        )
    return reader


def _record_path(name: TaskName) -> str:
    return f"{_folder(name.reader)}/{name.epoch}-{name.task}.json"


def _epochs(objects: Objects, reader: str) -> dict[str, int]:
    matches = map(_RECORD.fullmatch, objects.names(_folder(reader)))
    return {match[0]: int(match[1]) for match in matches if match}


def _prune(objects: Objects, folder: str, oldest: float) -> None:
    """Delete a reader's files if they are no longer needed.

    `passed` goes last, so that an interrupted deletion is resumed.
    """
    times = {name: written for name, written in objects.names(folder).items() if written is not None}
    if _is_over(times, oldest):
        for file in sorted(filter(_OURS.fullmatch, times), key=_PASSED.__eq__):
            objects.delete(f"{folder}/{file}")


def _is_over(files: Mapping[str, float], oldest: float) -> bool:
    if _PASSED in files:
        return files[_PASSED] < oldest
    return not any(map(_RECORD.fullmatch, files)) and files.get(_MADE, oldest) < oldest


def _names(queues: Collection[Queue]) -> str:
    return ", ".join(map(str, sorted(queues))) or "no queue"
