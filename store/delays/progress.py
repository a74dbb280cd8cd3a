"""How far the delivery of delayed messages is, in RocketMQ's own files, and as exactly as only this project needs it.

    delayOffset.json  {"offsetTable": {delay level: next queue offset in SCHEDULE_TOPIC},
                       "delivered": {"to": log offset, "until": ms, "timers": queue offset in TIMER_TOPIC}}
    timercheck        TIMER_CHECK

"delivered" is this project's; a broker passes it over, and does not keep it. It says what the table says of the levels,
of the timers (see `Known`), and up to which log offset both count what was delivered. What lies behind it proves itself
(see `delivered`). It is written when the log is on the device up to there: never may a file know more than the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.delays.timers import Known
from store.files.admin_files import next_version, number, offset_table, read_json, write_json
from store.files.atomic import read_file, write_file
from store.format.layout import (
    DELAY_OFFSETS_FILE,
    TIMER_CHECK,
    TIMER_CHECK_FILE,
    TIMER_CHECK_FILE_BYTES,
    TIMER_PRECISION_MS,
)
from store.model.errors import CorruptStore
from store.model.integers import LONG_MAX

_OFFSETS = "offsetTable"
_DELIVERED = "delivered"


class Progress(NamedTuple):
    """levels: delay level to the next queue offset. delivered_to: log offset, None where a broker delivered."""

    levels: Mapping[int, int]
    timers: Known
    delivered_to: int | None

    @staticmethod
    def read(root: Path) -> Progress:
        """Raises `CorruptStore`."""
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        levels = offset_table(path, _OFFSETS, content.get(_OFFSETS))
        own = content.get(_DELIVERED)
        if own is None:
            return Progress(levels, _brokers(root / TIMER_CHECK_FILE), None)
        if not isinstance(own, dict):
            raise CorruptStore(f"{path}: {_DELIVERED} is no object; correct the file, or restore it from a copy")
        until, timers, to = (number(path, f"{_DELIVERED}[{key!r}]", own.get(key), LONG_MAX) for key in _KEYS)
        return Progress(levels, Known(until, timers), to)

    def write(self, root: Path) -> None:
        """On the device when this returns."""
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        content[_OFFSETS] = {str(level): offset for level, offset in sorted(self.levels.items())}
        content[_DELIVERED] = dict(zip(_KEYS, (self.timers.until, self.timers.end, self.delivered_to), strict=True))
        next_version(path, content)
        write_json(path, content)


_KEYS = ("until", "timers", "to")


def _brokers(path: Path) -> Known:
    """What a broker says of its timers: slots before its read time are delivered."""
    try:
        data = read_file(path, TIMER_CHECK_FILE_BYTES)
    except FileNotFoundError:
        return Known(0, 0)
    if len(data) < TIMER_CHECK.itemsize:
        raise CorruptStore(f"{path}: {len(data)} bytes, expected {TIMER_CHECK_FILE_BYTES}; restore it from a copy")
    check = np.frombuffer(data, TIMER_CHECK, 1)[0]
    return Known(max(0, int(check["read_time"])), max(0, int(check["queue_offset"])))


def write_timer_check(root: Path, timers: Known, first_waiting: int) -> None:
    """Tell a broker, on the device: which slots are delivered, and which messages it finds in its timer log, where that
    was written; or else, from which on it has to look at them itself.
    """
    path = root / TIMER_CHECK_FILE
    check = np.zeros(1, TIMER_CHECK)
    check["read_time"] = timers.until // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    check["queue_offset"], check["master_queue_offset"] = first_waiting, timers.end
    write_file(path, check.tobytes().ljust(TIMER_CHECK_FILE_BYTES, b"\0"))
