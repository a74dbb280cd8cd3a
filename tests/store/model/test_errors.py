"""Every deliberate error is a StoreError, and errors of the system name the path and a remedy."""

from __future__ import annotations

import contextlib
import errno
import importlib
import inspect
import os
import pkgutil
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pyspark_mq
import pyspark_mq.errors
import store
import store.model.errors
from store import InvalidArgument, Message, MessageStore, StoreConfig, StoreError, StoreFull, StoreUnavailable
from store.directory.directory_group import DirectoryGroup
from store.model.errors import FileMissing, system_errors
from store.upkeep.verify import verify
from tests.descriptors import allowed


def test_all_errors_are_store_errors() -> None:
    outside = set()
    for package in (store, pyspark_mq):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            outside |= {
                f"{kind.__module__}.{name}"
                for name, kind in inspect.getmembers(module, inspect.isclass)
                if issubclass(kind, Exception)
                and kind.__module__.partition(".")[0] == package.__name__
                and kind.__module__ not in ("store.model.errors", "pyspark_mq.errors")
                and not issubclass(kind, Warning)
                and not name.startswith("_")
            }
    assert outside == set()


def test_every_error_of_the_store_is_public() -> None:
    own = inspect.getmembers(store.model.errors, inspect.isclass)
    assert {name for name, kind in own if issubclass(kind, StoreError)} <= set(store.__all__)


SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, messageIndexEnable=False)
ROOT = Path(__file__).parents[3]
# Calls the store in a process without permissions and prints the error and its cause.
PROGRAM = """
import errno, os, resource, sys
from store import Message, MessageStore, StoreError
path, what = sys.argv[1:]
store = MessageStore.open(path, read_only=what == "read")
if what == "files":
    taken = []
    while True:
        try:
            taken.append(os.dup(0))
        except OSError:
            break
    act = lambda: MessageStore.open(path, read_only=True)
elif what == "length":
    sys.dont_write_bytecode = True  # or what Python compiles is cut short, and others import that
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    act = lambda: store.put(Message("t", bytes(3000)))
else:
    os.setresuid(65534, 65534, 65534)
    act = lambda: MessageStore.open(path, read_only=what == "read")
try:
    act()
except StoreError as error:
    print(type(error).__name__, errno.errorcode[error.__cause__.errno], error, flush=True)
os._exit(0)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path / "mq", config=SMALL) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"first"))
    return tmp_path / "mq"


def run(path: Path, what: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), what],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lack_of_descriptors_is_an_error(path: Path) -> None:
    assert re.match(rf"StoreUnavailable EMFILE {path}.*: Too many open files; .* raise the limit", run(path, "files"))


def test_lack_of_descriptors_for_a_group_is_an_error(path: Path) -> None:
    with allowed(0), pytest.raises(StoreUnavailable, match=rf"{path}.*: Too many open files; .* raise the limit"):
        DirectoryGroup(path, "g")


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="this system has no limit of a file's length")
def test_file_size_limit_is_an_error(path: Path) -> None:
    assert re.match(rf"StoreUnavailable EFBIG {path}.*: File too large; raise the limit", run(path, "length"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize(("what", "mode"), [("read", 0o700), ("write", 0o755)])
def test_missing_permission_is_an_error(path: Path, what: str, mode: int) -> None:
    for folder in path.parents[:3]:
        folder.chmod(0o755)
    path.chmod(mode)
    said = run(path, what)
    assert re.match(rf"StoreUnavailable EACCES {path}.*: Permission denied; get permission", said)
    assert ("read_only=True" in said) == (what == "write")  # the other call has read_only=True


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="mounting needs root on Linux")
def test_read_only_file_system_is_an_error(path: Path) -> None:
    mount = ["mount", "--bind", str(path), str(path)], ["mount", "-o", "remount,ro,bind", str(path)]
    if any(subprocess.run(command, capture_output=True).returncode for command in mount):
        pytest.skip("nothing can be mounted here")
    try:
        with pytest.raises(
            StoreUnavailable, match=rf"{path}.*: Read-only file system; copy .*, or open the store with read_only"
        ):
            MessageStore.open(path)
        with MessageStore.open(path, read_only=True) as reader:
            assert reader.offsets("t", 0) == (0, 1)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_circular_links_are_an_error(tmp_path: Path, path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for read_only in (True, False):
        with pytest.raises(StoreError, match=rf"{tmp_path}/a"):
            MessageStore.open(tmp_path / "a", read_only=read_only)
    topics = path / "config/topics.json"
    topics.unlink()
    topics.symlink_to("topics.json")
    with pytest.raises(StoreUnavailable, match=r"config/topics\.json: Too many levels of symbolic links; correct"):
        MessageStore.open(path)


def test_folder_instead_of_a_file_is_an_error(path: Path) -> None:
    topics = path / "config/topics.json"
    content = topics.read_bytes()
    topics.unlink()
    topics.mkdir()
    for use in (lambda: MessageStore.open(path), lambda: verify(path)):
        with pytest.raises(StoreUnavailable, match=r"config/topics\.json: Is a directory; .* move it out") as caught:
            use()
        assert isinstance(caught.value.__cause__, IsADirectoryError)
    topics.rmdir()
    topics.write_bytes(content)
    folder = path / "config"
    folder.rename(path / "away")
    folder.write_text("")
    with pytest.raises(StoreUnavailable, match=r"config/.*: Not a directory; this is a file, not a folder"):
        MessageStore.open(path)


FILES = (
    "config/topics.json",
    "config/consumerOffset.json",
    "config/store.conf",
    "checkpoint",
    "watermark",
    "lock",
    "queueends",
    "commitlog/00000000000000000000",
    "consumequeue/t/0/00000000000000000000",
)
# Opens, reads and writes each store; prints the errors.
USING = """
import sys
from store import Message, MessageStore, StoreError
for path in sys.argv[1:]:
    for read_only in (True, False):
        try:
            with MessageStore.open(path, read_only=read_only) as store:
                list(store.scan("t", 0, 0, 1))
                store.consumer_offset("g", "t", 0)
                read_only or store.put(Message("t", b"more"))
        except StoreError as error:
            print(path, type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "nowhere"])
