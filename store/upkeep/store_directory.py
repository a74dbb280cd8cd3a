"""`StoreDirectory`: a store's directory, its settings, its `abort` file, and the evidence for recovery."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from store.append.log_end import broker_owned_since, has_bytes_after
from store.append.published_end import published_end_of
from store.disk.atomic import make_directory, make_folder, make_root, sync_directory, write_file
from store.disk.checkpoint import create_checkpoint, read_checkpoint
from store.disk.commit_log import CommitLog
from store.disk.config import REMEMBERED, SIZES, StoreConfig, existing_settings, settings_text, with_settings
from store.disk.index import Index
from store.disk.index_file import Entries
from store.disk.queue_ends import QueueEnds
from store.disk.segments import list_files
from store.disk.topic_table import TopicTable
from store.disk.topics import Topics
from store.disk.unsupported import refuse_kinds
from store.format.hashes import key_hash
from store.format.layout import (
    ABORT_FILE,
    COMMIT_LOG_DIR,
    CONF_FILE,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
    INDEX_NO_ENTRY,
    INDEX_TAG_PREFIX,
    PUBLISHED_END_FILE,
    TOPICS_FILE,
)
from store.model.errors import (
    ConfigError,
    CorruptRecord,
    CorruptSegment,
    NotAStore,
    OffsetLost,
    OffsetNotYet,
    system_errors,
)
from store.objects.urls import without_secrets
from store.read.query import message_at
from store.upkeep.plans import Evidence

_ENTRIES = 256  # for one read; with tags in the index, most messages have one
_RECORDS = 256  # limit of records without a tag: trace messages have hundreds of keys and no tag


def tags_are_indexed(root: Path, config: StoreConfig) -> bool:
    """Return whether the newest messages with tags have their tags in the index. False if there is no such message."""
    index, log = Index.of(root, config, writable=False), CommitLog(root, config.mappedFileSizeCommitLog, writable=False)
    looked = 0
    try:
        for entries in _newest_first(index):
            offsets = np.unique(entries["physical_offset"]).tolist()
            has = [is_filed for offset in offsets if (is_filed := _has_its_tag(log, entries, offset)) is not None]
            looked += len(offsets)
            if has or looked >= _RECORDS:
                return any(has)
    except ConfigError:  # other sizes than configured: adding a key raises this
        pass
    return False


def _newest_first(index: Index) -> Iterator[Entries]:
    """Yield pieces of the index, newest first. A record with keys in two pieces appears only in the newer one."""
    cut = -1
    for name in reversed(index.names()):
        file = index.file(name)
        end = file.header()["next_entry"]
        while end > INDEX_NO_ENTRY + 1:
            start = max(INDEX_NO_ENTRY + 1, end - _ENTRIES)
            entries, end = file.entries(start, end), start
            yield entries[entries["physical_offset"] != cut]
            cut = int(entries[0]["physical_offset"])


def _has_its_tag(log: CommitLog, entries: Entries, offset: int) -> bool | None:
    """Return whether a record's tag is in the index, None if the record has no tag or cannot be read."""
    try:
        message = message_at(log, offset, log.next_segment(offset))
    except (OffsetLost, OffsetNotYet, CorruptRecord):
        return None
    if not message.tags:
        return None
    wanted = key_hash(message.topic, INDEX_TAG_PREFIX + message.tags)
    return bool((entries["key_hash"][entries["physical_offset"] == offset] == wanted).any())


_URL = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<host>[^/]*)(?P<path>.*)"
_MARKS = (PUBLISHED_END_FILE, COMMIT_LOG_DIR, TOPICS_FILE)


