"""What each member of a consumer group notes of how far it has got, for who inherits it when it dies.

consumers/{group}/{member id}.member    JSON; its `slots` are the queues
consumers/{group}/done/{member id}      one `DONE_OFFSET` for each of the slots; 0: nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import starmap
from pathlib import Path

import msgspec
import numpy as np

from store.any_log import Positions, Queue
from store.errors import CorruptStore
from store.files.atomic import open_file, read_file, write_at
from store.format.layout import CONSUMERS_DIR, DONE_OFFSET
from store.format.strict_json import Int, decode
from store.system_errors import system_errors

MEMBER_SUFFIX = ".member"
DONE_DIR = "done"
MAX_BYTES = 64 << 20  # of a file: a hundred bytes for each of 65,536 queues take a tenth


def done_path(member: Path) -> Path:
    """Where the member of this file notes it."""
    return member.parent / DONE_DIR / member.name.removesuffix(MEMBER_SUFFIX)


def spare_path(member: Path) -> Path:
    """What it says of itself once more, where that is long. No member's id has a "~"."""
    done = done_path(member)
    return done.with_name(f"{done.name}~")


def entries(member: Path) -> Iterator[bytes]:
    """What a member that may be dead says of itself, as it is written: first that of which a part is no JSON. In its
    own file a kill may leave the begin of what is new before the rest of what was there, which may be some."""
    for path in (spare_path(member), member):
        with suppress(FileNotFoundError, CorruptStore):
            yield read_file(path, MAX_BYTES)


def noted(member: Path) -> list[int]:
    """The offsets, by slot; there may be fewer than slots."""
    try:
        found = read_file(done_path(member), MAX_BYTES)
    except (FileNotFoundError, CorruptStore):
        return []
    whole = len(found) // DONE_OFFSET.itemsize * DONE_OFFSET.itemsize  # the device may have been full
    offsets: list[int] = np.frombuffer(found[:whole], DONE_OFFSET).tolist()
    return offsets


def note_at(path: Path, fd: int, slot: int, offset: int) -> None:
    """fd: of the file `path`."""
    with system_errors(path):
        write_at(fd, offset.to_bytes(DONE_OFFSET.itemsize, "big"), slot * DONE_OFFSET.itemsize)


def step_back_done(root: Path, at_most: Callable[[Queue, int], int]) -> dict[Path, Positions]:
    """Who inherits gets no more than the log has. Answers what was set, by the members' files.

    at_most: a queue and an offset to that, or to where the queue ends.
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
    """None where no member wrote this, or was killed while it joined: nobody inherits of those."""
    for text in entries(member):
        with suppress(ValueError):
            return list(starmap(Queue, decode(text, _Entry).slots))
    return []
