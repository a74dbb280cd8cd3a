"""Whether a directory's index has tags besides keys, as RocketMQ files them since 5.4 (`topic#T#tag`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store.errors import ConfigError, CorruptRecord, OffsetLost, OffsetNotYet
from store.files.config import StoreConfig
from store.format.key_hashes import key_hash
from store.format.layout import INDEX_NO_ENTRY, INDEX_TAG_PREFIX
from store.index.index import Index
from store.index.index_file import Entries
from store.log.commit_log import CommitLog
from store.read.query import message_at

_ENTRIES = 256  # looked at; whoever files tags files one for each message that has one


def tags_are_filed(root: Path, config: StoreConfig) -> bool:
    """Whether the newest index file that has entries has tags among them; False without one, and where none tells."""
    index, log = Index.of(root, config, writable=False), CommitLog(root, config.mappedFileSizeCommitLog, writable=False)
    try:
        for name in reversed(index.names()):
            file = index.file(name)
            end = file.header()["next_entry"]
            entries = file.entries(max(INDEX_NO_ENTRY + 1, end - _ENTRIES), end)
            if len(entries):
                return any(_has_tag(log, entries, int(offset)) for offset in np.unique(entries["physical_offset"]))
    except ConfigError:  # of other sizes than configured: whoever files a key says so
        pass
    return False


def _has_tag(log: CommitLog, entries: Entries, offset: int) -> bool:
    try:
        message = message_at(log, offset, log.next_segment(offset))
    except (OffsetLost, OffsetNotYet, CorruptRecord):
        return False
    if not message.tags:
        return False
    wanted = key_hash(message.topic, INDEX_TAG_PREFIX + message.tags)
    return bool((entries["key_hash"][entries["physical_offset"] == offset] == wanted).any())
