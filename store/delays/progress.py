"""How far the delivery of delayed messages is, in RocketMQ's own file.

    delayOffset.json  {"offsetTable": {delay level: next queue offset in SCHEDULE_TOPIC}, "deliveredTo": log offset}

"deliveredTo" is this project's; a broker passes it over, and does not keep it: up to that log offset the table counts
what was delivered. What lies behind it proves itself (see `delivered`). It is written when the log is on the device up
to there: never may a file know more than the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from store.files.admin_files import next_version, number, offset_table, read_json, write_json
from store.format.layout import DELAY_OFFSETS_FILE
from store.integers import LONG_MAX

_OFFSETS = "offsetTable"
_DELIVERED_TO = "deliveredTo"


class Progress(NamedTuple):
    """levels: delay level to the next queue offset. delivered_to: log offset, None where a broker delivered."""

    levels: Mapping[int, int]
    delivered_to: int | None

    @staticmethod
    def read(root: Path) -> Progress:
        """Raises `CorruptStore`."""
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        to = content.get(_DELIVERED_TO)
        levels = offset_table(path, _OFFSETS, content.get(_OFFSETS))
        return Progress(levels, None if to is None else number(path, _DELIVERED_TO, to, LONG_MAX))

    def write(self, root: Path) -> None:
        """On the device when this returns."""
        path = root / DELAY_OFFSETS_FILE
        content = read_json(path)
        content[_OFFSETS] = {str(level): offset for level, offset in sorted(self.levels.items())}
        content[_DELIVERED_TO] = self.delivered_to
        next_version(path, content)
        write_json(path, content)
