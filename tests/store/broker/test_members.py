"""Failures of members' files. Behaviour of members: `tests/logs/group_conformance.py`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import (
    CorruptStore,
    FlushFailed,
    GroupConflict,
    Message,
    MessageStore,
    StoreClosed,
    StoreConfig,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from store.api.group_protocol import MessageModel, Subscription
from store.append.locks import set_lock
from store.append.published_end import PublishedEnd
from store.broker import members
from store.broker.entries import MemberEntry, check_fit
from store.broker.group_files import GroupOffsets
from store.broker.members import Roster
from store.directory.directory_group import DirectoryGroup
from store.disk.atomic import open_file
from store.disk.client_progress import sealed, unsealed
from store.disk.consumer_offsets import ConsumerOffsets
from store.model.log_protocol import Queue
from tests.members import remote_member

EVERYTHING = {"t": Subscription()}
TIMES = st.floats(0, 1e9)
QUEUES = st.builds(Queue, st.text("a%|_-Z9", min_size=1), st.integers(0, 1 << 16))
ENTRIES = st.builds(
    MemberEntry,
    id=st.text(min_size=1),
    subscriptions=st.dictionaries(st.text(), st.builds(Subscription, st.text(), st.sampled_from(["TAG", "SQL92"]))),
    model=st.sampled_from(MessageModel),
    orderly=st.booleans(),
    exclusive=st.booleans(),
    resets=st.integers(0, 1 << 40),
    heard=TIMES,
    boot=st.text(),
    claims=st.dictionaries(QUEUES, TIMES),
    asks=st.lists(QUEUES).map(tuple),
    slots=st.lists(QUEUES).map(tuple),
)


@pytest.fixture
def group(tmp_path: Path) -> DirectoryGroup:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 4)
    return DirectoryGroup(tmp_path, "g")


def is_entry(text: bytes) -> bool:
    try:
        MemberEntry.of_json(text)
    except ValueError:
        return False
    return True


@given(ENTRIES)
def test_entry_is_read_as_written(entry: MemberEntry) -> None:
    assert MemberEntry.of_json(entry.to_json()) == entry


@given(ENTRIES, st.data())
def test_partial_entry_is_no_entry(entry: MemberEntry, data: st.DataObject) -> None:
    text = entry.to_json()
    assert not is_entry(text[: data.draw(st.integers(0, len(text) - 1))])


@pytest.mark.parametrize("text", ["[]", "3", "{}", '{"id": 3, "claims": [[1]]}', "[" * 100_000])
def test_other_json_is_no_entry(text: str) -> None:
    assert not is_entry(text.encode())


@pytest.mark.parametrize("odd", [None, "x", 3, [], {}, [["t", None, 1.0], ["t", 0, 1.0]], {"t": [3, None]}])
def test_field_of_a_wrong_type_is_ignored_or_harmless(odd: object) -> None:
    entry = MemberEntry("host@x", EVERYTHING, MessageModel.CLUSTERING, orderly=False)
    for name in vars(entry):
        text = json.dumps(json.loads(entry.to_json()) | {name: odd}).encode()
        if is_entry(text):
            found = MemberEntry.of_json(text)
            assert found.info(1.0).id == found.id
            assert found.instance in ("x", "")
            assert found.resets < 10
            with suppress(GroupConflict):
                check_fit("g", replace(entry, id="host@y"), found, "")


def test_shrunk_entry_is_read(group: DirectoryGroup) -> None:
    with group.join(EVERYTHING) as one:
        one.lock([Queue("t", number) for number in range(4)])
        one.unlock([Queue("t", number) for number in range(3)])
        (info,) = group.members()
        assert info.queues == (Queue("t", 3),)


def test_member_killed_during_a_write_is_removed(group: DirectoryGroup, tmp_path: Path) -> None:
    folder = tmp_path / "consumers/g"
    group.join(EVERYTHING).leave()
    (folder / "torn.member").write_text('{"id": "to')
    (folder / "empty.member").write_text("")
    assert group.members() == []
    with group.join(EVERYTHING) as one:
        assert [path.name for path in folder.glob("*.member")] == [f"{one.id}.member"]


def test_torn_entry_passes_on_no_offsets(tmp_path: Path) -> None:
    """Merged entries may be valid JSON: a queue would be inherited at the offset of another."""
    queues = [Queue("t", number) for number in range(100, 300)]
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 300)
    group = DirectoryGroup(tmp_path, "g")
    with remote_member(group, EVERYTHING) as one:
        one.call("lock", queues)
        one.call("commit", {queue: queue.queue_id for queue in queues})
        one.kill()
    (file,) = tmp_path.glob("consumers/g/*.member")
    before = replace(MemberEntry.of_json(unsealed(file.read_bytes())), heard=9.5, claims=dict.fromkeys(queues, 1.25))
    after = sealed(replace(before, claims=dict.fromkeys(queues[2:], 1.25)).to_json())
    file.write_bytes(after[:4096] + sealed(before.to_json())[4096:])
    assert is_entry(file.read_bytes()[8:])
    with group.join(EVERYTHING):
        assert ConsumerOffsets(tmp_path).offsets("g", "t") == {}


def test_truncated_and_foreign_files_do_not_block_members(group: DirectoryGroup, tmp_path: Path) -> None:
    """Offsets that the dead member wrote before still count. A process that deletes a topic reads all of these files
    under the lock."""
    folder = tmp_path / "consumers/g"
    signal.alarm(30)
    try:
        with group.join(EVERYTHING) as one:
            one.lock([Queue("t", 0)])
            (folder / "done/dead").write_bytes((3).to_bytes(8, "big") + b"\0\0\0")
            (folder / "dead.member").write_bytes((folder / f"{one.id}.member").read_bytes())
            os.mkfifo(folder / "pipe.member")
            assert [info.id for info in group.members()] == [one.id]
        with group.join(EVERYTHING) as one:
            assert [path.name for path in folder.glob("*.member")] == [f"{one.id}.member"]
    finally:
        signal.alarm(0)
    assert ConsumerOffsets(tmp_path).offsets("g", "t") == {0: 3}


def test_member_leaves_while_another_thread_commits(group: DirectoryGroup, tmp_path: Path) -> None:
    """The commit is refused, and is not written to another file that reuses the descriptor."""
    (tmp_path / "other").write_bytes(b"another file's bytes")
    member, queue, tracing, opened = group.join(EVERYTHING), Queue("t", 0), sys.gettrace(), []
    member.lock([queue])

    def leave(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is GroupOffsets.commit.__code__:
            member.leave()
            opened.extend(os.open(tmp_path / "other", os.O_RDWR) for _ in range(20))

    sys.settrace(leave)
    try:
        with pytest.raises(StoreClosed):
            member.commit({queue: 1})
    finally:
        sys.settrace(tracing)
        for fd in opened:
            os.close(fd)
    assert (tmp_path / "other").read_bytes() == b"another file's bytes"


def test_commits_of_a_dead_member_are_void_after_a_failed_flush(
    group: DirectoryGroup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages that it sent back may be lost. The group stays usable."""
    with MessageStore.open(tmp_path, config=StoreConfig(flushIntervalCommitLog=3_600_000)) as store:
        store.put(Message("t", b"x", queue_id=0))
        dies = group.join(EVERYTHING)
        dies.lock([Queue("t", 0)])
        dies.commit({Queue("t", 0): 1})
        PublishedEnd(tmp_path, writable=True).mark_failed(0, "the device failed to flush it")
        dies._member_files.drop()
        with group.join(EVERYTHING) as one:
            assert one.committed([Queue("t", 0)]) == {}
        assert "is lost, so its last messages are delivered again: the device failed to flush it" in caplog.text
        with pytest.raises(FlushFailed):
            store.close()


