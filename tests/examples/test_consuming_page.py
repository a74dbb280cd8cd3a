"""What docs/consuming.md shows, run over a store."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from store import Message, MessageStore, ReceivedMessage
from store.any_log import Queue
from store.local_group import LocalGroup
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "consuming.md"


class EnoughError(Exception):
    """What ends a loop of the page, which goes on for ever."""


def test_consuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listening, iterating = (
        block.replace("/data/mq", str(tmp_path))
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    )
    assert "    consumer.wait()\n" in listening
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)

        def come_to(offset: int) -> Callable[[], bool]:
            place = Queue("orders", 0)
            return lambda: LocalGroup(tmp_path, "bookkeeping").committed([place]) == {place: offset}

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
        assert come_to(3)(), "the one in hand comes again"
