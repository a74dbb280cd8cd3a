"""The simulated device keeps all flushed changes, and can lose every other one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.device.disk import PAGE, SECTOR, Change, Disk, Tree, restore, tree_of
from tests.device.recorder import Fault, Recorder

TRIES = 300


def recorded(root: Path, run: str, fault: Fault | None = None) -> list[Change]:
    """Return the changes of a few lines of Python that run in `root`."""
    root.mkdir(exist_ok=True)
    recorder = Recorder(root, fault=fault)
    with recorder.recording():
        exec(run, {"os": os, "root": root, "__name__": "run"})
    if fault is None:
        assert Disk({}, recorder.changes, random.Random(0)).now() == tree_of(root)
    return recorder.changes


def left(changes: list[Change]) -> list[Tree]:
    """Return the possible states after a machine crash, without duplicates."""
    found: list[Tree] = []
    for seed in range(TRIES):
        chance = random.Random(seed)
        tree = Disk({}, changes, chance).after_power_loss(chance)
        if tree not in found:
            found.append(tree)
    return found


WRITE = "fd = os.open(root / 'a', os.O_RDWR | os.O_CREAT)\nos.pwrite(fd, b'one', 0)\n"
WRITE_FILE = "with (root / 'a').open('wb') as file:\n file.write(b'x')\n file.flush()\n os.fsync(file.fileno())\n"
SYNC_NAME = "names = os.open(root, os.O_RDONLY)\nos.fsync(names)\n"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (WRITE + "os.fsync(fd)\n" + SYNC_NAME, [{"a": b"one"}]),
        (WRITE + "os.fdatasync(fd)\n" + SYNC_NAME, [{"a": b"one"}]),
        (WRITE + "os.fsync(fd)", [{}, {"a": b"one"}]),
        (WRITE + SYNC_NAME, [{"a": b""}, {"a": b"\0\0\0"}, {"a": b"one"}]),
        (WRITE + "os.fsync(fd)\n" + SYNC_NAME + "os.ftruncate(fd, 1)", [{"a": b"o"}, {"a": b"o\0\0"}, {"a": b"one"}]),
        (WRITE + "os.fsync(fd)\n" + SYNC_NAME + "os.unlink(root / 'a')", [{}, {"a": b"one"}]),
        (WRITE + "os.fsync(fd)\n" + SYNC_NAME + "os.rename(root / 'a', root / 'b')", [{"a": b"one"}, {"b": b"one"}]),
        (WRITE + "os.fsync(fd)\nos.rename(root / 'a', root / 'b')\n" + SYNC_NAME, [{"b": b"one"}]),
        ("os.mkdir(root / 'd')\n" + SYNC_NAME, [{"d": None}]),
        ("(root / 'a').write_text('x')\n" + SYNC_NAME, [{"a": b""}, {"a": b"\0"}, {"a": b"x"}]),
        (
            "with (root / 'a').open('wb') as file:\n file.write(b'x')\n file.flush()\n os.fsync(file.fileno())\n"
            + SYNC_NAME,
            [{"a": b"x"}],
        ),
    ],
)
def test_possible_states_after_a_crash(tmp_path: Path, run: str, expected: list[Tree]) -> None:
    found = left(recorded(tmp_path / "run", run))
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def test_flushed_names_are_lost_with_their_directory(tmp_path: Path) -> None:
    run = "os.mkdir(root / 'd')\nfd = os.open(root / 'd' / 'a', os.O_CREAT)\nnames = os.open(root / 'd', 0)\n"
    assert {} in left(recorded(tmp_path / "run", run + "os.fsync(names)"))


def test_pages_and_sectors_are_written_in_any_order(tmp_path: Path) -> None:
    run = f"fd = os.open(root / 'a', os.O_RDWR | os.O_CREAT)\nos.ftruncate(fd, {3 * PAGE})\nos.fsync(fd)\n{SYNC_NAME}"
    trees = left(recorded(tmp_path / "run", run + f"os.pwrite(fd, b'x' * {3 * PAGE}, 0)"))
    contents = [tree["a"] or b"" for tree in trees]
    assert bytes(PAGE) + b"x" * PAGE + bytes(PAGE) in contents
    assert b"x" * 3 * PAGE in contents
    assert bytes(3 * PAGE) in contents
    torn = [page for content in contents for page in (content[:PAGE],) if 0 < page.count(b"x") < PAGE]
    assert torn
    assert all(content[at : at + SECTOR] in (bytes(SECTOR), b"x" * SECTOR) for content in torn for at in (0, SECTOR))


def test_stores_through_a_mapping_are_seen_in_order(tmp_path: Path) -> None:
    run = f"""import mmap
fd = os.open(root / 'a', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, {PAGE})
os.fsync(fd)
mapped = mmap.mmap(fd, {PAGE})
mapped[0:8] = b'12345678'
other = os.open(root / 'b', os.O_RDWR | os.O_CREAT)
mapped[0:8] = b'87654321'
{SYNC_NAME}"""
    found = [tree["a"][:8] for tree in left(recorded(tmp_path / "run", run)) if tree["a"]]  # type: ignore[index]
    assert set(found) == {bytes(8), b"12345678", b"87654321"}


def test_pages_of_a_failed_flush_stay_lost(tmp_path: Path) -> None:
    fails = "try:\n    os.fsync(fd)\nexcept OSError:\n    os.fsync(fd)\n"
    run, fault = f"{WRITE}{SYNC_NAME}{fails}", Fault("fsync", 1, 5)
    assert {"a": b"\0\0\0"} in left(recorded(tmp_path / "run", run, fault))
    more = "os.pwrite(fd, b'two', 3)\nos.fsync(fd)"
    again = left(recorded(tmp_path / "again", run + more, fault))
    assert {"a": bytes(6)} in again, "the page was a hole"
    assert {"a": b"onetwo"} in again, "only the page that failed is lost"
    run = f"{WRITE}{SYNC_NAME}os.fsync(fd)\nos.pwrite(fd, b'more', 3)\n{fails}os.pwrite(fd, b'!', 7)\nos.fsync(fd)"
    again = left(recorded(tmp_path / "page", run, Fault("fsync", 2, 5)))
    assert again == [{"a": b"onemore!"}], "the next write writes the whole page"


def test_tree_is_restored_unchanged(tmp_path: Path) -> None:
    tree: Tree = {"d": None, "d/a": b"x" * 5000 + bytes(5000), "d/empty": b"", "z": bytes(100)}
    restore(tree, tmp_path / "restored")
    assert tree_of(tmp_path / "restored") == tree
