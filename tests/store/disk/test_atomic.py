"""A reader sees a small file's old or new content, never a mix, and a replacement is on the device when the call
returns."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.disk.atomic import create_file, open_file, read_file, write_at, write_file
from store.model.errors import CorruptStore, StoreUnavailable

ROOT = Path(__file__).parents[3]
OLD, NEW = b"old" * 10_000, b"new" * 20_000
# Exits, as if killed, at the n-th system call that renames, links or syncs.
DYING = """
import os, sys
from pathlib import Path
from store.disk.atomic import create_file, write_file

calls = int(sys.argv[2])
def dying(call):
    def wrapped(*arguments, **options):
        global calls
        calls -= 1
        if not calls:
            os._exit(9)
        return call(*arguments, **options)
    return wrapped
for name in ("fsync", "replace", "link", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
path = Path(sys.argv[1])
what = {"write": lambda: write_file(path, b"new" * 20_000),
        "backup": lambda: write_file(path, b"new" * 20_000, backup=path.with_suffix(".bak")),
        "create": lambda: create_file(path, b"new" * 20_000)}
what[sys.argv[3]]()
"""
LOOPING = """
import sys
from pathlib import Path
from store.disk.atomic import write_file

print("ready", flush=True)
while True:
    for content in (b"old" * 10_000, b"new" * 20_000):
        write_file(Path(sys.argv[1]), content)
"""


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)


def read(*paths: Path) -> bytes | None:
    """Return the content of the first existing path, as RocketMQ reads its files."""
    return next((path.read_bytes() for path in paths if path.exists()), None)


@pytest.mark.parametrize("kind", ["write", "backup", "create"])
def test_writer_dies_at_any_step(tmp_path: Path, kind: str) -> None:
    outcomes, step, ended = set(), 0, 9
    while ended:
        step += 1
        path = tmp_path / str(step) / "file.conf"
        path.parent.mkdir()
        if kind != "create":
            write_file(path, OLD)
        ended = child(DYING, path, step, kind).wait(60)
        outcomes.add(read(path, path.with_suffix(".bak")))
        write_file(path, b"next")
        assert path.read_bytes() == b"next"
    assert step > 3
    assert outcomes == {NEW, None if kind == "create" else OLD}


def test_writer_dies_while_it_replaces_an_empty_file(tmp_path: Path) -> None:
    step, ended = 0, 9
    while ended:
        step += 1
        path = tmp_path / str(step) / "file.conf"
        path.parent.mkdir()
        path.touch()
        path.with_suffix(".bak").write_bytes(OLD)
        ended = child(DYING, path, step, "backup").wait(60)
        assert path.with_suffix(".bak").read_bytes() == OLD
        assert path.read_bytes() in (b"", NEW)
    assert step > 3
    assert path.read_bytes() == NEW


def test_writer_is_killed_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "file.conf"
    write_file(path, OLD)
    for rounds in range(10):
        process = child(LOOPING, path)
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(50 * rounds):
            assert path.read_bytes() in (OLD, NEW)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert path.read_bytes() in (OLD, NEW)


def recorded(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[tuple[str, str]]:
    """Return the system calls of `act` in order: call and file name, where any temporary file is "temporary"."""
    calls: list[tuple[str, str]] = []

    def named(path: str) -> str:
        return "temporary" if path.endswith(".tmp") else Path(path).name

    def record(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(first: Any, *others: Any, **options: Any) -> Any:
            target = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(others[0])
            calls.append((name, named(target)))
            return call(first, *others, **options)

        return wrapped

    with monkeypatch.context() as patch:
        for name in ("fsync", "replace", "link"):
            patch.setattr(os, name, record(name, getattr(os, name)))
        act()
    return calls


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of descriptors are looked up in /proc")
def test_content_name_and_directory_are_flushed_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, backup = tmp_path / "file", tmp_path / "file.bak"
    first, last = ("fsync", "temporary"), ("fsync", tmp_path.name)
    assert recorded(monkeypatch, lambda: write_file(path, OLD)) == [first, ("replace", "file"), last]
    assert recorded(monkeypatch, lambda: write_file(path, NEW, backup=backup)) == [
        first,
        ("replace", "file.bak"),
        ("replace", "file"),
        last,
    ]
    assert recorded(monkeypatch, lambda: create_file(tmp_path / "new", NEW)) == [first, ("link", "new"), last]


def test_old_content_becomes_the_backup(tmp_path: Path) -> None:
    path, backup = tmp_path / "file", tmp_path / "file.bak"
    write_file(path, OLD, backup=backup)
    assert not backup.exists()
    write_file(path, NEW, backup=backup)
    assert (path.read_bytes(), backup.read_bytes()) == (NEW, OLD)
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "file.bak"}


def test_one_of_many_threads_creates_a_file(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    made: list[tuple[bool, bytes]] = []

    def attempt(content: bytes) -> None:
        start.wait()
        made.append((create_file(tmp_path / "file", content), content))

    threads = [threading.Thread(target=attempt, args=(bytes([n]) * 50_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [content for won, content in made if won] == [(tmp_path / "file").read_bytes()]
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_failed_write_leaves_only_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, OLD)

    def broken(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    for act in (lambda: write_file(path, NEW), lambda: create_file(tmp_path / "other", NEW)):
        with pytest.raises(OSError, match="Input/output error"):
            act()
    assert path.read_bytes() == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_small_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        read_file(path, 10)
    path.write_bytes(b"0123456789")
    assert read_file(path, 10) == b"0123456789"
    with pytest.raises(CorruptStore, match=r"file: 10 bytes, more than the allowed 9\. Restore the file from a copy"):
        read_file(path, 9)


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    pipe, device, folder = tmp_path / "pipe", tmp_path / "device", tmp_path / "folder"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    folder.mkdir()
    for path in (pipe, device):
        with pytest.raises(CorruptStore, match=f"{path.name}: this is a pipe or a device, not a file. Move it out"):
            read_file(path, 10)
    with pytest.raises(StoreUnavailable, match="folder: Is a directory"):
        read_file(folder, 10)


def test_partial_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, pwrite = tmp_path / "file", os.pwrite
    path.write_bytes(b"." * 100)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, memoryview(data)[:7], position))
    with path.open("r+b") as file:
        write_at(file.fileno(), bytes(range(50)), 20)
    assert path.read_bytes() == b"." * 20 + bytes(range(50)) + b"." * 30


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open descriptors are counted in /proc")
def test_failure_to_set_rights_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    tmp_path.chmod(0o775)
    monkeypatch.setattr(os, "fchmod", refuse)
    before, opened = os.umask(0o077), os.listdir("/proc/self/fd")
    try:
        with pytest.raises(StoreUnavailable, match="Operation not permitted"):
            open_file(tmp_path / "file")
    finally:
        os.umask(before)
    assert os.listdir("/proc/self/fd") == opened


def test_small_file_is_read_in_little_address_space(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"small")
    code = """
import resource, sys
from pathlib import Path
from store.disk.atomic import read_file
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), -1))
print(read_file(Path(sys.argv[1]), 256 << 20))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "small")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "b'small'\n"
