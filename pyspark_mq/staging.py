"""The rows of an exactly-once write on their way: each task keeps its own in an Arrow file, the driver appends all.

    <stagingPath>/<owner>.<run>/<partition>-<attempt>.arrow

An owner is a streaming query or, for other writes, "batch"; a run is one attempt of Spark's at one write. An owner has
one live run at a time, except "batch": so whoever commits for a query deletes all its runs, and of the others those
that nobody touched for `RETENTION_SECONDS`. A file need not outlive the machine: what is not committed is run again.

Where a run is over its folder is gone, and a task that Spark has given up, but that still lives, cannot write any more.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from pyspark_mq.errors import StagingError
from store.files.atomic import make_folder, open_file

RETENTION_SECONDS = 7 * 24 * 3600.0
BATCH = "batch"

_GONE = "gone"  # instead of the run in the name of a folder that is being deleted
_TOPIC = b"topic"  # in the metadata of a file's batches, each of which has messages of one topic


class Staging:
    """One directory that the driver and all executors see."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def prepare(self) -> None:
        """Raises `StagingError` where this cannot be written."""
        try:
            make_folder(self._directory)
            if not os.access(self._directory, os.W_OK | os.X_OK):
                raise PermissionError(f"no right to write to {self._directory}")
        except OSError as error:
            raise self._unwritable(error) from error

    def begin(self, owner: str, run: str) -> None:
        """Make the folder of a run, if it is not there. Raises `StagingError`."""
        try:
            make_folder(self._folder(owner, run))
        except OSError as error:
            raise self._unwritable(error) from error

    def write(self, owner: str, run: str, task: str, tables: Iterable[tuple[str, pa.RecordBatch]]) -> tuple[str, int]:
        """Keep what one attempt at a task sends to topics: the file, and how many rows it has. Without any, "" and 0.

        Raises `StagingError`, also where the run has not begun, or is over.
        """
        path, rows, writer = self._folder(owner, run) / f"{task}.arrow", 0, None
        try:
            with ExitStack() as opened:
                for topic, batch in tables:
                    if writer is None:
                        file = opened.enter_context(_new_file(path))
                        writer = opened.enter_context(pa.ipc.new_stream(file, batch.schema))
                    writer.write_batch(batch, custom_metadata={_TOPIC: topic.encode()})
                    rows += batch.num_rows
        except OSError as error:
            raise self._unwritable(error) from error
        return ("" if writer is None else str(path)), rows

    def tables(self, files: Iterable[str]) -> dict[str, pa.Table]:
        """What the files send to each topic, in the order of the files; it lies in mapped memory.

        Raises `StagingError` for a file that is gone.
        """
        batches: dict[str, list[pa.RecordBatch]] = {}
        for file in files:
            for topic, batch in self._read(file):
                batches.setdefault(topic, []).append(batch)
        return {topic: pa.Table.from_batches(each) for topic, each in batches.items()}

    def _read(self, file: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        try:
            with pa.ipc.open_stream(pa.memory_map(file)) as reader:
                for batch, metadata in reader.iter_batches_with_custom_metadata():
                    yield metadata[_TOPIC].decode(), batch
        except (OSError, pa.ArrowInvalid) as error:
            raise StagingError(
                f"{file}: the rows of a task are gone, or not whole ({error}); nothing was appended, run the write "
                "again. The driver has to see the directory that the executors write to: see the option stagingPath"
            ) from error

    def forget(self, owner: str, run: str) -> None:
        """Delete what a write that is over has kept: all runs of its owner, or of "batch" this one."""
        oldest = time.time() - RETENTION_SECONDS
        for folder in self._folders():
            whose, _, which = folder.name.rpartition(".")
            if (whose == owner != BATCH) or which in (run, _GONE) or _last_touched(folder) < oldest:
                _delete(folder)

    def _folder(self, owner: str, run: str) -> Path:
        return self._directory / f"{owner}.{run}"

    def _folders(self) -> list[Path]:
        """Those of runs; the notes of a log without a directory lie beside them."""
        with suppress(OSError):
            found = (entry for entry in os.scandir(self._directory) if "." in entry.name)
            return [Path(entry) for entry in found if entry.is_dir(follow_symlinks=False)]
        return []

    def _unwritable(self, error: OSError) -> StagingError:
        return StagingError(
            f"{self._directory}: cannot keep the rows of a write there ({error}); set the option stagingPath to a "
            "directory that the driver and every executor can write, or delivery to at-least-once"
        )


def _new_file(path: Path) -> pa.NativeFile:
    os.close(open_file(path))  # with the rights that its directory gives
    return pa.OSFile(str(path), "wb")


def _delete(folder: Path) -> None:
    """At once for who knows its name: a task that is not dead yet may be about to make a file there."""
    gone = folder.with_name(f"{uuid4().hex}.{_GONE}")
    with suppress(OSError):  # somebody else deletes it
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _last_touched(folder: Path) -> float:
    """Seconds since 1970; far in the future where somebody else deletes it."""
    try:
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:
        return float("inf")
