"""Following a topic; what the command prints of it: `test_tail`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pyspark_mq.cli.following import Row, between, newest, rows
from store import Message, OffsetLost, OffsetNotYet, TagFilter, message_filter
from store.any_log import MessageFilter
from store.read.filters import EVERYTHING
from tests.filled import Filled

COLUMNS = ("queueOffset", "body")


def test_from_the_first_message_where_retention_went_past_the_end(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    with filled.store as store:
        filled.put("t", 0, 250, size=1000)
        store.clean(forced=True)
        first = store.min_offset("t", 0)
        assert list(rows(store, "t", 0, None, first - 10, COLUMNS, EVERYTHING)) == []
        assert [row["queueOffset"] for row in rows(store, "t", 0, None, 250, COLUMNS, EVERYTHING)] == list(
            range(first, 250)
        )
        with pytest.raises(OffsetLost):
            list(rows(store, "t", 0, first - 10, 250, COLUMNS, EVERYTHING))
        with pytest.raises(OffsetNotYet, match="no offset 251 yet, the next one is 250"):
            list(rows(store, "t", 0, 251, 250, COLUMNS, EVERYTHING))


def bodies(found: Iterable[Row]) -> list[bytes]:
    return [row["body"] for row in found]


@pytest.mark.parametrize("count", [1, 2, 7, 1500, 3000])
@pytest.mark.parametrize("accept", [EVERYTHING, TagFilter(("A",)), message_filter("TAGS = 'A'", "SQL92")])
def test_the_newest_are_the_last_of_all(tmp_path: Path, count: int, accept: MessageFilter) -> None:
    filled = Filled(tmp_path / "mq", {"t": 3})
    with filled.store as store:
        filled.put("t", 0, 1000)
        filled.put("t", 1, 1100)
        filled.put("t", 0, 31)
        begin, end = {0: 3, 1: 0, 2: 0}, {0: 1030, 1: 1100, 2: 0}
        everything = bodies(between(store, "t", begin, end, COLUMNS, accept))
        assert bodies(newest(store, "t", begin, end, count, COLUMNS, accept)) == everything[-count:]


def test_the_newest_of_a_rare_tag_are_looked_for_up_to_the_begin(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    with filled.store as store:
        store.put_many([Message("t", b"rare", tags="rare"), *(Message("t", b"x") for _ in range(5000))])
        assert bodies(newest(store, "t", {0: 0}, {0: 5001}, 3, COLUMNS, TagFilter(("rare",)))) == [b"rare"]
        assert bodies(newest(store, "t", {0: 1}, {0: 5001}, 3, COLUMNS, TagFilter(("rare",)))) == []
