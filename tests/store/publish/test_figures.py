"""What producers and consumers tell of themselves, as other processes see it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from store import Message, MessageStore, StoreUnavailable
from store.format.layout import CLIENTS_DIR, FIGURE
from store.publish.figures import BUCKETS, DELIVERED, HELD, SENT, Figures, told
from store.publish.locks import set_lock
from tests.children import ended
from tests.device.disk import tree_of
from tests.device.recorder import Fault, Recorder


def test_what_is_told(tmp_path: Path) -> None:
    one, other = Figures(tmp_path, "one"), Figures(tmp_path, "other")
    for milliseconds in (0.3, 1.0, 1.1, 500.0, 501.0):
        one.of(SENT, "orders").add(milliseconds)
    other.of(DELIVERED, "orders", "readers").add_all(np.array([0.0, 1, 2, 20, 21, 10_000]))
    other.of(HELD, "orders", "readers").set(7)
    assert list(told(tmp_path)) == []
    for each in (one, other):
        each.write()
    first, second, third = told(tmp_path)
    assert first[1:] == (SENT, "orders", "", pytest.approx(1003.4), (2, 1, 0, 0, 0, 0, 1, 1))
    assert second[1:] == (DELIVERED, "orders", "readers", 10_044.0, (2, 1, 0, 1, 1, 0, 0, 1))
    assert (third.name, third.counts[0]) == (HELD, 7)
    assert first.client != second.client == third.client

    other.of(HELD, "orders", "readers").set(3)
    other.of(DELIVERED, "orders", "readers").add(4)
    other.write()
    assert [each.counts[:2] for each in told(tmp_path)] == [(2, 1), (2, 2), (3, 0)]
    one.close()
    one.write()
    assert [each.name for each in told(tmp_path)] == [DELIVERED, HELD]
    other.close()
    assert list((tmp_path / CLIENTS_DIR).iterdir()) == []


def test_a_bound_belongs_to_its_bucket_however_it_is_counted(tmp_path: Path) -> None:
    figures = Figures(tmp_path, "one")
    for bound in BUCKETS[SENT]:
        figures.of(SENT, "one by one").add(bound)
    figures.of(SENT, "together").add_all(np.array(BUCKETS[SENT], float))
    for bound in BUCKETS[SENT]:
        figures.of(SENT, "all in one").add_all(np.full(3, float(bound)))
    figures.write()
    assert [each.counts for each in told(tmp_path)] == [(n,) * 7 + (0,) for n in (1, 1, 3)]


def test_one_that_is_given_back_counts_no_more_and_others_get_its_place(tmp_path: Path) -> None:
    """Clients of a server may make up names without end, and a file that is too large is one that nobody can read."""
    figures = Figures(tmp_path, "one")
    figures.of(SENT, "orders").add(1)
    for number in range(5):
        figure = figures.of(HELD, "orders", f"group {number}")
        assert figure.change(number + 1) == number + 1
        figures.write()
        assert [(each.group, each.counts[0]) for each in told(tmp_path)] == [("", 1), (f"group {number}", number + 1)]
        figures.give_back(figure)
        figures.write()
        assert [each.counts[0] for each in told(tmp_path)] == [1]
    several = [figures.of(HELD, "orders", group) for group in "abc"]
    for figure in several:
        figure.set(7)
    figures.write()
    for figure in several:
        figures.give_back(figure)
    figures.write()
    for group in "cab":
        figures.of(HELD, "orders", group).set(8)
        figures.write()
    assert sorted((each.group, each.counts[0]) for each in told(tmp_path)) == [("", 1), ("a", 8), ("b", 8), ("c", 8)]
    (file,) = (tmp_path / CLIENTS_DIR).iterdir()
    assert file.stat().st_size == 4 * FIGURE.itemsize


def test_the_last_one_may_be_given_back(tmp_path: Path) -> None:
    figures = Figures(tmp_path, "one")
    (figure := figures.of(HELD, "orders", "group")).set(1)
    figures.write()
    figures.give_back(figure)
    assert figures.write()
    assert list(told(tmp_path)) == []


def one_more(root: Path) -> None:
    figures = Figures(root, "next")
    figures.of(SENT, "t").add(1)
    figures.write()
    figures.close()


def test_who_is_killed_tells_nothing_and_is_forgotten(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from store.publish.figures import *; "
        "f = Figures(Path(sys.argv[1]), ''); f.of(SENT, 't').add(1); f.write(); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [each.topic for each in told(tmp_path)] == ["t"]
        process.send_signal(signal.SIGKILL)
    assert list(told(tmp_path)) == []
    (left,) = (tmp_path / CLIENTS_DIR).iterdir()
    one_more(tmp_path)
    assert left.exists()  # it might have just been made, its lock not taken yet
    long_ago = time.time() - 100
    os.utime(left, (long_ago, long_ago))
    one_more(tmp_path)
    assert not left.exists()


def test_a_forked_child_leaves_them_to_its_parent(tmp_path: Path) -> None:
    figures, closed = Figures(tmp_path, "one"), Figures(tmp_path, "closed")
    figures.of(SENT, "t").add(1)
    closed.close()
    figures._turn.acquire()  # in another thread, which the child does not have
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        figures.of(SENT, "t").add(1)
        figures.write()
        figures.close()
        os._exit(0)
    figures._turn.release()
    assert ended(child) == 0
    figures.write()
    assert [each.counts[0] for each in told(tmp_path)] == [1]


def test_who_has_nothing_to_tell_makes_no_file(tmp_path: Path) -> None:
    figures = Figures(tmp_path, "one")
    figures.write()
    figures.close()
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "gone", "one")
    figures.of(SENT, "t").add(1)
    figures.write()
    assert list(tmp_path.iterdir()) == []


def test_elsewhere_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    figures = Figures(None, "a consumer of a cluster")
    figures.of(SENT, "t").add(1)
    figures.write()
    figures.close()
    assert list(tmp_path.iterdir()) == []


def a_pipe(path: Path) -> None:
    os.mkfifo(path)
    os.utime(path, (0, 0))


def a_huge_one(path: Path) -> None:
    """As somebody holds it who is open."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(fd, 1 << 40)
    set_lock(fd, fcntl.F_WRLCK, 0)


