"""Delete a topic while any device call fails or the machine crashes: the topic is complete or deleted.

ERRORS=1000 lets so many calls fail; FAIL=17 repeats one. CUTS=1000 checks so many crashes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store import FlushFailed, Message, MessageStore, StoreError, UnknownTopic
from store.api.message_store import delete_topic
from store.disk.client_progress import ProducerProgress
from store.format.layout import CONSUME_QUEUE_DIR, DELETED_DIR
from store.upkeep import deletion
from store.upkeep.verify import verify
from tests.device.disk import Disk, restore, tree_of
from tests.device.life import small
from tests.device.recorder import Recorder
from tests.device.test_crashes import STORE, up_again
from tests.device.test_errors import NO_FAULT, fault_of

ERRORS = int(os.environ.get("ERRORS", "25"))
ONLY = os.environ.get("FAIL", "")
CUTS = int(os.environ.get("CUTS", "25"))
OLD = 25  # messages of the topic: more than a queue file holds
CONFIG = small("ASYNC_FLUSH")


def put(store: MessageStore, topic: str, body: str, count: int = 1) -> None:
    store.put_many([Message(topic, f"{body} {n}", keys=("k",)) for n in range(count)])


def bodies(store: MessageStore, topic: str) -> list[str]:
    return [body.decode() for batch in store.to_arrow(topic, ["body"]) for body in batch["body"].to_pylist()]


def make(path: Path) -> None:
    with MessageStore.open(path, config=CONFIG) as store:
        for topic in ("t", "other"):
            store.create_topic(topic, 1)
            store.commit_offsets("g", topic, {0: 2})
        put(store, "other", "kept", 3)
        put(store, "t", "old", OLD)
    ProducerProgress({"t": 5, "other": 6}, 0, was_open=False).write(make_folder(path / "producers" / "p"))


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def is_there(path: Path, store: MessageStore, old: int) -> bool:
    """Return whether the topic exists; check that all its files do, or none."""
    found = "t" in store.topics()
    assert store.consumer_offset("g", "t", 0) == 2
    assert store.consumer_offset("g", "other", 0) == 2
    assert ProducerProgress.read(path / "producers" / "p").sequences == (
        {"t": 5, "other": 6} if found else {"other": 6}
    )
    assert (path / CONSUME_QUEUE_DIR / "t").exists() == found
    assert not (path / DELETED_DIR).exists()
    if found:
        assert len(bodies(store, "t")) == old
    return found


def begins_anew(path: Path, store: MessageStore) -> None:
    if "t" in store.topics():
        delete_topic(path, "t")
    store.create_topic("t", 1)
    begin = store.max_offset("t", 0)
    put(store, "t", "new", 3)
    assert bodies(store, "t") == [f"new {n}" for n in range(3)]
    assert store.min_offset("t", 0) == begin >= OLD


def dies(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete the topic, and die before its files are deleted."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "finish_deletion", die)
        with pytest.raises(KeyboardInterrupt):
            delete_topic(path, "t")


VERBS: dict[str, Callable[[Path, MessageStore], object]] = {
    "delete": lambda path, other: delete_topic(path, "t"),
    "put": lambda path, other: put(other, "other", "kept"),
    "open": lambda path, other: MessageStore.open(path).close(),
}


def fail(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Delete a topic, or finish its deletion, with a fault; return whether the fault occurred."""
    chance = random.Random(f"deletion {number}")
    who, more, fault = chance.choice(list(VERBS)), chance.randrange(3), NO_FAULT
    shutil.rmtree(tmp_path / "made", ignore_errors=True)
    make(tmp_path / "made")
    for _ in range(2):
        path = shutil.copytree(tmp_path / "made", tmp_path / STORE)
        with suppress(FlushFailed), MessageStore.open(path) as other:
            put(other, "t", "old", more)
            if who != "delete":
                dies(path, monkeypatch)
            recorder, told = Recorder(path, tree_of(path), fault), False
            with recorder.recording():
                try:
                    VERBS[who](path, other)
                except StoreError:
                    told = True
            was_there = "t" in other.topics()
            assert told or not was_there
            assert not (was_there and who != "delete")
            put(other, "other", "kept")
            assert is_there(path, other, OLD + more) == was_there
            if not was_there:
                with pytest.raises(UnknownTopic):
                    put(other, "t", "late")
        with MessageStore.open(path) as store:
            assert is_there(path, store, OLD + more) == was_there
            begins_anew(path, store)
        assert verify(path).findings == []
        shutil.rmtree(path)
        fault = fault_of(recorder.calls, chance)
    return recorder.struck


@pytest.mark.parametrize("numbers", [range(ERRORS) if not ONLY else [int(ONLY)]])
def test_topic_is_complete_or_deleted_after_an_error(
    tmp_path: Path, numbers: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in numbers:
        try:
            assert fail(tmp_path, number, monkeypatch)
        except BaseException as error:
            error.add_note(f"FAIL={number}")
            raise


@pytest.mark.parametrize("again", [False, True])
def test_topic_is_complete_or_deleted_after_a_crash(tmp_path: Path, *, again: bool) -> None:
    chance = random.Random(f"going down {again}")
    path = tmp_path / "running" / STORE
    make(path)
    tree = tree_of(path.parent)
    recorder = Recorder(path.parent, tree)
    with recorder.recording(), MessageStore.open(path) as store:
        put(store, "t", "old")
        begun = recorder.look()
        delete_topic(path, "t")
        deleted = recorder.look()
        if again:
            store.create_topic("t", 1)
            put(store, "t", "new", 2)
            store.flush()
            flushed = recorder.look()
            put(store, "t", "new", 2)
    for cut in chance.choices(range(begun, len(recorder.changes) + 1), k=CUTS):
        crashed = tmp_path / str(cut)
        restore(up_again(Disk(tree, recorder.changes[:cut], chance).after_power_loss(chance)), crashed)
        path = crashed / STORE
        with MessageStore.open(path) as store:
            assert bodies(store, "other") == [f"kept {n}" for n in range(3)]
            found = bodies(store, "t") if "t" in store.topics() else []
            if not found or found[0].startswith("new"):
                assert cut > begun
                assert found == [f"new {n % 2}" for n in range(len(found))]
                assert ProducerProgress.read(path / "producers" / "p").sequences == {"other": 6}
                assert not again or cut < flushed or len(found) >= 2
            else:
                assert cut < deleted
                assert is_there(path, store, len(found))
                assert len(found) >= OLD
            begins_anew(path, store)
        assert verify(path).findings == []
        shutil.rmtree(crashed)
