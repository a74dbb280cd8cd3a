"""Crash the machine at random moments, and again during recovery: all guarantees hold.

CUTS=100000 checks so many moments. A failure names its life and moment: CUT=17/4 repeats it.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreError
from store.api.group_protocol import Subscription
from store.append.published_end import PublishedEnd
from store.directory.directory_group import DirectoryGroup
from store.format.layout import (
    CONSUME_QUEUE_DIR,
    CQ_ENTRY,
    PUBLISHED_END,
    PUBLISHED_END_FILE,
    SCHEDULE_TOPIC,
    field_offset,
)
from store.model.log_protocol import Queue
from tests.device.disk import Change, Disk, Tree, restore, tree_of
from tests.device.history import History, everything
from tests.device.life import Life, small
from tests.device.recorder import Recorder

CUTS = int(os.environ.get("CUTS", "200"))
CUTS_A_LIFE = 50
ONLY = os.environ.get("CUT", "")
VERBS = 60
READERS = 0.3  # share of crashes in which a reader looks before recovery
STORE = "mq"


class Lived(NamedTuple):
    """The changes of a life, and its guarantees."""

    changes: list[Change]
    history: History


def lived(root: Path, tree: Tree, chance: random.Random, flush: str, history: History, cut: int | None) -> Lived:
    """Run one life on the directory `tree`, as a machine crash at `cut` of `history` left it."""
    restore(tree, root)
    recorder = Recorder(root, tree)
    life = Life(root / STORE, recorder, chance, history, flush)
    with recorder.recording():
        life.begin(cut)
        life.go_on(VERBS if cut is None else chance.randrange(5))
        if chance.random() < 0.5:
            life.end()
    if cut is None:
        assert Disk(tree, recorder.changes, chance).now() == tree_of(root), "the recorder saw every change"
    life.abandon()
    return Lived(recorder.changes, life.history)


def up_again(tree: Tree) -> Tree:
    name = f"{STORE}/{PUBLISHED_END_FILE}"
    content, at = tree.get(name), field_offset(PUBLISHED_END, "boot_id")
    if not content or not content[at]:
        return tree
    return {**tree, name: content[:at] + b"an earlier boot".ljust(40, b"\0") + content[at + 40 :]}


def check_reader(path: Path, history: History) -> None:
    """A reader before recovery sees a prefix of each queue, or gets an error."""
    try:
        with MessageStore.open(path, read_only=True) as reader:
            history.check_each(everything(reader))
    except StoreError:
        pass


def check_queue_files(tree: Tree) -> None:
    """Each queue file is complete before the next one exists: RocketMQ looks for holes in only the last three."""
    queues: dict[str, list[bytes]] = {}
    for path, content in sorted(tree.items()):
        if content is not None and path.startswith(f"{STORE}/{CONSUME_QUEUE_DIR}/"):
            queues.setdefault(path.rpartition("/")[0], []).append(content)
    for queue, contents in queues.items():
        for number, content in enumerate(contents[:-1]):
            assert np.frombuffer(content, CQ_ENTRY)["size"].all(), f"{queue}: file {number} of {len(contents)}"


def crash(root: Path, tree: Tree, chance: random.Random, flush: str, history: History, cut: int) -> None:
    """Crash at `cut`, and again at a random change of the next life, usually during recovery."""
    tree = up_again(tree)
    check_queue_files(tree)
    if chance.random() < READERS:
        restore(tree, root / "read")
        check_reader(root / "read" / STORE, history)
    changes, then = lived(root / "first", tree, chance, flush, history, cut)
    again = chance.randint(0, len(changes))
    tree = up_again(Disk(tree, changes[:again], chance).after_power_loss(chance))
    check_queue_files(tree)
    lived(root / "second", tree, chance, flush, then, again)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_guarantees_hold_after_machine_crashes(tmp_path: Path, flush: str) -> None:
    lives, _, only = ONLY.partition("/")
    for number in range(max(1, CUTS // CUTS_A_LIFE // 2)) if not ONLY else [int(lives)]:
        chance = random.Random(f"{number}{flush}")
        changes, history = lived(tmp_path / "live", {}, chance, flush, History(), None)
        disk, done = Disk({}, [], chance), 0
        for crash_number, cut in enumerate(sorted(chance.choices(range(len(changes) + 1), k=CUTS_A_LIFE // 2))):
            disk.apply(changes[done:cut], chance)
            done = cut
            if only not in ("", str(crash_number)):
                continue
            own = random.Random(f"{number}{flush}/{crash_number}")
            try:
                (tmp_path / "crash").mkdir()
                crash(tmp_path / "crash", disk.after_power_loss(own), own, flush, history, cut)
            except (StoreError, AssertionError, OSError) as error:
                error.add_note(f"CUT={number}/{crash_number}, {flush}: at change {cut} of {len(changes)}")
                raise
            shutil.rmtree(tmp_path / "crash")
        shutil.rmtree(tmp_path / "live")


def test_append_flushes_the_name_of_a_dead_writers_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, message = Recorder(tmp_path / "live"), Message("t", bytes(3000))

    def die(directory: Path) -> None:
        raise KeyboardInterrupt(directory)

    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=small("SYNC_FLUSH")) as store:
        store.create_topic("t", 1)
        store.put_many([message, message])
        with monkeypatch.context() as patched:
            patched.setattr("store.disk.segments.sync_names", die)
            with pytest.raises(KeyboardInterrupt):
                store.put(message)
        assert store.put(message).queue_offset == 2
        changes = recorder.changes[: recorder.look()]
    for number in range(20):
        chance = random.Random(number)
        restore(up_again(Disk({}, changes, chance).after_power_loss(chance)), tmp_path / "crash")
        with MessageStore.open(tmp_path / "crash" / STORE) as store:
            assert store.max_offset("t", 0) >= 3
        shutil.rmtree(tmp_path / "crash")


def test_message_sent_back_by_dead_member_survives_a_crash(tmp_path: Path) -> None:
    """The process that inherits the member's offset must flush the message that the dead member sent back."""
    recorder, queue, path = Recorder(tmp_path / "live"), Queue("t", 0), tmp_path / "live" / STORE
    with recorder.recording(), MessageStore.open(path, config=small("ASYNC_FLUSH")) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"failed"))
        store.flush()
        begun, dies = recorder.look(), DirectoryGroup(path, "g").join({"t": Subscription()})
        dies.lock([queue])
        dies.send_back(store.get_message("g", "t", 0, 0).messages)
        dies.commit({queue: 1})
        left = dies._store.open()
        del dies
        assert DirectoryGroup(path, "g").members() == []
        DirectoryGroup(path, "g").create()
        changes = recorder.changes[: recorder.look()]
        assert DirectoryGroup(path, "g").committed([queue]) == {queue: 1}
        left.close()
    found = set()
    for cut in range(begun, len(changes) + 1):
        chance = random.Random(cut)
        restore(up_again(Disk({}, changes[:cut], chance).after_power_loss(chance)), tmp_path / "crash")
        with MessageStore.open(tmp_path / "crash" / STORE) as store:
            found.add(offset := store.consumer_offset("g", "t", 0))
            assert not offset or store.max_offset(SCHEDULE_TOPIC, 2) == 1, f"at change {cut} of {len(changes)}"
        shutil.rmtree(tmp_path / "crash")
    assert found == {None, 1}


