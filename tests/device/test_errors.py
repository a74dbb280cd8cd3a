"""Let any device call fail: the store raises a StoreError, and all guarantees hold.

Afterwards the process restarts, or the machine crashes. ERRORS=10000 lets so many calls fail; FAIL=17 repeats the
failure with that number.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from store import FlushFailed, Message, MessageStore
from tests.device.disk import Change, Disk, restore
from tests.device.history import History
from tests.device.life import Life, small
from tests.device.recorder import Fault, Recorder
from tests.device.test_crashes import STORE, lived, up_again

ERRORS = int(os.environ.get("ERRORS", "25"))
ONLY = os.environ.get("FAIL", "")
VERBS = 25
SHORT = 0
CALLS = {
    "pwrite": (errno.EIO, errno.ENOSPC, errno.EDQUOT, SHORT),
    "write": (errno.EIO, errno.ENOSPC, SHORT),
    "pread": (errno.EIO,),
    "open": (errno.EMFILE, errno.ENFILE, errno.EIO, errno.EACCES),
    "ftruncate": (errno.ENOSPC, errno.EIO),
    "fsync": (errno.EIO, errno.ENOSPC),
    "fdatasync": (errno.EIO, errno.ENOSPC),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "rename": (errno.ENOSPC, errno.EIO),
    "replace": (errno.ENOSPC, errno.EIO),
    "link": (errno.ENOSPC, errno.EIO),
    "unlink": (errno.EIO,),
}
NO_FAULT = Fault("pread", -1, 0)
SYNCS = ("fsync", "fdatasync")


def life_with(root: Path, number: int, flush: str, fault: Fault) -> tuple[Recorder, Life]:
    root.mkdir()
    recorder = Recorder(root, fault=fault)
    life = Life(root / STORE, recorder, random.Random(number), History(), flush)
    with recorder.recording():
        life.begin()
        life.go_on(VERBS)
        life.end()
    return recorder, life


def fault_of(calls: dict[str, int], chance: random.Random) -> Fault:
    function = chance.choice([name for name in CALLS if calls.get(name)])
    times = chance.choice((1, 1, 3, 1 << 30))
    return Fault(function, chance.randrange(calls[function]), chance.choice(CALLS[function]), times)


def fail(root: Path, number: int) -> bool:
    """Run one life with a fault, and the next one; return whether the fault occurred."""
    chance = random.Random(f"fault {number}")
    flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
    whole, _ = life_with(root / "whole", number, flush, NO_FAULT)
    fault = fault_of(whole.calls, chance)
    try:
        recorder, life = life_with(root / "failing", number, flush, fault)
        changes, history = recorder.changes, life.history
        cut = len(changes)
        if chance.random() < 0.5:
            tree = up_again(Disk({}, changes, chance).after_power_loss(chance))
        else:
            tree = Disk({}, changes, chance).now()
            if fault.function not in SYNCS:  # if a flush failed, only the device's content counts
                history.must.append((cut, len(history.sent)))
        lived(root / "after", tree, chance, flush, history, cut)
    except Exception as error:
        error.add_note(f"FAIL={number}: {fault}, {flush}")
        raise
    return recorder.struck


@pytest.mark.parametrize("numbers", [range(ERRORS) if not ONLY else [int(ONLY)]])
def test_guarantees_hold_after_errors(tmp_path: Path, numbers: range) -> None:
    met = 0
    for number in numbers:
        met += fail(tmp_path, number)
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
    assert met >= 0.8 * len(numbers)


def flushed(root: Path, fault: Fault) -> tuple[list[Change], range]:
    """Fail to flush puts, reopen the store, put more and flush; return the changes and the calls of the first flush."""
    recorder, path = Recorder(root, fault=fault), root / STORE
    with recorder.recording():
        store = MessageStore.open(path, config=small("ASYNC_FLUSH"))
        store.create_topic("t", 2)
        store.put_many([Message("t", bytes([n]) * 700) for n in range(24)])
        begun = recorder.calls["fdatasync"]
        for verb in (store.flush, store.close):
            with pytest.raises(FlushFailed) if fault is not NO_FAULT else nullcontext():
                verb()
        calls = range(begun, recorder.calls["fdatasync"])
        with MessageStore.open(path) as again:
            again.put_many([Message("t", bytes([n]) * 700) for n in range(24, 26)])
            again.flush()
            return recorder.changes[: recorder.look()], calls


def test_reopening_after_failed_flush_flushes_readable_messages(tmp_path: Path) -> None:
    _, calls = flushed(tmp_path / "whole", NO_FAULT)
    assert len(calls) > 5, "of segments, queues and the published end"
    for call in calls:
        changes, _ = flushed(tmp_path / str(call), Fault("fdatasync", call, errno.EIO))
        for number in range(8):
            chance, crashed = random.Random(f"{call}/{number}"), tmp_path / f"{call}-{number}"
            restore(up_again(Disk({}, changes, chance).after_power_loss(chance)), crashed)
            with MessageStore.open(crashed / STORE) as store:
                found = [body for batch in store.to_arrow("t", ["body"]) for body in batch["body"].to_pylist()]
                assert sorted(found) == [bytes([n]) * 700 for n in range(26)], f"after call {call}, {number}"
