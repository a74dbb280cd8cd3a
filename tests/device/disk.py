"""A simulated device: the possible states of a directory after a machine crash. It is given every change of a run in
order.

It assumes what POSIX guarantees and what ext4 (data=ordered or writeback) and XFS implement. `fsync` and `fdatasync` of
a file write its bytes and its length to the device, but not its name. `fsync` of a directory writes the names in it,
but neither its own name nor its files' bytes.

Unflushed changes may be on the device in any mixture. Each page (4,096 bytes), or each sector (512 bytes) of a torn
write, has its state of any moment since the flush, and so has the length. Bytes that were never written are zero. A
sector is written completely or not at all.

Changes of names reach the device in order: all up to some moment, as in a journal, or, stricter, each directory's up to
its own moment. A rename loses no file, but a file renamed without a flush has any content.

A failed flush is not repeated: its pages count as clean until they are written again. A page that was a hole and did
not reach the device stays a hole, as with ext4. The mount point itself is durable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

PAGE = 4096
SECTOR = 512
TOP = 0  # node of the mount point


class Write(NamedTuple):
    """Bytes written to a file, by `write` or through a mapping."""

    node: int
    position: int
    data: bytes


class Resize(NamedTuple):
    """A new length of a file. A new file is resized to 0 before it is named."""

    node: int
    length: int


class Names(NamedTuple):
    """An atomic change of names: (directory, name, the node it now refers to; None if deleted)."""

    changes: tuple[tuple[int, str, int | None], ...]

    @property
    def directories(self) -> set[int]:
        return {directory for directory, _, _ in self.changes}


class Sync(NamedTuple):
    """A flush of a file's bytes or a directory's names, which may have failed."""

    node: int
    failed: bool = False


Change = Write | Resize | Names | Sync
Tree = dict[str, bytes | None]  # path to content, None for a directory; parents before their entries


class _File:
    def __init__(self, content: bytes = b"") -> None:
        self.now = bytearray(content)
        self._safe = bytes(content)
        self._since: list[tuple[int, bytes] | int] = []  # writes as (position, data), and new lengths
        self._dropped: set[int] = set()  # pages that a failed flush did not write

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        self.now.extend(bytes(max(0, end - len(self.now))))
        self.now[position:end] = data
        self._since.append((position, data))
        for page in _units(position, end, PAGE):  # the page is written as a whole, including data dropped before
            if page in self._dropped and not self._is_lost(page):
                self._dropped.discard(page)
                self._since.append((page * PAGE, bytes(self.now[page * PAGE : (page + 1) * PAGE])))

    def resize(self, length: int) -> None:
        del self.now[length:]
        self.now.extend(bytes(length - len(self.now)))
        self._since.append(length)
        self._dropped = {page for page in self._dropped if page * PAGE < length}

    def sync(self) -> None:
        safe = bytearray(self.now)
        for page in self._dropped:
            where = slice(page * PAGE, min((page + 1) * PAGE, len(self.now)))
            safe[where] = self._safe[where].ljust(where.stop - where.start, b"\0")
        self._safe, self._since = bytes(safe), []

    def fail(self, chance: random.Random) -> None:
        self._safe = self.left(chance)
        written = (each for each in self._since if not isinstance(each, int))
        self._dropped.update(page for at, data in written for page in _units(at, at + len(data), PAGE))
        self._since = []

    def left(self, chance: random.Random) -> bytes:
        """Return the bytes that a power loss at this moment may leave, chosen at random."""
        if not self._since:
            return self._safe
        moment = _moments(chance, len(self._since))
        image, length, moment_of_length = bytearray(self._safe), len(self._safe), moment(-1)
        for number, change in enumerate(self._since):
            if isinstance(change, int):
                position, data = change, bytes(max(0, len(image) - change))
                new_length = change
            else:
                position, data = change
                new_length = max(length, position + len(data))
            length = new_length if number < moment_of_length else length
            image.extend(bytes(max(0, position + len(data) - len(image))))
            for sector in _units(position, position + len(data), SECTOR):
                if number < moment(sector) and not self._is_lost(sector * SECTOR // PAGE):
                    begin, end = max(position, sector * SECTOR), min(position + len(data), (sector + 1) * SECTOR)
                    image[begin:end] = data[begin - position : end - position]
        return bytes(image[:length].ljust(length, b"\0"))

    def _is_lost(self, page: int) -> bool:
        """Return whether a page was dropped while it was a hole on the device; it then stays a hole."""
        return page in self._dropped and not any(self._safe[page * PAGE : (page + 1) * PAGE])


def _units(begin: int, end: int, size: int) -> range:
    return range(begin // size, -(-end // size))


def _moments(chance: random.Random, last: int) -> Callable[[int], int]:
    """Return how many of `last` changes reached each sector of a file; sector -1 is its length."""
    sectors = chance.choice((SECTOR, PAGE, PAGE, 1 << 60)) // SECTOR
    chosen: dict[int, int] = {}

    def moment(sector: int) -> int:
        unit = sector // sectors if sector >= 0 else sector
        if unit not in chosen:
            chosen[unit] = chance.choice((0, last, chance.randint(0, last)))
        return chosen[unit]

    return moment


class Disk:
    """A device with its flushed state and the changes since."""

    def __init__(self, tree: Tree, changes: Iterable[Change], chance: random.Random) -> None:
        """tree: the flushed state before `changes`."""
        self._files: dict[int, _File] = {}
        self._safe: dict[tuple[int, str], int] = {}
        self._since: list[Names] = []
        nodes = {"": TOP}
        for path, content in tree.items():
            parent, _, name = path.rpartition("/")
            node = nodes[path] = self._safe[nodes[parent], name] = len(nodes)
            if content is not None:
                self._files[node] = _File(content)
        self._now = dict(self._safe)
        self.apply(changes, chance)

    def apply(self, changes: Iterable[Change], chance: random.Random) -> None:
        """Apply changes; `chance` decides which pages a failed flush wrote."""
        for change in changes:
            self._apply(change, chance)

    def _apply(self, change: Change, chance: random.Random) -> None:
        match change:
            case Write(node, position, data):
                self._file(node).write(position, data)
            case Resize(node, length):
                self._file(node).resize(length)
            case Names():
                self._since.append(change)
                _rename(self._now, change)
            case Sync(node, failed=True) if node in self._files:
                self._files[node].fail(chance)
            case Sync(node, failed=False) if node in self._files:
                self._files[node].sync()
            case Sync(node, failed=False):
                self._sync_names(node)

    def now(self) -> Tree:
        return self._tree(self._now, lambda file: bytes(file.now))

    def after_power_loss(self, chance: random.Random) -> Tree:
        names = dict(self._safe)
        for change in self._that_arrived(chance):
            _rename(names, change)
        kept = chance.choice(("safe", "now", "any", "any"))
        if kept == "now":
            return self._tree(names, lambda file: bytes(file.now) if not file._dropped else file.left(chance))
        return self._tree(names, lambda file: file._safe if kept == "safe" else file.left(chance))

    def _file(self, node: int) -> _File:
        return self._files.setdefault(node, _File())

    def _that_arrived(self, chance: random.Random) -> Iterable[Names]:
        order = chance.choice(("all", "none", "journal", "each"))
        if order == "each":
            stopped: set[int] = set()
            for change in self._since:
                if change.directories & stopped or chance.random() < 0.1:
                    stopped |= change.directories
                else:
                    yield change
        else:
            count = {"all": len(self._since), "none": 0}.get(order, chance.randint(0, len(self._since)))
            yield from self._since[:count]

    def _sync_names(self, directory: int) -> None:
        """Flush a directory's names, and all name changes that they depend on."""
        needed, done, left = {directory}, [], []
        for change in reversed(self._since):
            is_needed = bool(change.directories & needed)
            needed |= change.directories if is_needed else set()
            (done if is_needed else left).append(change)
        for change in reversed(done):
            _rename(self._safe, change)
        self._since = left[::-1]

    def _tree(self, names: dict[tuple[int, str], int], content: Callable[[_File], bytes]) -> Tree:
        entries: dict[int, list[tuple[str, int]]] = {}
        for (directory, name), node in sorted(names.items()):
            entries.setdefault(directory, []).append((name, node))
        tree: Tree = {}

        def walk(directory: int, path: str) -> None:
            for name, node in entries.get(directory, []):
                file = self._files.get(node)
                tree[path + name] = None if file is None else content(file)
                if file is None:
                    walk(node, f"{path}{name}/")

        walk(TOP, "")
        return tree


def _rename(names: dict[tuple[int, str], int], change: Names) -> None:
    for directory, name, node in change.changes:
        if node is None:
            names.pop((directory, name), None)
        else:
            names[directory, name] = node


def restore(tree: Tree, root: Path) -> None:
    """Create the directory `root` with this content; zero pages become holes."""
    root.mkdir()
    for name, content in tree.items():
        path = root / name
        if content is None:
            path.mkdir()
            continue
        with path.open("wb", buffering=0) as file:
            file.truncate(len(content))
            for page in _units(0, len(content), PAGE):
                data = content[page * PAGE : (page + 1) * PAGE]
                if data.strip(b"\0"):
                    file.seek(page * PAGE)
                    file.write(data)


def tree_of(root: Path) -> Tree:
    paths = sorted(root.rglob("*"), key=lambda path: path.parts)
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in paths}