def test_dead_append_is_visible_completely_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash at any moment while an append is undone that was on the device except for its last step."""
    recorder, new = Recorder(tmp_path / "live"), [bytes([number]) * 2500 for number in range(8)]

    def die(published: PublishedEnd, confirm_offset: int) -> None:
        raise KeyboardInterrupt(published, confirm_offset)

    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=small("ASYNC_FLUSH")) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"old"))
        store.flush()
        append = store.begin()
        append.add_messages([Message("t", body) for body in new[:3]])
        append.add("t", pa.table({"body": new[3:]}))
        with monkeypatch.context() as patched:
            patched.setattr(PublishedEnd, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                append.publish(flush=True)
        begun = recorder.look()
        store.put(Message("t", b"next"))
        ended, changes = recorder.look(), recorder.changes[: recorder.look()]
    found = set()
    for cut in range(begun, ended + 1):
        for number in range(3):
            chance = random.Random(f"{cut}/{number}")
            restore(up_again(Disk({}, changes[:cut], chance).after_power_loss(chance)), tmp_path / "crash")
            with MessageStore.open(tmp_path / "crash" / STORE) as store:
                bodies = [message.body for message in store.get_message("g", "t", 0, 0).messages]
                found.add(len(bodies))
                assert bodies in ([b"old"], [b"old", *new], [b"old", b"next"]), f"at change {cut} of {len(changes)}"
            shutil.rmtree(tmp_path / "crash")
    assert {1, 9} <= found


def test_queue_file_is_complete_before_the_next_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing an append also makes no hole in a file before the later files are deleted."""
    recorder, config = Recorder(tmp_path / "live"), small("ASYNC_FLUSH")
    entries = config.mappedFileSizeConsumeQueue // CQ_ENTRY.itemsize

    def die(published: PublishedEnd, confirm_offset: int) -> None:
        raise KeyboardInterrupt(published, confirm_offset)

    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=config) as store:
        store.create_topic("t", 1)
        store.append_table("t", pa.table({"body": [b""] * (entries // 2)}))
        with monkeypatch.context() as patched:
            patched.setattr(PublishedEnd, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                store.append_table("t", pa.table({"body": [b""] * (5 * entries)}))
        begun = recorder.look()
        store.put(Message("t", b"next"))
        changes = recorder.changes[: recorder.look()]
    found = set()
    for cut in range(len(changes) + 1):
        for number in range(4):
            tree = Disk({}, changes[:cut], chance := random.Random(f"{cut}/{number}")).after_power_loss(chance)
            check_queue_files(tree)
            found.add((cut > begun, sum(CONSUME_QUEUE_DIR in path for path in tree)))
    assert {(False, 9), (True, 9), (True, 4)} <= found, "files were created and deleted"


def test_records_cut_off_by_recovery_do_not_come_back(tmp_path: Path) -> None:
    """Records after a torn one are valid: they would continue the log after new records."""
    path, config = tmp_path / "live" / STORE, small("ASYNC_FLUSH")
    first, second = (tmp_path / name for name in ("first", "second"))
    bodies = [bytes([number]) * 2500 for number in range(8)]
    with MessageStore.open(path, config=config) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", body) for body in bodies[:2]])
        store.flush()
        store.put_many([Message("t", body) for body in bodies[2:]])
        tree = up_again(tree_of(tmp_path / "live"))
    log = f"{STORE}/commitlog/{0:020d}"
    content = tree[log]
    assert content is not None
    tree[log] = content.replace(bodies[2], bytes(len(bodies[2])))
    restore(tree, first)
    recorder = Recorder(first, tree)
    new = [b"new %d" % number * 400 for number in range(3)]
    with recorder.recording(), MessageStore.open(first / STORE) as store:
        store.put(Message("t", new[0]))
        store.flush()
        store.put_many([Message("t", body) for body in new[1:]])
        changes = recorder.changes[: recorder.look()]
    for number in range(60):
        chance = random.Random(number)
        restore(up_again(Disk(tree, changes, chance).after_power_loss(chance)), second)
        with MessageStore.open(second / STORE) as store:
            found = [message.body for message in store.get_message("g", "t", 0, 0).messages]
            assert found == (bodies[:2] + new)[: len(found)], f"after {number}"
            assert len(found) >= 3
        shutil.rmtree(second)
