"""Changes of `store/` that tests must notice. Each `before` text must exist exactly once in its file."""

from __future__ import annotations

from typing import NamedTuple

CRASHES = "tests/device/test_crashes.py"
DELETION = (
    "tests/store/broker/test_deletion_in_use.py",
    "tests/store/broker/test_recreated_topics.py",
    "tests/store/broker/test_killed_deletion.py",
)
SYNCED = f"{CRASHES}::test_guarantees_hold_after_machine_crashes[SYNC_FLUSH]"


class Mutant(NamedTuple):
    """A defect: `before` in `file` becomes `after`. One of `tests` must fail or never end."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        "SYNC_FLUSH that does not flush",
        "store/append/appender.py",
        "            self._log.segments.flush(self._published_end.flushed_offset, end)\n",
        "            pass\n",
        (SYNCED,),
    ),
    Mutant(
        "a part of an append on the device before the rest",
        "store/append/appender.py",
        "hidden=placed.head[0] if hidden and end == begin else None",
        "hidden=None",
        (SYNCED,),
    ),
    Mutant(
        "offsets that ignore another writer's append",
        "store/append/appender.py",
        "(known.confirm_offset, known.deletions) == (confirm, deletions)",
        "known.deletions == deletions",
        ("tests/store/append/test_appender.py::test_two_stores_in_turns_keep_offsets_dense",),
    ),
    Mutant(
        "offsets that ignore the deletion of a topic",
        "store/append/appender.py",
        "(known.confirm_offset, known.deletions) == (confirm, deletions)",
        "known.confirm_offset == confirm",
        DELETION,
    ),
    Mutant(
        "queue files and ends of a deleted topic that stay in use",
        "store/disk/consume_queues.py",
        "if count != self._seen or count % 2:",
        "if False:",
        DELETION,
    ),
    Mutant(
        "messages put into a topic deleted after their encoding",
        "store/append/placing.py",
        "        if found == queue.begin:\n",
        "        if False:\n",
        DELETION,
    ),
    Mutant(
        "a dead deletion that the next append does not finish",
        "store/append/appender.py",
        "        if self._published_end.deletions % 2:\n",
        "        if False:\n",
        DELETION,
    ),
    Mutant(
        "saved ends of deleted queues",
        "store/disk/queue_ends.py",
        "if deleted.get(name[0], -1) >= self.at",
        "if False",
        DELETION,
    ),
    Mutant(
        "the last bytes of an append not flushed",
        "store/disk/commit_log.py",
        "            self.segments.flush(offset, offset + _HEAD_BYTES)\n",
        "            pass\n",
        (SYNCED,),
    ),
    Mutant(
        "an append undone without its head first",
        "store/disk/commit_log.py",
        "        for stop in (min(begin + _HEAD_BYTES, end), end):",
        "        for stop in (end,):",
        (f"{CRASHES}::test_dead_append_is_visible_completely_or_not_at_all",),
    ),
    Mutant(
        "queues never flushed",
        "store/append/flusher.py",
        "self._queues.of(*name).flush(*entries)",
        "self._queues.of(*name)",
        (CRASHES,),
    ),
    Mutant(
        "recovery that does not flush the log",
        "store/upkeep/recovery.py",
        "        segments.flush(decision.begin, files_end)\n",
        "",
        (CRASHES,),
    ),
    Mutant(
        "a new segment whose length is not flushed",
        "store/disk/segments.py",
        "                sync(file.fileno(), temporary)\n",
        "",
        (CRASHES,),
    ),
    Mutant(
        "a new segment whose name is not flushed",
        "store/disk/segments.py",
        "            sync_names(directory)\n",
        "            pass\n",
        (CRASHES,),
    ),
    Mutant(
        "an append during a check taken for a broker's",
        "store/append/log_end.py",
        " and published.numbers == numbers",
        "",
        ("tests/store/append/test_log_end.py",),
    ),
    Mutant(
        "torn queue entries that count",
        "store/disk/consume_queue.py",
        "        while low > start and not self._counts(low - 1, confirm_offset):\n            low -= 1\n",
        "",
        ("tests/store/disk/test_consume_queue.py",),
    ),
    Mutant(
        "the slot of a single key written before the index header",
        "store/disk/index_file.py",
        "        self.write_header(header)\n        self.file.write(slot, _SLOT.pack(number))\n",
        "        self.file.write(slot, _SLOT.pack(number))\n        self.write_header(header)\n",
        ("tests/device/test_index_writes.py",),
    ),
    Mutant(
        "queue entries for inner-batch records",
        "store/format/entering.py",
        "~outside & (sys_flags & SYS_INNER_BATCH == 0)",
        "~outside",
        ("tests/store/format/test_entering.py",),
    ),
    Mutant(
        "retention that keeps one segment too few",
        "store/upkeep/retention.py",
        "            if start + segments.size < confirm_offset:",
        "            if start + segments.size <= confirm_offset:",
        ("tests/store/upkeep/test_retention.py",),
    ),
    Mutant(
        "retention that deletes unarchived segments",
        "store/upkeep/retention.py",
        "if kept_from is None or each.start + size <= kept_from]",
        "if kept_from is None or each.start <= kept_from]",
        ("tests/store/archive/test_of_store.py",),
    ),
    Mutant(
        "no page reservation",
        "store/disk/index_file.py",
        "        table.reserve(heads)\n",
        "",
        ("tests/device/test_index_writes.py",),
    ),
    Mutant(
        "endless retry on lost offsets",
        "store/read/query.py",
        "            if bounds()[0] <= minimum:  # not by retention\n                raise\n",
        "            continue\n",
        ("tests/store/read/test_query.py",),
    ),
    Mutant(
        "retention that deletes unflushed segments",
        "store/api/message_store.py",
        "            writer.settle()\n",
        "            pass\n",
        (CRASHES,),
    ),
    Mutant(
        "readers that ignore the saved ends of queues",
        "store/api/message_store.py",
        "    noted = None if end.by_log or end.has_lost else QueueEnds.read(root)\n",
        "    noted = None\n",
        ("tests/store/disk/test_lost_for_readers.py",),
    ),
    Mutant(
        "a lost segment taken for a deleted one",
        "store/read/query.py",
        "            if offset >= log.min_offset():  # not by retention\n                raise\n",
        "            continue\n",
        ("tests/store/read/test_lost_segments.py",),
    ),
    Mutant(
        "deleted segments that come back after a crash",
        "store/upkeep/retention.py",
        "            sync_directory(self._log.segments.directory)\n",
        "            pass\n",
        (CRASHES,),
    ),
    Mutant(
        "index files after the end that come back",
        "store/disk/index.py",
        "        if names:\n            sync_names(self.directory)\n",
        "",
        (CRASHES,),
    ),
    Mutant(
        "an index file whose length is not flushed",
        "store/disk/index.py",
        "            file.flush()  # a file that exists has its length\n",
        "",
        (CRASHES,),
    ),
    Mutant(
        "a new store whose own name is not flushed",
        "store/disk/atomic.py",
        "        sync_directory(folder.parent, if_readable=True)\n",
        "        pass\n",
        ("tests/device/test_archive.py",),
    ),
    Mutant(
        "settings whose name is not flushed",
        "store/disk/atomic.py",
        "        temporary.unlink(missing_ok=True)\n    sync_directory(path.parent)\n",
        "        temporary.unlink(missing_ok=True)\n",
        ("tests/device/test_names.py",),
    ),
]
