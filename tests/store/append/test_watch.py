from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store import Message, MessageStore
from store.append.published_end import PublishedEnd
from store.append.watch import Watch, Watches
from tests.waiting import PATIENCE

if sys.platform == "linux":
    import inotify_simple


@pytest.fixture
def published(tmp_path: Path) -> PublishedEnd:
    PublishedEnd.create(tmp_path, 100, store_timestamp=7)
    return PublishedEnd(tmp_path, writable=True)


def test_watch_wakes_at_a_publication(published: PublishedEnd) -> None:
    with Watch() as watch:
        watch.add(published)
        publisher = threading.Timer(0.05, published.publish, [200])
        publisher.start()
        deadline = time.monotonic() + 30
        while published.confirm_offset == 100 and time.monotonic() < deadline:
            watch.wait(deadline - time.monotonic())
    publisher.join()
    assert published.confirm_offset == 200


PUBLISHER = """
import sys
from pathlib import Path
from store.append.published_end import PublishedEnd
published = PublishedEnd(Path(sys.argv[1]), writable=True)
for line in sys.stdin:
    published.publish(int(line))
"""


def test_watch_wakes_at_another_process(published: PublishedEnd) -> None:
    root = published.path.parent
    process = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(root)], stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    with Watch() as watch:
        watch.add(published)
        for offset in range(101, 111):
            print(offset, file=process.stdin, flush=True)
            while published.confirm_offset != offset:
                watch.wait(30)
    process.stdin.close()
    assert process.wait() == 0


def test_wait_ends_at_its_timeout(published: PublishedEnd) -> None:
    with Watch() as watch:
        watch.add(published)
        watch.wait(0)
        watch.wait(0.001)


def inotify_instances() -> int:
    return [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()].count("anon_inode:inotify")


@pytest.mark.skipif(sys.platform != "linux", reason="counts inotify instances")
def test_watches_are_reused_and_all_closed(published: PublishedEnd) -> None:
    gc.collect()  # close the watches of other tests
    before = inotify_instances()
    watches = Watches(published)
    with watches.one() as first, watches.one() as second:
        assert first is not second
    with watches.one() as third:
        assert third in (first, second)
        watches.close()
        assert inotify_instances() == before + 1
        published.publish(200)
        third.wait(30)
    assert inotify_instances() == before


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_lack_of_inotify_watches_falls_back_to_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """inotify reports its limit as ENOSPC, although the disk is not full."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def put_and_wait() -> None:
        waiting = pool.submit(store.wait, 0, PATIENCE)
        store.put(Message("t", b"x", delay_level=1))
        assert waiting.result(PATIENCE) > 0
        with store.watch() as watch:
            assert watch.polls

    monkeypatch.setattr(inotify_simple.INotify, "add_watch", refuse)
    with MessageStore.open(tmp_path) as store, ThreadPoolExecutor(1) as pool:
        store.create_topic("t", 1)
        with pytest.warns(RuntimeWarning, match=r"max_user_watches is reached \(No space .* readers poll"):
            put_and_wait()
