from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from store import Message, MessageStore, PutResult

PAGE = Path(__file__).parents[2] / "docs" / "store.md"


def shown(path: str) -> list[str]:
    """Return the page's blocks with the omitted parts, and without waiting for another process."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    filled = {
        "/data/mq": path,
        "[...]": '[Message("orders", b"2"), Message("orders", b"3")]',
        "timeout=10": "timeout=0",
    }
    for place, what in filled.items():
        assert any(place in block for block in blocks)
        blocks = [block.replace(place, what) for block in blocks]
    return blocks


def test_code_of_the_page_runs(tmp_path: Path) -> None:
    path = str(tmp_path / "mq")
    verbs, one_append = shown(path)
    names: dict[str, Any] = {"table": pa.table({"body": ["4", "5"]}), "offset": 1, "start": 0, "end": 1, "ms": 0}
    exec(compile(verbs, str(PAGE), "exec"), names)
    assert isinstance(names["result"], PutResult)
    fields = re.search(r"a named tuple: `(.*?)`", PAGE.read_text("utf-8"))
    assert fields is not None
    assert tuple(fields[1].split(", ")) == PutResult._fields

    with MessageStore.open(path) as store:
        assert store.consumer_offset("group", "orders", 0) == 1
        store.create_topic("audit", 1)
        exec(compile(one_append, str(PAGE), "exec"), {**names, "store": store, "Message": Message})
        bodies = [body for batch in store.to_arrow("orders", ("body",)) for body in batch.column(0).to_pylist()]
        assert sorted(bodies) == [b"...", b"2", b"3", b"4", b"4", b"5", b"5"]
        assert store.max_offset("audit", 0) == 1
