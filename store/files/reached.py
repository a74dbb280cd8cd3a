"""How far a named producer has come, in a small file of the store (see `client.producer_memory`).

<store>/producers/<name>/reached.json    {"sequences": {"orders": 1041}, "since": 87, "open": true}
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from store.files.atomic import read_file, write_file
from store.format.strict_json import Long, decode, encode
from store.model.errors import CorruptStore

PRODUCERS_FOLDER = "producers"  # in the store
_FILE = "reached.json"
_MAX_BYTES = 1 << 20


class _Noted(msgspec.Struct):
    sequences: dict[str, Long]
    since: Long
    open: bool


class Reached(NamedTuple):
    """sequences: by topic, of what stands before queue offset `since` of PRODUCERS_TOPIC. was_open: it may be more."""

    sequences: dict[str, int]
    since: int
    was_open: bool

    @staticmethod
    def read(folder: Path) -> Reached:
        """That of the producer with this folder. Raises `CorruptStore`."""
        path = folder / _FILE
        try:
            noted = decode(read_file(path, _MAX_BYTES), _Noted)
        except FileNotFoundError:
            return Reached({}, 0, False)
        except (CorruptStore, ValueError) as error:
            raise CorruptStore(
                f"{path}: not a note of how far a producer has come ({error}); restore it from a copy, or delete it: "
                "then the records that the log still has tell"
            ) from error
        return Reached(noted.sequences, noted.since, noted.open)

    def write(self, folder: Path) -> None:
        """On the device when this returns."""
        write_file(folder / _FILE, encode(_Noted(self.sequences, self.since, self.was_open)))


def check_reached(root: Path) -> None:
    """Raises `CorruptStore` where the note of a producer cannot be read."""
    for folder in _folders(root):
        Reached.read(folder)


def forget_reached(root: Path, topic: str) -> None:
    """No producer came anywhere in a topic that is deleted. Raises `CorruptStore`."""
    for folder in _folders(root):
        reached = Reached.read(folder)
        if reached.sequences.pop(topic, None) is not None:
            reached.write(folder)


def forget_beyond(root: Path, at_most: Callable[[int], int]) -> dict[str, Reached]:
    """Let producers whose notes say more than the log has go by the log; what they noted, by their names.

    at_most: an offset of PRODUCERS_TOPIC, or its end where that is less.
    """
    forgotten = {}
    for folder in _folders(root):
        with suppress(CorruptStore):  # whoever needs it is told
            reached = Reached.read(folder)
            if at_most(reached.since) < reached.since:
                Reached({}, 0, True).write(folder)
                forgotten[folder.name] = reached
    return forgotten


def _folders(root: Path) -> list[Path]:
    return sorted((root / PRODUCERS_FOLDER).glob("*"))
