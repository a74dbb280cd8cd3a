"""The rows of an exactly-once write: each task stages its rows in an Arrow file, and the driver appends all of them.

    <stagingPath>/<owner>.<run>/<partition>-<attempt>.arrow

The owner is the id of a streaming query (with its producerGroup, if it has one), or "batch" for other writes. A run is
one attempt of Spark at one write. The name of a query's run begins with the number of its batch.

A commit deletes the query's runs up to the committed batch. It leaves later runs, because another driver may have begun
them. It also deletes runs of any owner that were not written for `RETENTION_SECONDS`. Files are not synced, because
Spark runs an uncommitted batch again after a crash.

The folder of a run has an object `.made` until the run is over. Without it a write fails, so a cancelled task that
still runs cannot write after the end of its run.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pyarrow as pa

from pyspark_mq.errors import StagingError
from store.model.errors import ObjectsUnavailable
from store.objects.any_objects import Objects, objects_at

RETENTION_SECONDS = 7 * 24 * 3600.0
BATCH = "batch"

_MADE = ".made"
_OWNER = rf"{BATCH}|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(-[^.]+)?"
_OURS = re.compile(rf"({_OWNER})\.([0-9]{{19}}-)?[0-9a-f]{{32}}")
_TOPIC = b"topic"  # metadata key of a file's record batches, each of which has messages of one topic


class Staging:
    """Staged rows in a directory or a folder of an object store, which the driver and all executors see.

    Methods raise `StagingError`.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def prepare(self) -> None:
        """Check that the path is writable."""
        with self._writable() as objects:
            with objects.writing(_MADE):
                pass
            objects.delete(_MADE)

    def begin(self, owner: str, run: str) -> None:
        made = f"{_folder(owner, run)}/{_MADE}"
        with self._writable() as objects, objects.writing(made):
            pass

    def write(
        self, owner: str, run: str, task: str, tables: Iterable[tuple[str, pa.RecordBatch]]
    ) -> tuple[str, Counter[str]]:
        """Stage the rows of a task. Return the name of their file ("" without rows), and the rows of each topic."""
        folder, writer = _folder(owner, run), None
        name = f"{folder}/{task}.arrow"
        rows: Counter[str] = Counter()
        with self._writable() as objects, ExitStack() as opened:
            for topic, batch in tables:
                if writer is None:
                    path = opened.enter_context(objects.writing(name))
                    file = opened.enter_context(pa.OSFile(str(path), "wb"))
                    writer = opened.enter_context(pa.ipc.new_stream(file, batch.schema))
                writer.write_batch(batch, custom_metadata={_TOPIC: topic.encode()})
                rows[topic] += batch.num_rows
            if writer is not None:
                objects.size(f"{folder}/{_MADE}")  # raises if the run is over
        return ("" if writer is None else name), rows

    def tables(self, files: Iterable[str]) -> dict[str, pa.Table]:
        """Return the staged rows of each topic, in the order of the files. The tables are memory-mapped."""
        batches: dict[str, list[pa.RecordBatch]] = {}
        for file in files:
            for topic, batch in self._read(file):
                batches.setdefault(topic, []).append(batch)
        return {topic: pa.Table.from_batches(each) for topic, each in batches.items()}

    def _read(self, file: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        try:
            with self._objects.reading(file) as path, pa.ipc.open_stream(pa.memory_map(str(path))) as reader:
                for batch, metadata in reader.iter_batches_with_custom_metadata():
                    yield metadata[_TOPIC].decode(), batch
        except (OSError, ObjectsUnavailable, pa.ArrowInvalid) as error:
            raise StagingError(
                f"{self._path}/{file}: the rows of a task are missing or incomplete ({error}). Nothing was appended. "
                "Set stagingPath to a directory that the driver and all executors see, and run the write again"
            ) from error

    def forget(self, owner: str, run: str) -> None:
        """Delete one run of "batch", or a query's runs up to the batch of `run`. Also delete stale runs of any
        owner.
        """
        oldest = time.time() - RETENTION_SECONDS
        for folder in self._runs():
            whose, _, which = folder.rpartition(".")
            with suppress(ObjectsUnavailable):  # another process is deleting it, or a later commit will
                mine = (whose == owner != BATCH and _batch(which) <= _batch(run)) or which.endswith(run)
                if mine or (_OURS.fullmatch(folder) and self._is_over(folder, oldest)):
                    self._objects.delete_all(folder)

    def _is_over(self, folder: str, oldest: float) -> bool:
        times = self._objects.names(folder).values()
        return max((time for time in times if time is not None), default=oldest) < oldest

    def _runs(self) -> list[str]:
        """Return the folders of runs. The path may also have other files of the store."""
        with suppress(ObjectsUnavailable):
            return [name for name, time in self._objects.names("").items() if time is None and "." in name]
        return []

    @property
    def _objects(self) -> Objects:
        return objects_at(self._path, {})  # opened in each process, to keep credentials out of pickles

    @contextmanager
    def _writable(self) -> Iterator[Objects]:
        try:
            yield self._objects
        except (OSError, ObjectsUnavailable) as error:
            raise StagingError(
                f"{self._path}: cannot write the rows of a task ({error}). If the disk is full, free some space. "
                "Otherwise set stagingPath to a directory that the driver and all executors can write, or to "
                "an S3 URL such as s3://bucket/staging. Or set delivery to at-least-once"
            ) from error


def _folder(owner: str, run: str) -> str:
    return f"{owner}.{run}"


def run_of_batch(batch: int, attempt: str) -> str:
    """Return the name of a run, which sorts by its batch."""
    return f"{batch:019}-{attempt}"


def _batch(run: str) -> str:
    return run.partition("-")[0]
