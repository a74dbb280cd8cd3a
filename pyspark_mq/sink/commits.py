"""The last batch that each query wrote. With it, a batch that Spark runs again is not written twice.

Each batch is appended together with a record: a message to `COMMITS_TOPIC` with the query as its key. Because retention
deletes records, too, a small file in the store has the latest state of each query, its mark:

    commits/<query>/mark.json    {"batch": 41, "written": false, "since": 7, "rows": {"orders": 3}, "run": "5f0c2b...",
                                  "last": [104857, 1763772000123], "plan": "9a0364...", "consecutive": true}

The mark is written and synced before a batch is appended, with `written` false, and again afterwards, with `written`
true. So a batch later than the mark's was never appended. If `written` is false, the batch was appended if and only if
there is a record of it at offset `since` of `COMMITS_TOPIC` or later.

If the log ends before `since`, or the message before `since` is not the one in `last`, then the log is older than the
mark and lacks batches. A stream commits every batch, including empty ones, so its marks are `consecutive`: if the
mark's batch is not the previous one, the store is older than the checkpoint. Writes in a `foreachBatch` may skip
batches.

The number alone does not identify a batch: Spark may plan it again, or two writes of one `foreachBatch` may share it.
So a batch is skipped only if another run of the query wrote it with the same plan in the checkpoint. If the plan is not
readable, the number of rows for each topic must be equal.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyspark_mq.errors import CommitError
from store.disk.atomic import make_directory, read_file, write_file
from store.disk.opened import Descriptor
from store.format.arrays import arrow, constant, pc, texts
from store.format.strict_json import Long, decode, encode
from store.format.topic_names import COMMITS_TOPIC
from store.model.errors import CorruptStore, StoreUnavailable
from store.model.log_protocol import Bounds, Fingerprint, LogWriter, Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING

_log = logging.getLogger("pyspark_mq")

_RECORDS = Queue(COMMITS_TOPIC, 0)
_LACKS = (
    "the log has no record of it. The log is older than this file (restored from a backup), or the topic "
    f"{COMMITS_TOPIC} was deleted"
)
_ANEW = (
    "The checkpoint is older than the written batches: it was restored from a copy, its newest files were deleted, "
    "or a machine crash lost them. Nothing was appended. Restore the newest checkpoint, or start with a new one and "
    "startingOffsets after the written messages"
)
_GO_ON = (
    "delete this file: the query then continues with the batch that Spark runs now, and the missing rows stay missing"
)
_SHOWN = 3
_MAX_BYTES = 64 << 20  # a batch may have any number of topics


@dataclass(frozen=True)
class Batch:
    """A batch that Spark writes.

    rows: their number by topic.
    run: the id of the query's run; "" if unknown.
    plan: see `plan_of`.
    consecutive: whether the query commits every batch; false in `foreachBatch`.
    """

    number: int
    rows: Mapping[str, int]
    run: str = ""
    plan: str = ""
    consecutive: bool = False


@dataclass(frozen=True)
class Mark:
    """The content of `mark.json`, see above. rows: None if a batch with any number of rows counts as the same."""

    batch: Long
    written: bool
    since: Long
    run: str
    last: tuple[Long, Long] | None
    plan: str
    consecutive: bool
    rows: dict[str, Long] | None = None  # users may delete it from the file, as an error message advises


class MarkFile:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "mark.json"

    def __str__(self) -> str:
        return str(self._path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the query's folder, because a commit of a killed driver may still be running. Raises `CommitError`."""
        try:
            if not self._folder.is_dir():
                make_directory(self._folder.parent)
                make_directory(self._folder)
            opened = Descriptor(self._folder, lambda path: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise self._unwritable(error) from error
        with closing(opened) as folder:
            try:
                fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _log.warning(
                    "%s: another process is committing a batch of this query. Waiting for its end", self._folder
                )
                fcntl.flock(folder.fd, fcntl.LOCK_EX)
            yield

    def read(self) -> Mark | None:
        try:
            return decode(read_file(self._path, _MAX_BYTES), Mark)
        except FileNotFoundError:
            return None
        except (OSError, CorruptStore, ValueError) as error:
            raise CommitError(
                f"{self}: this file does not record the last written batch ({error}). Restore it from a copy, or "
                "delete it: the query then searches the store for the records of its batches"
            ) from error

    def write(self, mark: Mark) -> None:
        """Write and sync the mark. Raises `CommitError`."""
        try:
            write_file(self._path, encode(mark))
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CommitError:
        return CommitError(
            f"{self._folder}: cannot record the last written batch ({error}). If the disk is full, free some space. If "
            "the driver may not write there, change the permissions. Or set delivery to at-least-once: a "
            "batch that Spark repeats is then written twice"
        )


class Commits:
    def __init__(self, log: LogWriter, folder: Path, query: str) -> None:
        self.file = MarkFile(folder / query)
        self._log = log
        self._query = query

    def has(self, batch: Batch) -> bool:
        """Return whether a batch was written. Raises `CommitError` if that is unknown, or if a later batch was
        written.

        Spark runs only its last batch again, so an earlier batch shows that the checkpoint is stale.
        """
        mark = self.file.read()
        if mark is not None and mark.batch > batch.number:
            raise CommitError(
                f"{self.file}: batch {mark.batch} of this query was written, but Spark now runs batch "
                f"{batch.number}. The checkpoint is older than the written batches: it was restored from a copy, or "
                "its newest files were deleted. Nothing was appended. Restore the newest checkpoint, or start with a "
                "new one and startingOffsets after the written messages"
            )
        if mark is not None and (mark.batch < batch.number or mark.rows == {}):
            self._must_follow(mark, batch)
            return mark.batch < batch.number and self._is_recorded(batch.number, mark.since)  # the mark may be stale
        if not self._was_written(mark, batch.number):
            if mark is None and batch.consecutive and batch.number > 0:
                _log.warning(
                    "%s: this file does not exist, and Spark runs batch %d. Whether the batches before it were "
                    "written here is unknown. If the store was restored from a backup, they are missing",
                    self.file,
                    batch.number,
                )
            return False
        if mark is not None:
            self._must_be_same(mark, batch)
        return True

    def _must_follow(self, mark: Mark, batch: Batch) -> None:
        """Raise `CommitError` if the log lacks a batch between the mark's and `batch`.

        mark: of an earlier batch, or of `batch` itself if it had no rows.
        """
        now = f"Spark now runs batch {batch.number}"
        if mark.written and self._is_older(mark):
            raise CommitError(
                f"{self.file}: batch {mark.batch} was written, but {_LACKS}. {now}. Nothing was appended. Restore the "
                f"newest log, or {_GO_ON}"
            )
        is_here = mark.written or self._is_recorded(mark.batch, mark.since)
        last = mark.batch if is_here else mark.batch - 1
        if mark.consecutive and last < batch.number - 1 and not self._is_recorded(batch.number - 1, mark.since):
            raise CommitError(
                f"{self.file}: batch {mark.batch} was the last one {'written' if is_here else 'begun'} here and "
                f"{now}, but the batches between are missing. The store is older than the checkpoint (restored from "
                "a backup), or the query wrote them to another store or with delivery=at-least-once. Nothing was "
                "appended. Restore the newest store, or the checkpoint of the same time; or delete the files of "
                f"batches above {last} in the checkpoint's folders offsets and commits; or {_GO_ON}"
            )

    def _was_written(self, mark: Mark | None, batch: int) -> bool:
        """Return whether a batch was written. mark: of this batch, or None."""
        if mark is not None and mark.written and not self._is_older(mark):
            return True
        if self._is_recorded(batch, 0 if mark is None or mark.written else mark.since):
            return True
        if mark is not None and mark.written:
            raise CommitError(
                f"{self.file}: batch {batch} was written, but {_LACKS}. Nothing was appended. If the rows of the "
                "batch are missing, delete this file: the batch is then written. If they are in their topic, set "
                '"since" to 0 and "last" to null in this file'
            )
        if mark is not None and self._bounds().min_offset > mark.since:
            raise CommitError(
                f"{self.file}: batch {batch} was begun, and retention deleted the messages that would show whether "
                'it was written. Nothing was appended. If the rows of the batch are in their topic, set "written" to '
                "true in this file. Otherwise delete this file: the batch is then written"
            )
        return False

    def _is_older(self, mark: Mark) -> bool:
        last = {} if mark.last is None else {_RECORDS: Fingerprint(*mark.last)}
        return mark.since > self._bounds().max_offset or bool(self._log.replaced({_RECORDS: mark.since}, last))

    def _must_be_same(self, mark: Mark, batch: Batch) -> None:
        if batch.run and mark.run == batch.run:
            raise CommitError(
                f"{self.file}: batch {batch.number} was already written in this run of the query. Two writes of one "
                "foreachBatch have the same producerGroup, so the second was not written. Give each write a "
                "producerGroup of its own and restart the query: it skips the written batches"
            )
        if batch.plan and mark.plan == batch.plan:
            return
        if batch.plan and mark.plan:
            raise CommitError(
                f"{self.file}: batch {batch.number} of this query was written, and Spark planned it again, perhaps "
                f"with other rows. {_ANEW}"
            )
        if mark.rows is not None and mark.rows != batch.rows:
            raise CommitError(
                f"{self.file}: batch {batch.number} of this query was written with {_counted(mark.rows)}, and Spark "
                f"now runs it with {_counted(batch.rows)}. There are two possible causes. The first: Spark planned "
                f"the batch again. {_ANEW}. The second: the query produces other rows each time that it runs a "
                'batch. To skip this batch, delete "rows" from this file'
            )

    def begin(self, batch: Batch) -> None:
        """Write and sync the mark of a batch, before the batch is appended."""
        if COMMITS_TOPIC not in self._log.topics():
            self._log.create_topic(COMMITS_TOPIC, 1)
        self._note(batch, batch.rows, written=False)

    def record(self, batch: Batch) -> pa.RecordBatch:
        """Return the record to append together with the rows.

        It names its queue, because the topic may have several.
        """
        body = encode({"query": self._query, "batch": batch.number, "rows": sum(batch.rows.values())}).decode()
        columns = [texts([body]), texts([self._query]), arrow(np.array([_RECORDS.queue_id]))]
        return pa.RecordBatch.from_arrays(columns, ["body", "keys", "queueId"])

    def end(self, batch: Batch) -> None:
        """Write and sync the mark of a batch that is appended and synced, or has no rows."""
        self._note(batch, batch.rows, written=True)

    def skip(self, batch: Batch) -> None:
        """Write the mark of a batch that Spark ran again and that was written before.

        Keep the rows and the plan of the run that wrote it, because this run may have produced other rows.
        """
        mark = self.file.read()
        if mark is None or mark.batch < batch.number:
            rows, plan = batch.rows or None, ""
        else:
            rows, plan = mark.rows, mark.plan
        self._note(replace(batch, plan=plan or batch.plan), rows, written=True)

    def _is_recorded(self, batch: int, since: int) -> bool:
        first, end = self._bounds()
        start = max(first, min(since, end))
        if start == end:
            return False
        for records in self._log.scan(QueueRange(_RECORDS, start, end), ReadSpec(("keys", "body"), EVERYTHING)):
            for body in records.filter(pc.equal(records["keys"], constant(self._query)))["body"]:
                if decode(body.as_py())["batch"] == batch:
                    return True
        return False

    def _bounds(self) -> Bounds:
        return self._log.bounds([_RECORDS]).get(_RECORDS, Bounds(0, 0))

    def _note(self, batch: Batch, rows: Mapping[str, int] | None, *, written: bool) -> None:
        end = self._bounds().max_offset
        last = self._log.fingerprints({_RECORDS: end}).get(_RECORDS)
        counts = None if rows is None else dict(rows)
        self.file.write(Mark(batch.number, written, end, batch.run, last, batch.plan, batch.consecutive, counts))


def _counted(rows: Mapping[str, int]) -> str:
    shown = [f"{count:,} rows for {topic}" for topic, count in sorted(rows.items())] or ["no rows"]
    return ", ".join(shown[:_SHOWN]) + (f" and {len(shown) - _SHOWN} more topics" if len(shown) > _SHOWN else "")


_NOT_SEEN_HERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
_MAX_PLAN_BYTES = 1 << 30  # a source may have any number of queues


def plan_of(checkpoint: str | None, batch: int) -> str:
    """Return a SHA-256 digest of the checkpoint's file with the end of a batch; "" if this process cannot read it.

    Raises `StoreUnavailable`, `CorruptStore`.
    """
    if not checkpoint:
        return ""
    path = Path(checkpoint.removeprefix("file:"), "offsets", str(batch))
    try:
        return sha256(read_file(path, _MAX_PLAN_BYTES)).hexdigest()
    except StoreUnavailable as error:
        if error.errno in _NOT_SEEN_HERE:
            return ""
        raise
