"""Which batch a query wrote last: so that one which Spark runs again is not written again.

Each batch is appended together with a record of it, a message to `COMMITS_TOPIC` with the query as its key: both are
there or none. Retention deletes records as all messages; so a small file a query says what need not be looked up:

    commits/<query>/mark.json    {"batch": 41, "written": false, "since": 7}

The folder is in the store, or, where a log has no directory, where rows are staged. The file is on the device, with the
batch as begun, before that is appended; and again, with it as written, afterwards. So a later batch than the file's was
never appended; an earlier one was, and is refused; for the file's own, if it is not written for all that the file
knows, a record counts, which stands at offset `since` of the topic or behind. The query's folder is locked meanwhile:
a driver that was killed may leave a commit behind which goes on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_mq.errors import CommitError
from store.any_log import Bounds, LogWriter, Queue, QueueRange, ReadSpec
from store.errors import CorruptStore
from store.files.atomic import make_directory, read_file, write_file
from store.format import compute as pc
from store.format.arrays import constant, texts
from store.format.topic_names import COMMITS_TOPIC
from store.read.filters import EVERYTHING

_RECORDS = Queue(COMMITS_TOPIC, 0)
_MAX_BYTES = 4096


@dataclass(frozen=True)
class Mark:
    """What the file of a query says. since: queue offset."""

    batch: int
    written: bool
    since: int


class Commits:
    """The batches of one query in one log."""

    def __init__(self, log: LogWriter, folder: Path, query: str) -> None:
        """folder: of the files of all queries."""
        self._log = log
        self._query = query
        self._folder = folder / query
        self._path = self._folder / "mark.json"

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One process at a time commits for a query; whoever is killed meanwhile lets go. Raises `CommitError`."""
        try:
            if not self._folder.is_dir():
                make_directory(self._folder.parent)
                make_directory(self._folder)
            fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def has(self, batch: int) -> bool:
        """Whether a batch was written. Raises `CommitError` where nothing can tell any more, and for an old batch.

        Spark runs its last batch again, never one before: where that comes, the checkpoint is an old one, its batches
        are planned anew, and those of the same numbers that were written may have had other rows.
        """
        mark = self._read()
        if mark is not None and mark.batch > batch:
            raise CommitError(
                f"{self._path}: batch {mark.batch} of this query was written, and now comes batch {batch}: the "
                "checkpoint is older than what was written (put back from a copy, or its newest files deleted). "
                "Nothing was appended. Put the newest checkpoint back; or start with a new one and startingOffsets "
                "that go on behind what was written"
            )
        if mark is not None and mark.batch < batch:
            return False
        if mark is not None and mark.written:
            return True
        if self._is_recorded(batch, 0 if mark is None else mark.since):
            return True
        if mark is not None and self._bounds()[0] > mark.since:
            raise CommitError(
                f"{self._path}: batch {batch} was begun, and the messages of then are deleted by now: nothing here "
                'tells whether it was written. If you find its rows in what was read since, write "written": true '
                "into this file; otherwise delete the file, and the batch is written"
            )
        return False

    def begin(self, batch: int) -> None:
        """Note that a batch, which there is not yet, is about to be written. On the device when this returns.

        Raises `CommitError`.
        """
        if COMMITS_TOPIC not in self._log.topics():
            self._log.create_topic(COMMITS_TOPIC, 1)
        self._write(Mark(batch, False, self._bounds()[1]))

    def record(self, batch: int, rows: int) -> pa.RecordBatch:
        """What is to be appended to COMMITS_TOPIC, together with the rows of a batch."""
        body = json.dumps({"query": self._query, "batch": batch, "rows": rows})
        return pa.RecordBatch.from_arrays([texts([body]), texts([self._query])], ["body", "keys"])

    def end(self, batch: int) -> None:
        """Note that a batch was written, and flushed. Raises `CommitError`."""
        self._write(Mark(batch, True, self._bounds()[1]))

    def _is_recorded(self, batch: int, since: int) -> bool:
        first, end = self._bounds()
        start = max(first, min(since, end))
        if start == end:
            return False
        for records in self._log.scan(QueueRange(*_RECORDS, start, end), ReadSpec(("keys", "body"), EVERYTHING)):
            for body in records.filter(pc.equal(records["keys"], constant(self._query)))["body"]:
                if json.loads(body.as_py())["batch"] == batch:
                    return True
        return False

    def _bounds(self) -> Bounds:
        """Of the records; none where there is no topic yet."""
        return self._log.bounds([_RECORDS]).get(_RECORDS, Bounds(0, 0))

    def _read(self) -> Mark | None:
        try:
            mark = Mark(**json.loads(read_file(self._path, _MAX_BYTES)))
            if type(mark.batch) is not int or type(mark.written) is not bool or type(mark.since) is not int:
                raise ValueError("values of other kinds")
            return mark
        except FileNotFoundError:
            return None
        except (OSError, CorruptStore, ValueError, TypeError, RecursionError) as error:
            raise CommitError(
                f"{self._path}: not a note of which batch was written last ({error}); restore it from a copy, or "
                "delete it: then the records that the store still has tell"
            ) from error

    def _write(self, mark: Mark) -> None:
        try:
            write_file(self._path, json.dumps(asdict(mark)).encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CommitError:
        return CommitError(
            f"{self._folder}: cannot note which batch is written ({error}); give the driver the right to write there, "
            "or set delivery to at-least-once"
        )
