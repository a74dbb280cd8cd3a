"""RocketMQ's `checkpoint` (StoreCheckpoint): the store time up to which log and queues are synced."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store.disk.atomic import open_file, read_file, status_of, write_at, write_file
from store.format.layout import CHECKPOINT, CHECKPOINT_FILE, CHECKPOINT_FILE_BYTES
from store.model.errors import system_errors

_MAX_BYTES = 1 << 20


def read_checkpoint(root: Path) -> int | None:
    """Return the store time (ms) up to which log and queues are synced, None if unknown."""
    return min(_read(root, "log_timestamp"), _read(root, "queues_timestamp")) or None


def read_index_checkpoint(root: Path) -> int:
    """Return the store time (ms) up to which RocketMQ synced its index files, 0 if unknown."""
    return _read(root, "index_timestamp")


def _read(root: Path, name: str) -> int:
    try:
        data = read_file(root / CHECKPOINT_FILE, _MAX_BYTES)
    except FileNotFoundError:
        return 0
    return int(np.frombuffer(data, CHECKPOINT, 1)[name][0]) if len(data) >= CHECKPOINT.itemsize else 0


def create_checkpoint(root: Path) -> None:
    """Create the checkpoint unless it exists. Later writes to it need no disk space."""
    path = root / CHECKPOINT_FILE
    if status_of(path) is None:
        write_file(path, bytes(CHECKPOINT_FILE_BYTES))


def write_checkpoint(root: Path, store_timestamp: int) -> None:
    """Record that log and queues are synced up to a store time (ms)."""
    fields = np.zeros(1, CHECKPOINT)
    fields["log_timestamp"] = fields["queues_timestamp"] = store_timestamp
    path = root / CHECKPOINT_FILE
    with system_errors(path), open(open_file(path), "r+b", buffering=0) as file:
        write_at(file.fileno(), fields.tobytes(), 0)
