"""Small files in which members of consumer groups and named producers record their progress.

    consumers/{group}/{member id}.member    CRC32, then JSON; its `slots` are the member's queues
    consumers/{group}/done/{member id}      one `DONE_OFFSET` for each slot; 0: no offset
    producers/{name}/reached.json           {"sequences": {"orders": 1041}, "since": 87, "open": true}

After a crash of the machine these files may be newer than the log. `step_back_members` and
`reset_producers_ahead_of_log` correct them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from store.disk.atomic import open_file, read_file, write_at, write_file
from store.format.layout import CONSUMERS_DIR, DONE_OFFSET
from store.format.strict_json import Int, Long, decode, encode
from store.model.errors import CorruptStore, system_errors
from store.model.log_protocol import Positions, Queue

MEMBER_SUFFIX = ".member"
DONE_DIR = "done"
_CRC_DIGITS = 8
MAX_BYTES = 64 << 20  # 65,536 queues of 100 bytes take a tenth


def done_path(member: Path) -> Path:
    """Return a member's file of offsets."""
    return member.parent / DONE_DIR / member.name.removesuffix(MEMBER_SUFFIX)


def sealed(entry: bytes) -> bytes:
    """Return an entry after its checksum, which detects the mix of two entries that a killed writer may leave."""
    return b"%08x" % zlib.crc32(entry) + entry


def unsealed(text: bytes) -> bytes:
    entry = text[_CRC_DIGITS:].rstrip()
    if sealed(entry)[:_CRC_DIGITS] != text[:_CRC_DIGITS]:
        raise ValueError("its checksum is wrong")
    return entry


def entry_of(member: Path) -> bytes:
    """Return the entry in a `.member` file, b"" if it is missing or damaged."""
    with suppress(FileNotFoundError, CorruptStore, ValueError):
        return unsealed(read_file(member, MAX_BYTES))
    return b""


def noted(member: Path) -> list[int]:
    """Return a member's offsets by slot. The last slots may be missing."""
    try:
        found = read_file(done_path(member), MAX_BYTES)
    except (FileNotFoundError, CorruptStore):
        return []
    whole = len(found) // DONE_OFFSET.itemsize * DONE_OFFSET.itemsize  # a full device may have cut one
    offsets: list[int] = np.frombuffer(found[:whole], DONE_OFFSET).tolist()
    return offsets


def note_at(path: Path, fd: int, slot: int, offset: int) -> None:
    """Write a member's offset in a slot. fd: the descriptor of `path`."""
    with system_errors(path):
        write_at(fd, offset.to_bytes(DONE_OFFSET.itemsize, "big"), slot * DONE_OFFSET.itemsize)


def step_back_members(root: Path, at_most: Callable[[Queue, int], int]) -> dict[Path, Positions]:
    """Lower the offsets of members to the ends of their queues. Return the lowered offsets, by member file."""
    found = {}
    for member in sorted((root / CONSUMERS_DIR).glob(f"*/*{MEMBER_SUFFIX}")):
        pairs = enumerate(zip(_slots(member), noted(member), strict=False))
        ends = {slot: (queue, at_most(queue, done)) for slot, (queue, done) in pairs if at_most(queue, done) < done}
        if ends:
            path = done_path(member)
            with open(open_file(path), "r+b", buffering=0) as file:
                for slot, (_, end) in ends.items():
                    note_at(path, file.fileno(), slot, end)
            found[member] = dict(ends.values())
    return found


class _Entry(msgspec.Struct):
    slots: list[tuple[str, Int]]


def _slots(member: Path) -> list[Queue]:
    with suppress(ValueError):
        return list(starmap(Queue, decode(entry_of(member), _Entry).slots))
    # The entry is damaged: no other member takes over its offsets.
    return []


PRODUCERS_FOLDER = "producers"
_FILE = "reached.json"
_MAX_BYTES = 1 << 20


class _ProducerProgressFile(msgspec.Struct):
    sequences: dict[str, Long]
    since: Long
    open: bool


class ProducerProgress(NamedTuple):
    """The progress of a named producer.

    sequences: the last sequence of each topic, before queue offset `since` of PRODUCERS_TOPIC.
    was_open: whether the producer was not closed, so that it may have sent more.
    """

    sequences: dict[str, int]
    since: int
    was_open: bool

    @staticmethod
    def read(folder: Path) -> ProducerProgress:
        """Raises `CorruptStore`."""
        path = folder / _FILE
        try:
            noted = decode(read_file(path, _MAX_BYTES), _ProducerProgressFile)
        except FileNotFoundError:
            return ProducerProgress({}, 0, False)
        except (CorruptStore, ValueError) as error:
            raise CorruptStore(
                f"{path}: this record of a producer's last sequences is damaged ({error}). Restore it from a copy. If "
                "you delete it, the producer finds its last sequences in the log; messages that retention has deleted "
                "are then not known, and are stored again if they are sent again"
            ) from error
        return ProducerProgress(noted.sequences, noted.since, noted.open)

    def write(self, folder: Path) -> None:
        write_file(folder / _FILE, encode(_ProducerProgressFile(self.sequences, self.since, self.was_open)))


def check_producer_progress(root: Path) -> None:
    """Read all producers' files. Raises `CorruptStore` if one is damaged."""
    for folder in _folders(root):
        ProducerProgress.read(folder)


def forget_topic_of_producers(root: Path, topic: str) -> None:
    for folder in _folders(root):
        reached = ProducerProgress.read(folder)
        if reached.sequences.pop(topic, None) is not None:
            reached.write(folder)


def reset_producers_ahead_of_log(root: Path, at_most: Callable[[int], int]) -> dict[str, ProducerProgress]:
    """Empty the files of producers that are ahead of the log. Return their old content, by producer name.

    at_most: limits an offset to the end of PRODUCERS_TOPIC.
    """
    forgotten = {}
    for folder in _folders(root):
        with suppress(CorruptStore):  # raised when the producer opens
            reached = ProducerProgress.read(folder)
            if at_most(reached.since) < reached.since:
                ProducerProgress({}, 0, True).write(folder)
                forgotten[folder.name] = reached
    return forgotten


def _folders(root: Path) -> list[Path]:
    return sorted((root / PRODUCERS_FOLDER).glob("*"))
