from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_ONE_BY_ONE = """
import sys
from store import Message, MessageStore, message_filter

assert "javaproperties" not in sys.modules
with MessageStore.open(sys.argv[1]) as store:
    store.create_topic("orders", queues=2)
    store.put(Message("orders", b"one", tags="paid", keys=("a",), properties={"colour": "blue"}))
    store.put_many([Message("orders", "many", keys=("b", "c"), queue_id=1)] * 3)
    assert store.get_message("group", "orders", 1, 0, message_filter=message_filter("paid || sent")).messages == []
    assert store.query("orders", "a")
assert not {"pyarrow.compute", "lark", "pandas"} & sys.modules.keys()
"""
_EVERYTHING = """
import sys
from store import COLUMNS, Message, MessageStore
from store.upkeep.verify import verify

with MessageStore.open(sys.argv[1]) as store:
    store.create_topic("orders", queues=2)
    store.create_topic("others", queues=1)
    store.put(Message("orders", b"one", tags="paid", keys=("a",), properties={"colour": "blue"}))
    many = [Message("orders", b"many", tags="paid", keys=("b", f"c-{n}"), sharding_key="s") for n in range(100)]
    many += [Message("others", "viele \\u00e4", properties={"colour": "blau"}) for n in range(100)]
    store.put_many(many)
    store.put_many([Message("orders", b"", queue_id=0, tags="sent") for n in range(100)])
    store.flush()
    assert store.get_message("group", "orders", 0, 0).messages
    for topic, queues in store.topics().items():
        for queue_id in range(queues):
            start, end = store.offsets(topic, queue_id)
            for tags in (None, "paid || sent"):
                rows = sum(map(len, store.scan(topic, queue_id, start, end, list(COLUMNS), tags)))
                assert (rows > 0) == (tags is None or topic == "orders")
    assert store.query("orders", "c-7")
    assert store.message_by_id(store.query("orders", "a")[0].msg_id)
    store.clean(forced=True)
assert not verify(sys.argv[1]).findings
assert "pandas" not in sys.modules
"""


def test_pandas_is_not_loaded_unasked(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    _run(_EVERYTHING, tmp_path)


def test_single_puts_and_gets_need_no_column_modules(tmp_path: Path) -> None:
    _run(_ONE_BY_ONE, tmp_path)


def _run(program: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True)
    assert not done.returncode, done.stderr
