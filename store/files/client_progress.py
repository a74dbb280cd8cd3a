"""Progress that clients note in small files of the store: members of consumer groups, and named producers.

consumers/{group}/{member id}.member    JSON behind its CRC32; its `slots` are the queues
consumers/{group}/done/{member id}      one `DONE_OFFSET` for each of the slots; 0: nothing
producers/{name}/reached.json           {"sequences": {"orders": 1041}, "since": 87, "open": true}

Other members inherit the offsets of a member that died. `client.producer_memory` says how producers use their file.
After a crash of the machine these files may be newer than the log: then `step_back_done` and `forget_beyond` correct
them.
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

from store.files.atomic import open_file, read_file, write_at, write_file
from store.format.layout import CONSUMERS_DIR, DONE_OFFSET
from store.format.strict_json import Int, Long, decode, encode
from store.model.errors import CorruptStore, system_errors
from store.model.log_protocol import Positions, Queue

MEMBER_SUFFIX = ".member"
DONE_DIR = "done"
_CRC_DIGITS = 8
MAX_BYTES = 64 << 20  # of a file: a hundred bytes for each of 65,536 queues take a tenth


def done_path(member: Path) -> Path:
    """Return the file in which the member with this entry notes its offsets."""
    return member.parent / DONE_DIR / member.name.removesuffix(MEMBER_SUFFIX)


def sealed(entry: bytes) -> bytes:
    """Return an entry behind its checksum: a killed writer may leave parts of two, which may be JSON together."""
    return b"%08x" % zlib.crc32(entry) + entry


def unsealed(text: bytes) -> bytes:
    """Return the entry in a text. Raises `ValueError` if its checksum does not fit."""
    entry = text[_CRC_DIGITS:].rstrip()
    if sealed(entry)[:_CRC_DIGITS] != text[:_CRC_DIGITS]:
        raise ValueError("not an entry, or parts of two")
    return entry


def entry_of(member: Path) -> bytes:
    """Return the entry of a member that may be dead, b"" if it is missing or damaged."""
    with suppress(FileNotFoundError, CorruptStore, ValueError):
        return unsealed(read_file(member, MAX_BYTES))
    return b""


def noted(member: Path) -> list[int]:
    """Return the offsets that a member noted, by slot; there may be fewer than slots."""
    try:
        found = read_file(done_path(member), MAX_BYTES)
    except (FileNotFoundError, CorruptStore):
        return []
    whole = len(found) // DONE_OFFSET.itemsize * DONE_OFFSET.itemsize  # the device may have been full
    offsets: list[int] = np.frombuffer(found[:whole], DONE_OFFSET).tolist()
    return offsets


def note_at(path: Path, fd: int, slot: int, offset: int) -> None:
    """Write the offset of one slot. fd: the open file `path`."""
    with system_errors(path):
        write_at(fd, offset.to_bytes(DONE_OFFSET.itemsize, "big"), slot * DONE_OFFSET.itemsize)


def step_back_done(root: Path, at_most: Callable[[Queue, int], int]) -> dict[Path, Positions]:
    """Lower the noted offsets that exceed the ends of queues. Return the new ones, by the members' files.

    at_most: takes a queue and an offset; returns the offset, or the queue's end if that is less.
    """
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
    """Return the queues of a member's slots; none if the file is not a whole entry, for no member inherits from it."""
    with suppress(ValueError):
        return list(starmap(Queue, decode(entry_of(member), _Entry).slots))
    return []


PRODUCERS_FOLDER = "producers"  # in the store
_FILE = "reached.json"
_MAX_BYTES = 1 << 20


class _ReachedFile(msgspec.Struct):
    sequences: dict[str, Long]
    since: Long
    open: bool


class Reached(NamedTuple):
    """How far a named producer has come.

    sequences: by topic, counting the records before queue offset `since` of PRODUCERS_TOPIC. was_open: the producer may
    have come farther.
    """

    sequences: dict[str, int]
    since: int
    was_open: bool

    @staticmethod
    def read(folder: Path) -> Reached:
        """Read the file of the producer with this folder. Raises `CorruptStore`."""
        path = folder / _FILE
        try:
            noted = decode(read_file(path, _MAX_BYTES), _ReachedFile)
        except FileNotFoundError:
            return Reached({}, 0, False)
        except (CorruptStore, ValueError) as error:
            raise CorruptStore(
                f"{path}: not a note of how far a producer has come ({error}); restore it from a copy, or delete it: "
                "then the records that the log still has tell"
            ) from error
        return Reached(noted.sequences, noted.since, noted.open)

    def write(self, folder: Path) -> None:
        """Write the file; it is on the device when this returns."""
        write_file(folder / _FILE, encode(_ReachedFile(self.sequences, self.since, self.was_open)))


def check_reached(root: Path) -> None:
    """Raises `CorruptStore` if the file of a producer cannot be read."""
    for folder in _folders(root):
        Reached.read(folder)


def forget_reached(root: Path, topic: str) -> None:
    """Forget the progress of all producers in a topic that is deleted. Raises `CorruptStore`."""
    for folder in _folders(root):
        reached = Reached.read(folder)
        if reached.sequences.pop(topic, None) is not None:
            reached.write(folder)


def forget_beyond(root: Path, at_most: Callable[[int], int]) -> dict[str, Reached]:
    """Reset the files of producers that noted more than the log has. Return their old content, by name.

    at_most: takes an offset of PRODUCERS_TOPIC; returns it, or the queue's end if that is less.
    """
    forgotten = {}
    for folder in _folders(root):
        with suppress(CorruptStore):  # the producer's next opening reports it
            reached = Reached.read(folder)
            if at_most(reached.since) < reached.since:
                Reached({}, 0, True).write(folder)
                forgotten[folder.name] = reached
    return forgotten


def _folders(root: Path) -> list[Path]:
    return sorted((root / PRODUCERS_FOLDER).glob("*"))
