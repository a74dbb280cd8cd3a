"""Whether a directory's index has tags besides keys, as RocketMQ files them since 5.4 (`topic#T#tag`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from store.files.config import StoreConfig
from store.format.hashes import key_hash
from store.format.layout import INDEX_NO_ENTRY, INDEX_TAG_PREFIX
from store.index.index import Index
from store.index.index_file import Entries
from store.log.commit_log import CommitLog
from store.model.errors import ConfigError, CorruptRecord, OffsetLost, OffsetNotYet
from store.read.query import message_at

_ENTRIES = 256  # looked at together; whoever files tags files one for each message that has one
_RECORDS = 256  # looked at until one has a tag: one message of traces has hundreds of keys, and none


def tags_are_filed(root: Path, config: StoreConfig) -> bool:
    """Whether the newest messages of the index that have a tag have it there; False without one, where none tells."""
    index, log = Index.of(root, config, writable=False), CommitLog(root, config.mappedFileSizeCommitLog, writable=False)
    looked = 0
    try:
        for entries in _newest_first(index):
            offsets = np.unique(entries["physical_offset"]).tolist()
            has = [is_filed for offset in offsets if (is_filed := _has_its_tag(log, entries, offset)) is not None]
            looked += len(offsets)
            if has or looked >= _RECORDS:
                return any(has)
    except ConfigError:  # of other sizes than configured: whoever files a key says so
        pass
    return False


def _newest_first(index: Index) -> Iterator[Entries]:
    """Pieces of the index's entries; of a record that two have a part of, the older one has none."""
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
    """Whether the tag of the record at a log offset is among its entries, the last ones; None without a tag."""
    try:
        message = message_at(log, offset, log.next_segment(offset))
    except (OffsetLost, OffsetNotYet, CorruptRecord):
        return None
    if not message.tags:
        return None
    wanted = key_hash(message.topic, INDEX_TAG_PREFIX + message.tags)
    return bool((entries["key_hash"][entries["physical_offset"] == offset] == wanted).any())