def test_failed_join_leaves_no_file_open(group: DirectoryGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if only one file descriptor is left."""
    opened: list[int] = []

    def one(path: Path, flags: int = 0) -> int:
        if opened:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        opened.append(open_file(path, flags))
        return opened[0]

    monkeypatch.setattr(members, "open_file", one)
    with pytest.raises(StoreUnavailable):
        group.join(EVERYTHING)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(opened[0])


def test_failed_write_is_raised_in_all_threads_of_a_member(
    group: DirectoryGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    queue = Queue("t", 0)
    with group.join(EVERYTHING) as member:
        with monkeypatch.context() as patched:
            patched.setattr(members, "write_at", refuse)
            with pytest.raises(StoreFull):
                member.lock([queue])
        for verb in (member.members, member.persist, lambda: member.lock([queue]), lambda: member.commit({queue: 1})):
            with pytest.raises(StoreFull):
                verb()
    assert group.members() == []


def test_file_locked_by_another_process_is_an_error(group: DirectoryGroup, tmp_path: Path) -> None:
    group.join(EVERYTHING).leave()
    with (tmp_path / "consumers/g/x.member").open("w") as file:
        file.write("nonsense")
        file.flush()
        assert set_lock(file.fileno(), fcntl.F_WRLCK, 0)
        with pytest.raises(
            CorruptStore, match=r"x.member: .* Stop the member \(this process.*\), then delete the file"
        ):
            group.members()


BROKER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def broker(group: DirectoryGroup) -> Iterator[None]:
    command = [sys.executable, "-c", BROKER, str(group.path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        yield
        process.kill()


@pytest.mark.usefixtures("broker")
def test_join_is_refused_beside_a_running_broker(group: DirectoryGroup) -> None:
    with pytest.raises(StoreLocked, match="a RocketMQ broker runs here"):
        group.join(EVERYTHING)
    assert Roster(group.path, "g").present() == []