STRANGE: dict[str, Callable[[Path], object]] = {
    "no file; move it": a_pipe,
    "no file; move it out": Path.mkdir,
    "Too many levels of symbolic links": lambda path: path.symlink_to(path),
    "1,099,511,627,776 bytes, more than": a_huge_one,
}


@pytest.mark.parametrize("said", STRANGE)
def test_what_no_client_made_harms_nobody_and_is_told(tmp_path: Path, said: str) -> None:
    strange = tmp_path / CLIENTS_DIR / "1#2"
    strange.parent.mkdir()
    STRANGE[said](strange)
    signal.alarm(30)  # nothing but this would end who waits for a pipe
    try:
        figures = Figures(tmp_path, "one")
        figures.of(SENT, "t").add(1)
        assert figures.write()
        with pytest.warns(RuntimeWarning, match=f"{strange}: what clients tell there is left out: .*{said}"):
            assert [each.topic for each in told(tmp_path)] == ["t"]
        figures.close()
        assert [*strange.parent.iterdir()] == [strange]
    finally:
        signal.alarm(0)


def test_a_file_in_place_of_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / CLIENTS_DIR).touch()
    figures = Figures(tmp_path, "one")
    figures.of(SENT, "t").add(1)
    assert [figures.write() for _ in range(3)] == [False] * 3
    assert caplog.text.count("figures of one: are not told") == 1
    with pytest.warns(RuntimeWarning, match=r"clients: what clients tell there is left out"):
        assert list(told(tmp_path)) == []
    (tmp_path / CLIENTS_DIR).unlink()
    assert figures.write()
    assert [each.topic for each in told(tmp_path)] == ["t"]
    figures.close()


@pytest.mark.parametrize("function", ["pwrite", "mkdir", "open"])
def test_a_full_disk(tmp_path: Path, function: str) -> None:
    """What waits is told when there is space again; nothing old meanwhile."""
    figures = Figures(tmp_path, "one")
    figures.of(SENT, "t").add(1)
    recorder = Recorder(tmp_path, fault=Fault(function, 1 if function == "pwrite" else 0, errno.ENOSPC))
    with recorder.recording():
        assert not figures.write()
        assert list(told(tmp_path)) == []
        assert figures.write()
    assert recorder.struck
    assert [each.counts[0] for each in told(tmp_path)] == [1]
    figures.close()


def test_a_file_that_cannot_be_removed_keeps_nobody_from_leaving(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
    left = MessageStore.open(tmp_path)
    left.put(Message("t", b"x"))
    left._writer._figures.write()  # type: ignore[union-attr]
    recorder = Recorder(tmp_path, tree_of(tmp_path), Fault("unlink", 0, errno.EIO, 1 << 30))
    with recorder.recording(), suppress(StoreUnavailable):  # `abort` stays
        left.close()
    assert recorder.struck
    assert list(told(tmp_path)) == []
    with MessageStore.open(tmp_path) as store:
        assert store.max_offset("t", 0) == 2
    assert not (tmp_path / "abort").exists()
    del left
