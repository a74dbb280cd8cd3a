"""Following a topic; what the command prints of it: `test_cli`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mq.tail import rows
from store import OffsetLost, OffsetNotYet
from tests.filled import Filled


def test_from_the_first_message_where_retention_went_past_the_end(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    with filled.store as store:
        filled.put("t", 0, 250, size=1000)
        store.clean(forced=True)
        first = store.min_offset("t", 0)
        assert list(rows(store, "t", 0, None, first - 10, None)) == []
        assert [row["queueOffset"] for row in rows(store, "t", 0, None, 250, None)] == list(range(first, 250))
        with pytest.raises(OffsetLost):
            list(rows(store, "t", 0, first - 10, 250, None))
        with pytest.raises(OffsetNotYet, match="no offset 251 yet, the next one is 250"):
            list(rows(store, "t", 0, 251, 250, None))
