from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store import Message, MessageStore, ReceivedMessage
from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue
from store.remoting.serving import serve
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "consuming.md"


class EnoughError(Exception):
    """Ends an endless loop of the page."""


def blocks() -> list[str]:
    """Return the page's code: listening, iterating; for a cluster, with its address."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_page_runs_on_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listening, iterating = (block.replace("/data/mq", str(tmp_path)) for block in blocks()[:2])
    assert "    consumer.wait()\n" in listening
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)

        def come_to(offset: int) -> Callable[[], bool]:
            place = Queue("orders", 0)
            return lambda: DirectoryGroup(tmp_path, "bookkeeping").committed([place]) == {place: offset}

        def wait() -> None:
            until(come_to(0))
            store.put_many([Message("orders", b"one", "paid", "o-1"), Message("orders", b"two", "open", "o-2")])
            until(come_to(2))

        exec(listening.replace("consumer.wait()", "wait()"), {"wait": wait})
        assert capsys.readouterr().out == "('o-1',) paid b'one'\n"

        store.put_many([Message("orders", b"three"), Message("orders", b"four")])
        booked: list[bytes] = []

        def book_one(message: ReceivedMessage) -> None:
            booked.append(message.body)
            if message.body == b"four":
                raise EnoughError

        with pytest.raises(EnoughError):
            exec(listening[: listening.index("def ")] + iterating, {"book_one": book_one})
        assert booked == [b"three", b"four"]
        assert come_to(3)(), "the message in hand is delivered again"


def test_page_runs_on_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listening, _, clustered, addressed = blocks()
    with MessageStore.open(tmp_path) as store, serve(store, "127.0.0.1:0") as serving:
        store.create_topic("orders", 1)
        known: dict[str, Any] = {"wait": lambda: until(lambda: "paid" in capsys.readouterr().out)}
        exec(listening[: listening.index("\n\nwith")], known)
        store.put_many([Message("orders", b"one", "paid", "o-1")])
        first = "config=ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)"
        code = clustered.replace("10.0.0.1:9876;10.0.0.2:9876", serving.address).replace("book)", f"book, {first})")
        exec("from store import ConsumeFromWhere, ConsumerConfig\n" + code.replace("consumer.wait()", "wait()"), known)
    exec(addressed, known)
    assert str(known["cluster"]) == "cluster at 10.0.0.1:9876"
