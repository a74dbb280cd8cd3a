"""Detect directories of RocketMQ that cannot be read or written here, by the names of their files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from store.disk.admin_files import read_table
from store.format.layout import (
    BATCH_CONSUME_QUEUE_DIR,
    BATCH_QUEUE_TYPE,
    BROKER_IDENTITY_FILE,
    COMMIT_LOG_DIR,
    COMPACTION_POLICY,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    DLEDGER_PREFIX,
    EPOCH_FILE,
    INDEX_DIR,
    ROCKSDB_CONSUME_QUEUE_DIR,
    ROCKSDB_MARK,
    TOPIC_CLEANUP_POLICY,
    TOPIC_MAPPINGS_FILE,
    TOPIC_QUEUE_TYPE,
    TOPICS_FILE,
)
from store.model.errors import UnsupportedStore, system_errors

_TABLE = "topicConfigTable"
_MAPPINGS = "topicQueueMappingInfoMap"


class UnsupportedWarning(UserWarning):
    """Some topics are read differently from RocketMQ's own consumer."""


class DirectoryKind(NamedTuple):
    """A kind of directory that is not fully supported.

    find: returns the file that shows the kind. remedy: the user's alternative.
    """

    name: str
    find: Callable[[Path], Path | None]
    reads: bool
    remedy: str


def _first(root: Path, *patterns: str) -> Path | None:
    return next((found for pattern in patterns for found in root.glob(pattern)), None)


def _rocksdb_queues(root: Path) -> Path | None:
    own = _first(root, f"{CONSUME_QUEUE_DIR}/{ROCKSDB_MARK}")
    beside = _first(root, f"{ROCKSDB_CONSUME_QUEUE_DIR}/{ROCKSDB_MARK}")
    return own or (beside if beside and _queue_file(root) is None else None)


def _queue_file(root: Path) -> Path | None:
    return _first(root, f"{CONSUME_QUEUE_DIR}/*/*/*")


def _log_elsewhere(root: Path) -> Path | None:
    if _first(root, f"{COMMIT_LOG_DIR}/*"):
        return None
    # A concurrently created store gets its first queue file after its first segment.
    found = _queue_file(root)
    return None if _first(root, f"{COMMIT_LOG_DIR}/*") else found


def _on_another_device(root: Path) -> Path | None:
    device = root.stat().st_dev
    folders = (root / name for name in (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR))
    return next((folder for folder in folders if folder.exists() and folder.stat().st_dev != device), None)


_COPY = "Copy its messages to another store with RocketMQ's own client"
_READ = "Open it with read_only=True, or send messages through the broker"
KINDS = (
    DirectoryKind("a DLedger log", lambda root: _first(root, f"{DLEDGER_PREFIX}*"), False, _COPY),
    DirectoryKind("queues in RocksDB (storeType=defaultRocksDB)", _rocksdb_queues, False, _COPY),
    DirectoryKind(
        f"queues, but no file in {COMMIT_LOG_DIR}",
        _log_elsewhere,
        False,
        "If the log is in another folder (storePathCommitLog): to read, link that folder here as "
        f"{COMMIT_LOG_DIR}; to write, move it here. If the log is on several disks (commas in storePathCommitLog), "
        "copy its segments into one folder. If the files were lost, restore them from a copy",
    ),
    DirectoryKind(
        "a folder on another file system",
        _on_another_device,
        True,
        "Move that folder to the file system of the directory, or open the store with read_only=True",
    ),
    DirectoryKind(
        "queues in RocksDB besides those in files (rocksdbCQDoubleWriteEnable)",
        lambda root: _first(root, f"{ROCKSDB_CONSUME_QUEUE_DIR}/{ROCKSDB_MARK}"),
        True,
        _READ,
    ),
    DirectoryKind("settings in RocksDB", lambda root: _first(root, f"{CONFIG_DIR}/*/{ROCKSDB_MARK}"), True, _READ),
    DirectoryKind(
        "files of a broker in controller mode", lambda root: _first(root, EPOCH_FILE, BROKER_IDENTITY_FILE), True, _READ
    ),
    DirectoryKind(
        "topics with batch queues (queue.type=BatchCQ)", lambda root: _first(root, BATCH_CONSUME_QUEUE_DIR), True, _READ
    ),
)


def refuse_kinds(root: Path, *, writing: bool) -> None:
    """Raise `UnsupportedStore` if the directory cannot be read or, with `writing`, cannot be written."""
    with system_errors(root):
        if not root.is_dir():
            return
    for kind in KINDS:
        with system_errors(root):
            found = None if kind.reads and not writing else kind.find(root)
        if found is not None:
            verb, file = "write" if kind.reads else "read", found.relative_to(root)
            raise UnsupportedStore(
                f"{root}: this directory has {kind.name}, as {file} shows. This package cannot {verb} it. {kind.remedy}"
            )


def warn_of_topics(root: Path) -> None:
    topics = read_table(root / TOPICS_FILE, _TABLE)
    _warn(root, batch_topics(topics), "left out, because batch queues (queue.type=BatchCQ) cannot be read")
    compacted = _with_attribute(topics, TOPIC_CLEANUP_POLICY, COMPACTION_POLICY)
    _warn(root, compacted, "shown with all messages, not only the newest of each key, although compacted")
    static = read_table(root / TOPIC_MAPPINGS_FILE, _MAPPINGS)
    _warn(root, static, "static topics; the offsets are of this broker's queues, not the logical ones")


def batch_topics(topics: dict[str, Any]) -> set[str]:
    return _with_attribute(topics, TOPIC_QUEUE_TYPE, BATCH_QUEUE_TYPE)


def _with_attribute(topics: dict[str, Any], name: str, value: str) -> set[str]:
    attributes = {topic: config.get("attributes") for topic, config in topics.items()}
    return {topic for topic, found in attributes.items() if isinstance(found, dict) and found.get(name) == value}


def _warn(root: Path, topics: Iterable[str], what: str) -> None:
    names = ", ".join(sorted(topics))
    if names:
        warnings.warn(f"{root}: topics {names}: {what}", UnsupportedWarning, stacklevel=4)
