"""Archives on stores that show files while they are written and keep partial files of a killed writer."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from store import MessageStore, NoArchive, ObjectsUnavailable
from store.archive.archive_log import ArchiveAddress
from store.format.layout import CONF_FILE
from store.model.log_protocol import Queue, QueueRange
from store.objects.any_objects import objects_at
from store.read.query import KeyQuery
from tests.children import ended
from tests.filled import Filled

ORDERS = Queue("orders", 0)
BEFORE, ALL = 20, 50


class InPlace(LocalFileSystem):  # type: ignore[misc]
    """A file system that writes in place. A move replaces the target, as on SFTP, or fails, as on HDFS.

    left: steps until the process is killed, in the middle of a write or before any other operation.
    """

    protocol = "inplace"
    cachable = False
    left = 1 << 60
    replaces = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("inplace://")))

    @classmethod
    def step(cls) -> None:
        cls.left -= 1
        if cls.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        with open(self._strip_protocol(path), "wb", buffering=0) as file:
            file.write(value[: len(value) // 2])
            self.step()
            file.write(value[len(value) // 2 :])

    def mv(self, path1: str, path2: str, **more: Any) -> None:
        self.step()
        if not self.replaces and self.exists(path2):
            raise OSError(f"{path2}: is there")
        super().mv(path1, path2, **more)

    def rm_file(self, path: str) -> None:
        self.step()
        super().rm_file(path)


@pytest.fixture(params=[True, False])
def url(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    fsspec.register_implementation("inplace", InPlace, clobber=True)
    monkeypatch.setattr(InPlace, "replaces", request.param)
    return f"inplace://{tmp_path}/archive"


def archive(path: str, url: str) -> None:
    with MessageStore.open(path, create=False) as store:
        store.archive(url)


def is_killed(path: str, url: str, steps: int) -> bool:
    """Archive in a child process that is killed after `steps` steps. Return whether it was killed."""
    if child := os.fork():
        code = ended(child)
        assert code <= 0
        return code < 0
    try:
        InPlace.left = steps
        archive(path, url)
        os._exit(0)
    finally:
        os._exit(1)


def archived(url: str, put: list[bytes]) -> int:
    """Return how many messages a reader finds, both by offset and by key."""
    try:
        with ArchiveAddress(url).open() as log:
            _, end = log.bounds([ORDERS])[ORDERS]
            assert [each.body for each in log.messages(QueueRange(ORDERS, 0, end))] == put[:end]
            assert all(log.query(KeyQuery("orders", f"k{offset}")) for offset in (0, end - 1))
            return end
    except NoArchive:
        return 0


@pytest.mark.parametrize("before", [0, BEFORE])
def test_archiver_is_killed_at_any_step(tmp_path: Path, url: str, before: int) -> None:
    """The next archiver is killed at each step, too. Archived messages stay whole; new messages appear completely or
    not at all."""
    filled = Filled(tmp_path / "mq", {"orders": 1})
    place, saved = tmp_path / "archive", tmp_path / "saved"
    with filled.store:
        if before:
            filled.put("orders", 0, before)
            filled.store.archive(url)
            shutil.copytree(place, saved)
        filled.put("orders", 0, ALL - before)
    put = [body for *_, body in filled.rows]
    settings = Path(filled.path) / CONF_FILE
    unarchived = settings.read_bytes()
    steps = 0
    while is_killed(filled.path, url, steps):
        assert archived(url, put) in (before, ALL)
        is_killed(filled.path, url, steps * 7 % 5)
        assert archived(url, put) in (before, ALL)
        archive(filled.path, url)
        assert archived(url, put) == ALL
        shutil.rmtree(place)
        if before:
            shutil.copytree(saved, place)
        settings.write_bytes(unarchived)  # resets the settings, or the store would miss its deleted archive
        steps += 1
    assert steps > (12 if before else 4)
    assert archived(url, put) == ALL
    assert not [path for path in place.rglob("*") if path.suffix in (".new", ".part")]


def test_deletion_removes_all_names_of_an_object(tmp_path: Path, url: str) -> None:
    objects = objects_at(url, {})
    objects.write("a/b", b"12")
    for name in ("b.new", "b.part", "c.part"):
        (tmp_path / "archive/a" / name).write_bytes(b"1")
    assert list(objects.names("a")) == ["b"]
    assert (objects.read_all("a/b"), objects.size("a/b"), objects.read("a/b", 1, 9)) == (b"12", 2, b"2")
    (tmp_path / "archive/a/b").unlink()
    assert (objects.read_all("a/b"), objects.size("a/b"), list(objects.names("a"))) == (b"1", 1, ["b"])
    objects.delete("a/b")
    assert objects.names("a") == {}
    with pytest.raises(FileNotFoundError):
        objects.read_all("a/b")


def test_reads_are_repeated_during_successive_writes(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read looks for one name while the content is under the other."""
    objects, own, new = objects_at(url, {}), tmp_path / "archive/a/b", tmp_path / "archive/a/b.new"
    objects.write("a/b", b"12")
    read, moves = LocalFileSystem.cat_file, iter([(own, new), (new, own), (own, new), (new, own), (own, new)])

    def late(self: InPlace, path: str, **more: Any) -> bytes:
        for before, after in moves:
            before.rename(after)
            break
        return bytes(read(self, path, **more))

    monkeypatch.setattr(InPlace, "cat_file", late)
    assert objects.read_all("a/b") == b"12"
    assert next(moves, None) is None


def test_stores_with_atomic_puts_need_no_rename(tmp_path: Path) -> None:
    for url, kind in (
        ("memory://x", "Remote"),
        ("dir::memory://x", "Remote"),
        (f"dir::file://{tmp_path}", "Renaming"),
        (f"{tmp_path}", "LocalObjects"),
    ):
        assert type(objects_at(url, {})).__name__ == kind


class Connected(InPlace):
    """A file system over a connection, as FTP or SFTP, which the server may close.

    refuses: the error for new connections. closed: number of the last connection that the server closed.
    """

    protocol = "connected"
    refuses: Exception | None = None
    made = closed = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.refuses is not None:
            raise self.refuses
        Connected.made += 1
        self.number = Connected.made

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("connected://", "inplace://"))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        if self.number <= Connected.closed:
            raise EOFError
        return bytes(super().cat_file(path, start, end, **more))


class LoginError(Exception):
    """A login error of a driver's own, as ftplib and paramiko raise it."""


def test_closed_connection_is_opened_again(tmp_path: Path, filled: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("connected", Connected, clobber=True)
    url = f"connected://{tmp_path}/archive"
    filled.store.archive(url)
    there = {ORDERS: filled.store.offsets("orders", 0)}
    with ArchiveAddress(url).open() as log:
        assert log.bounds([ORDERS]) == there
        monkeypatch.setattr(Connected, "closed", Connected.made)
        assert log.bounds([ORDERS]) == there
        for refused in (ConnectionRefusedError("no"), LoginError("no")):
            monkeypatch.setattr(Connected, "closed", Connected.made)
            monkeypatch.setattr(Connected, "refuses", refused)
            for use in (lambda: log.bounds([ORDERS]), lambda: filled.store.archive(url)):
                with pytest.raises(ObjectsUnavailable, match=r"connected://.*: (no answer in time|LoginError: no)"):
                    use()
            monkeypatch.setattr(Connected, "refuses", None)
            assert log.bounds([ORDERS]) == there
            filled.store.archive(url)