class StoreDirectory:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._conf = root / CONF_FILE

    @staticmethod
    def at(path: str | os.PathLike[str]) -> StoreDirectory:
        """Return the directory of a path or a `file:` URL. Raises `NotAStore` for any other URL."""
        text = os.fsdecode(path)
        url = re.fullmatch(_URL, text, re.DOTALL)
        if url is None:
            local = text.removeprefix("file:")
        elif url["scheme"].lower() == "file" and url["host"] in ("", "localhost"):
            local = url["path"]
        else:
            remedy = (
                ". A URL of a local directory begins with file:///"
                if url["scheme"] == "file"
                else ". Copy the store to a local disk"
            )
            raise NotAStore(
                f"{without_secrets(text)}: a store must be on a local disk, because it locks and maps files{remedy}"
            )
        if "\0" in local:
            raise NotAStore(f"{text!r}: a path must not have a zero byte")
        return StoreDirectory(Path(local).expanduser().absolute())

    def is_store(self) -> bool:
        with system_errors(self.root):
            return any((self.root / mark).exists() for mark in _MARKS)

    def must_be_store(self, *, writing: bool = False) -> None:
        """Raise `NotAStore`, or `UnsupportedStore` for a kind that cannot be read (or written, if `writing`)."""
        refuse_kinds(self.root, writing=writing)
        if not self.is_store():
            what = "is no store" if self.root.exists() else "does not exist"
            raise NotAStore(f"{self.root}: {what}. Create a store: pyspark-mq topic create, or MessageStore.open(path)")

    def create(self) -> None:
        """Create the directory unless it is a store already.

        Raises `NotAStore` if the path is a file or a directory with other files, and `UnsupportedStore`.
        """
        refuse_kinds(self.root, writing=True)
        if self.is_store():
            return
        if self.root.exists() and not self.root.is_dir():
            raise NotAStore(f"{self.root}: this is a file. Name a directory")
        with system_errors(self.root):
            others = sorted(entry.name for entry in self.root.iterdir()) if self.root.exists() else []
        if self.is_store():  # another process created it concurrently
            return
        if others and others != [CONFIG_DIR]:
            raise NotAStore(
                f"{self.root}: this directory has other files "
                f"({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}) and no store. Name a new or an empty "
                "directory"
            )
        make_root(self.root)  # with the permissions of the user's umask
        make_folder(self.root / COMMIT_LOG_DIR)

    def configuration(self, given: StoreConfig | str | os.PathLike[str] | None) -> StoreConfig:
        """Return the given settings, or the directory's own if none are given.

        The directory's file sizes, tag index and archive always override the given ones. Raises `ConfigError`.
        """
        own = existing_settings(self._conf)
        self._warn_if_lost()
        if given is None:
            config = StoreConfig.load(self._conf) if own else StoreConfig()
        else:
            config = given if isinstance(given, StoreConfig) else StoreConfig.load(given)
        if not own.keys() >= set(SIZES):
            config = config.with_file_sizes(_file_size(self.root / COMMIT_LOG_DIR), self._queue_file_size())
            config = replace(config, tagIndexEnable=config.tagIndexEnable or tags_are_indexed(self.root, config))
        # Sizes in the settings have priority over sizes of files, so that a truncated file is noticed.
        return replace(config, **{name: own[name] for name in (*SIZES, "tagIndexEnable", *REMEMBERED) if name in own})

    @property
    def has_configuration(self) -> bool:
        """Return whether `config/store.conf` has the sizes of the store's files."""
        return existing_settings(self._conf).keys() >= set(SIZES)

    def check_sizes(self, config: StoreConfig) -> None:
        """Raise `ConfigError` if another process just created the store with other sizes. Call this under the store
        lock.
        """
        own = existing_settings(self._conf)
        there = replace(config, **{name: own[name] for name in SIZES if name in own})  # rounded as in `config`
        for name in SIZES:
            size, given = getattr(there, name), getattr(config, name)
            if size != given:
                raise ConfigError(
                    f"{self._conf}: {name}={size}, not {given}, because another process created the store at the same "
                    "time with other sizes. Open the store again: it then has the sizes in the file"
                )

    def save_configuration(self, config: StoreConfig) -> None:
        """Add missing sizes to `config/store.conf`. Call this under the store lock."""
        own = existing_settings(self._conf)
        missing = [name for name in SIZES if name not in own]
        if missing:
            make_directory(self._conf.parent)
            text = settings_text(self._conf)
            added = {name: getattr(config, name) for name in missing}
            write_file(self._conf, with_settings(text, added) if text else config.text().encode("ascii"))

    def _warn_if_lost(self) -> None:
        # First: a new store gets its settings before its published end.
        is_ours = (self.root / PUBLISHED_END_FILE).exists()
        if settings_text(self._conf) or not (is_ours or self._conf.exists()):
            return
        what = "empty, perhaps after a crash" if self._conf.exists() else "lost"
        warnings.warn(
            f"{self._conf}: {what}. Sizes are taken from the store's files, other settings have their defaults. The "
            "next opening for writing writes this file again",
            stacklevel=2,
        )

    def mark_open(self) -> None:
        """Create the file `abort`. A broker that finds it recovers as after a crash."""
        abort = self.root / ABORT_FILE
        if not abort.exists():
            write_file(abort, str(os.getpid()).encode("ascii"))
        create_checkpoint(self.root)
        sync_directory(self.root)  # always: the process that created the files may have died before its own sync
        sync_directory(self.root.parent, if_readable=True)

    def mark_closed(self) -> None:
        abort = self.root / ABORT_FILE
        with system_errors(abort):
            abort.unlink(missing_ok=True)

    def warn_of_missing_segments(self, log: CommitLog) -> None:
        """Warn of a missing segment, and of foreign bytes after the log's end. Call this under the store lock."""
        try:
            log.segments.check()
        except CorruptSegment as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        published = published_end_of(self.root)
        if published is None:
            return
        with closing(published):
            if broker_owned_since(log, published, abort=(self.root / ABORT_FILE).exists()):
                return
            end = published.written_end
            if published.same_boot and has_bytes_after(log, end):
                warnings.warn(
                    f"{log.segments.directory}: {PUBLISHED_END_FILE} says that the log ends at {end}, but bytes that "
                    "are no sound record follow, and are truncated. If a RocketMQ broker was killed, it may have "
                    f"left them. Otherwise {PUBLISHED_END_FILE} is older than the log, and messages are damaged: "
                    "restore the segment from a copy",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def evidence(
        self, log: CommitLog, index: Index, queue_file_size: int, ends: QueueEnds | None, *, alone: bool
    ) -> Evidence:
        """Return the evidence for `plan_for`. Call this under the store lock, before `mark_open`.

        ends: the recorded ends of queues, updated with later appends.
        alone: no other writer is open. Another writer has already checked the queues.
        """
        abort = (self.root / ABORT_FILE).exists()
        checkpoint = read_checkpoint(self.root) is not None
        queues = any((self.root / CONSUME_QUEUE_DIR).glob("*/*/*"))
        published = published_end_of(self.root)
        if published is None:
            return Evidence(False, False, queues, abort, checkpoint)
        with closing(published):
            overtaken = broker_owned_since(log, published, abort=abort)
            current = published.same_boot and not (published.has_failed or overtaken)
            end = published.confirm_offset if current else published.flushed_offset
            if queues and alone:
                # Our writers write the ends before they delete `abort`. If the ends are stale, a broker wrote last, and
                # may have rebuilt the index.
                left_alone = ends is not None and (ends.at == published.confirm_offset or (abort and not overtaken))
                left_alone = left_alone and not published.has_lost
                files = log, index, queue_file_size, end
                announced = published.announced_end if current else None
                anew = abort and not current  # then the last index file is rebuilt
                queues = bool(
                    left_alone and ends and ends.match_files(*files, announced=announced, rebuilds_index=anew)
                )
                if not anew:
                    queues = queues and (not index.is_enabled or index.are_consistent(index.names(), end))
            confirm = published.confirm_offset
            # No queues are expected if nothing was appended since the last topic was deleted.
            is_bare = not queues and not alone and confirm in Topics(self.root).deletions().values()
            return Evidence(True, current, queues or is_bare or confirm == 0, abort, checkpoint)

    def _queue_file_size(self) -> int | None:
        topics = self.root / CONSUME_QUEUE_DIR
        sizes = (_file_size(topics / topic / str(queue)) for topic, queue in TopicTable(self.root).queues_on_disk)
        return next((size for size in sizes if size), None)


def _file_size(folder: Path) -> int | None:
    """Return the size of the first file that is not empty. A broker creates a file first and sets its size later."""
    return next((status.st_size for _, status in list_files(folder) if status.st_size), None)
