"""RocketMQ's timer log, written for a broker that takes the directory over: what waits, in the slots of its wheel.

A broker makes its wheel from this log when it starts, and goes on in TIMER_TOPIC behind the message of the last unit.
That is the newest message: where it does not wait any more, its unit stands in a slot that is over.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from store.delays.timers import Waiting
from store.files.atomic import make_directory, open_file, sync_directory
from store.format.delayed import timer_slots
from store.format.layout import (
    TIMER_BLANK,
    TIMER_LOG_DIR,
    TIMER_LOG_FILE_BYTES,
    TIMER_MAGIC,
    TIMER_MAGIC_BLANK,
    TIMER_MAGIC_ROLL,
    TIMER_PRECISION_MS,
    TIMER_ROLL_WINDOW_MS,
    TIMER_UNIT,
    TIMER_WHEEL_FILE,
    segment_name,
)
from store.model.system_errors import system_errors

_UNITS = (TIMER_LOG_FILE_BYTES - TIMER_BLANK.itemsize) // TIMER_UNIT.itemsize  # of a file


def write_timer_log(root: Path, waiting: Waiting, newest: tuple[int, int], until: int, now: int) -> None:
    """Replace the broker's timer log, and its wheel, which it makes anew.

    newest: log offset and size of the newest message of TIMER_TOPIC. until: what was due then is delivered. now: ms.
    """
    units = _units(waiting, newest, until // TIMER_PRECISION_MS * TIMER_PRECISION_MS, now)
    folder, making = root / TIMER_LOG_DIR, root / f"{TIMER_LOG_DIR}.tmp"
    shutil.rmtree(making, ignore_errors=True)
    make_directory(making)
    for number, first in enumerate(range(0, len(units), _UNITS)):
        blank = np.zeros(1, TIMER_BLANK)
        blank["length"] = TIMER_LOG_FILE_BYTES - _UNITS * TIMER_UNIT.itemsize
        blank["magic"] = TIMER_MAGIC_BLANK
        path = making / segment_name(number * TIMER_LOG_FILE_BYTES)
        with system_errors(path), open(open_file(path), "wb") as file:
            file.write(units[first : first + _UNITS].tobytes())
            if first + _UNITS < len(units):
                file.write(blank.tobytes())
            file.truncate(TIMER_LOG_FILE_BYTES)
    with system_errors(folder):
        (root / TIMER_WHEEL_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    sync_directory(root)


def _units(waiting: Waiting, newest: tuple[int, int], read_time: int, now: int) -> npt.NDArray[np.void]:
    waiting = waiting.rows(np.argsort(waiting.queue_offsets))
    written = now // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    slots = timer_slots(waiting.times)
    units = np.zeros(len(waiting) + 1, TIMER_UNIT)
    alike = {"unit_size": TIMER_UNIT.itemsize, "magic": TIMER_MAGIC, "written": written, "previous": -1}
    for name, value in alike.items():
        units[name] = value
    own = units[:-1]
    beyond = slots - written - TIMER_ROLL_WINDOW_MS
    own["magic"][beyond >= 0] |= TIMER_MAGIC_ROLL
    soon = np.where(beyond < TIMER_ROLL_WINDOW_MS // 3, TIMER_ROLL_WINDOW_MS // 2, TIMER_ROLL_WINDOW_MS)
    slots = np.where(beyond >= 0, written + soon, slots)
    own["delay"] = slots - written
    own["physical_offset"], own["size"] = waiting.physical_offsets, waiting.sizes
    files, places = np.divmod(np.arange(len(own)), _UNITS)
    positions = files * TIMER_LOG_FILE_BYTES + places * TIMER_UNIT.itemsize
    order = np.argsort(slots, kind="stable")
    same = np.diff(slots[order]) == 0
    own["previous"][order[1:]] = np.where(same, positions[order[:-1]], -1)
    if len(own) and own["physical_offset"][-1] == newest[0]:
        return own
    units[-1]["physical_offset"], units[-1]["size"] = newest
    units[-1]["delay"] = read_time - TIMER_PRECISION_MS - written
    return units