def test_pipes_and_devices_do_not_block(path: Path, kind: str) -> None:
    for name in FILES:
        copy = shutil.copytree(path, path.with_name(name.replace("/", "-")))
        copy.joinpath(name).unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(copy / name)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(copy):
                listening.bind(name)
        else:
            copy.joinpath(name).symlink_to("/dev/zero" if kind == "device" else "/nowhere/at/all")
    copies = [str(path.with_name(name.replace("/", "-"))) for name in FILES]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USING, *copies],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    assert done.stderr == ""


def test_moved_directory_is_a_store_error(path: Path) -> None:
    with MessageStore.open(path, read_only=True) as store:
        path.rename(path.with_name("away"))
        with pytest.raises(StoreError, match="No such file or directory; restore the file from a copy"):
            store.clean(dry_run=True)


def test_too_long_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"x: File name too long; correct the path"):
        MessageStore.open(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.EACCES, StoreUnavailable, "Permission denied; get permission"),
        (errno.EROFS, StoreUnavailable, "Read-only file system; copy the store to a writable file system$"),
        (errno.EMFILE, StoreUnavailable, "raise the limit"),
        (errno.EIO, StoreUnavailable, "see the system's log"),
        (errno.ENOLCK, StoreUnavailable, "a file system with locks"),
        (errno.ENOSPC, StoreFull, "no space left on the device"),
        (errno.EDQUOT, StoreFull, "no space left on the device"),
        (errno.ENOENT, FileMissing, "restore the file from a copy"),
        (errno.EBADF, OSError, "Bad file descriptor"),
    ],
)
def test_system_errors_are_translated(number: int, kind: type[OSError], told: str) -> None:
    with pytest.raises(OSError, match=told) as caught, system_errors("/somewhere"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind
    assert caught.value.errno == number
    assert kind is OSError or str(caught.value).startswith("/somewhere: ")


def test_system_error_names_its_own_path() -> None:
    with pytest.raises(FileMissing, match=r"^/nowhere/at/all: No such file") as caught, system_errors("/somewhere"):
        os.stat("/nowhere/at/all")
    assert isinstance(caught.value, FileNotFoundError)
    assert type(caught.value.__cause__) is FileNotFoundError


def test_translated_error_is_not_translated_again() -> None:
    with pytest.raises(StoreFull) as caught, system_errors("/outer"), system_errors("/inner"):
        raise OSError(errno.ENOSPC, "full")
    assert str(caught.value).startswith("/inner: ")


@pytest.mark.parametrize("wrong", [1.0, "1", True, None, 2**63])
def test_wrong_numbers_are_refused(path: Path, wrong: object) -> None:
    number: int = wrong  # type: ignore[assignment]
    with MessageStore.open(path) as store:
        for use in (
            lambda: store.offsets("t", number),
            lambda: store.max_offset("t", number),
            lambda: store.get_message("g", "t", 0, number),
            lambda: store.get_message("g", "t", number, 0),
            lambda: store.get_message("g", "t", 0, 0, number),
            lambda: store.sizes("t", 0, 0, number),
            lambda: store.tags_codes("t", 0, number, 1),
            lambda: store.scan("t", 0, number, 1),
            lambda: store.scan("t", 0, 0, 1, max_rows=number),
            lambda: store.query("t", "k", number),
            lambda: store.query("t", "k", 1, number),
            lambda: store.query("t", "k", 1, 0, number),
            lambda: store.offset_by_time("t", 0, number),
            lambda: store.arrivals(number, 1),
            lambda: store.consumer_offset("g", "t", number),
            lambda: store.commit_offsets("g", "t", {number: 1}),
            lambda: store.commit_offsets("g", "t", {0: number}),
            lambda: store.create_topic("u", number),
        ):
            with pytest.raises((InvalidArgument, StoreError)) as caught:
                use()
            assert isinstance(caught.value, InvalidArgument), caught.value


@pytest.mark.parametrize("wrong", [17, None, b"t", ["t"], 1.5])
def test_wrong_texts_and_choices_are_refused(path: Path, wrong: Any) -> None:
    with MessageStore.open(path) as store:
        uses: list[Callable[[], object]] = [
            lambda: store.query("t", wrong),
            lambda: store.message_by_id(wrong),
            lambda: store.max_offset(wrong, 0),
            lambda: store.create_topic(wrong),
            lambda: store.commit_offsets(wrong, "t", {0: 1}),
            lambda: store.put(Message("t", b"", properties=wrong)),
            lambda: store.scan("t", 0, 0, 1, columns=wrong),
            lambda: store.scan("t", 0, 0, 1, columns=[wrong]),
            lambda: store.scan("t", 0, 0, 1, unreadable=wrong),
            lambda: store.offset_by_time("t", 0, 0, wrong),
        ]
        if wrong is not None:
            uses.append(lambda: store.get_message("g", "t", 0, 0, 1, wrong))
        for use in uses:
            with pytest.raises(StoreError):
                use()
        assert store.offsets("t", 0) == (0, 1)


@pytest.mark.parametrize("wrong", ["1", b"1", [1], float("nan"), 2**70])
def test_wrong_durations_are_refused(path: Path, wrong: Any) -> None:
    with MessageStore.open(path) as store:
        for use in (lambda: store.wait(store.confirm_offset, wrong), lambda: store.clean(wrong, dry_run=True)):
            with pytest.raises(InvalidArgument, match="give a number of seconds"):
                use()


def test_misspelled_choices_are_refused(path: Path) -> None:
    with MessageStore.open(path) as store:
        with pytest.raises(InvalidArgument, match="boundary='upper': give one of"):
            store.offset_by_time("t", 0, 0, "upper")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="unreadable='nul': give one of 'error', 'null'"):
            store.scan("t", 0, 0, 1, unreadable="nul")  # type: ignore[arg-type]
        for least in (0, -1, 1.5, "1"):
            with pytest.raises(InvalidArgument, match="max_body_bytes"):
                store.scan("t", 0, 0, 1, max_body_bytes=least)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="max_messages"):
                store.query("t", "k", least)  # type: ignore[arg-type]
