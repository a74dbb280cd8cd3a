"""An archive never has messages that a machine crash took from the store."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from store import Message, MessageStore
from store.archive.archive_log import ArchiveAddress
from store.directory.restoring import restore as restore_store
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.objects.any_objects import LocalObjects
from store.read.filters import EVERYTHING
from tests.device.disk import Disk, restore
from tests.device.life import small
from tests.device.recorder import Recorder
from tests.device.test_crashes import STORE, up_again

CUTS = int(os.environ.get("CUTS", "12"))
QUEUE = Queue("t", 0)


def test_archived_messages_survive_a_crash_in_the_store(tmp_path: Path) -> None:
    recorder, cuts = Recorder(tmp_path / "live"), []
    config = small("ASYNC_FLUSH")
    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=config) as store:
        store.create_topic("t", 1)
        for number in range(5):
            store.put_many([Message("t", b"%d" % number * 900)] * 3)
            store.archive(str(tmp_path / "archive"))
            cuts.append(recorder.look())
            shutil.copytree(tmp_path / "archive", tmp_path / f"archive{number}")
            store.put(Message("t", b"not archived"))
        changes = recorder.changes[: recorder.look()]
    for number in range(CUTS):
        chance = random.Random(number)
        which = chance.randrange(len(cuts))
        restore(up_again(Disk({}, changes[: cuts[which]], chance).after_power_loss(chance)), tmp_path / "crash")
        with (
            MessageStore.open(tmp_path / "crash" / STORE) as store,
            ArchiveAddress(str(shutil.copytree(tmp_path / f"archive{which}", tmp_path / "copy"))).open() as log,
        ):
            wanted = QueueRange(QUEUE, *log.bounds([QUEUE])[QUEUE])
            assert wanted.end == 4 * which + 3
            there = [body for batch in log.scan(wanted, ReadSpec(("body",), EVERYTHING)) for body in batch["body"]]
            assert store.max_offset("t", 0) >= wanted.end, f"after {number}"
            assert [
                body for batch in store.scan("t", 0, wanted.start, wanted.end, ["body"]) for body in batch["body"]
            ] == there
            store.put(Message("t", b"after"))
            store.archive(str(tmp_path / "copy"))
        shutil.rmtree(tmp_path / "copy")
        shutil.rmtree(tmp_path / "crash")


def test_records_before_archived_ones_survive_a_crash(tmp_path: Path) -> None:
    """If records of other topics in earlier segments were lost, the log would end before the archived ones."""
    recorder = Recorder(tmp_path / "live")
    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=small("ASYNC_FLUSH")) as store:
        for topic in ("before", "t"):
            store.create_topic(topic, 1)
        store.put_many([Message("before", bytes(900))] * 30)
        store.put_many([Message("t", bytes(900))] * 3)
        store.archive(str(tmp_path / "archive"), topics=["t"])
        changes = recorder.changes[: recorder.look()]
    for number in range(CUTS):
        chance = random.Random(number)
        restore(up_again(Disk({}, changes, chance).after_power_loss(chance)), tmp_path / f"crash{number}")
        with MessageStore.open(tmp_path / f"crash{number}" / STORE) as store:
            assert store.max_offset("t", 0) == 3


@pytest.mark.parametrize("is_restored", [False, True])
def test_store_in_new_folders_survives_a_crash(tmp_path: Path, *, is_restored: bool) -> None:
    config = small("SYNC_FLUSH")
    with MessageStore.open(tmp_path / STORE, config=config) as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"archived"))
        store.archive(str(tmp_path / "archive"))
    (tmp_path / "live").mkdir()
    recorder, path = Recorder(tmp_path / "live"), tmp_path / "live" / "new" / "folder" / STORE
    with recorder.recording():
        if is_restored:
            restore_store(ArchiveAddress(str(tmp_path / "archive")), path, config=config)
        else:
            with MessageStore.open(path, config=config) as store:
                store.create_topic("t", 1)
                store.put(Message("t", b"flushed"))
        changes = recorder.changes[: recorder.look()]
    for number in range(CUTS):
        chance = random.Random(number)
        restore(Disk({}, changes, chance).after_power_loss(chance), tmp_path / f"crash{number}")
        with MessageStore.open(tmp_path / f"crash{number}" / "new" / "folder" / STORE, create=False) as store:
            assert store.max_offset("t", 0) == 1


def test_new_archive_and_its_parent_folders_survive_a_crash(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "live")
    with recorder.recording():
        archive = LocalObjects(tmp_path / "live" / "new" / "archive")
        archive.write("of/one", b"object")
        changes = recorder.changes[: recorder.look()]
    for number in range(CUTS):
        chance = random.Random(number)
        restore(Disk({}, changes, chance).after_power_loss(chance), tmp_path / f"crash{number}")
        assert LocalObjects(tmp_path / f"crash{number}" / "new" / "archive").read_all("of/one") == b"object"
