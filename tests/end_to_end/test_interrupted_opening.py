"""An exception between any two instructions of opening and closing: whoever opens next can, and nobody has a lock."""

from __future__ import annotations

import random
import shutil
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from store import Message, MessageStore
from store.writer import Writer
from tests.end_to_end.test_kill import bodies, check_log
from tests.interrupts import INTERRUPTS, SMALL, Interrupt, interrupted_at, interrupts_of_a_bench, is_free
from tests.waiting import until


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_opening_and_closing_interrupted_at_any_place(tmp_path: Path) -> None:
    """Whoever opens next can, and once all are closed nobody holds anything."""
    for number, rounds in enumerate(interrupts_of_a_bench(max(20, INTERRUPTS // 10))):
        opening_and_closing(tmp_path / str(number), rounds, random.Random(number))
        shutil.rmtree(tmp_path / str(number))


def opening_and_closing(path: Path, rounds: int, choose: random.Random) -> None:
    with MessageStore.open(path, config=SMALL) as made:
        made.create_topic("t", 1)
    opened: list[MessageStore] = []

    def open_and_close() -> None:
        opened.append(MessageStore.open(path))
        opened[0].put(Message("t", b"x"))
        opened[0].close()

    places = interrupted_at(-1, open_and_close)
    opened.clear()
    for _ in range(rounds):
        place = choose.randint(1, places)
        with suppress(Interrupt):
            interrupted_at(place, open_and_close)
        while opened:
            opened.pop().close()  # a second time, where the first was interrupted
        until(partial(is_free, path, 0))  # in the first instructions of the first one only when nobody has the store
        assert is_free(path, 1), f"place {place} of {places}"
        with MessageStore.open(path) as again:
            before = again.max_offset("t", 0)
            assert again.put(Message("t", b"y")).queue_offset == before
        assert not (path / "abort").exists(), f"place {place} of {places}"
    with MessageStore.open(path, read_only=True) as reader:
        found = bodies(reader)
    check_log(path, len(found))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_closing_interrupted_at_any_place_is_done_when_nobody_has_the_store(tmp_path: Path) -> None:
    MessageStore.open(tmp_path).close()
    before, places = set(threading.enumerate()), interrupted_at(-1, MessageStore.open(tmp_path).close, function="close")
    for place in range(1, places + 1):
        with suppress(Interrupt):
            interrupted_at(place, MessageStore.open(tmp_path).close, function="close")
        until(lambda: set(threading.enumerate()) <= before)
        assert is_free(tmp_path, 0), f"place {place} of {places}"
    MessageStore.open(tmp_path).close()
    assert not (tmp_path / "abort").exists()


# Of the last that each of them makes; nobody gives the writer back that is not whole yet.
@pytest.mark.parametrize(("last", "is_left"), [("message_store.Watches", False), ("writer.Figures", True)])
def test_opening_is_interrupted_when_its_writer_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, *, is_left: bool
) -> None:
    def interrupt(*arguments: object) -> None:
        raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"store.{last}", interrupt)
        with pytest.raises(Interrupt) as raised:  # which knows what was there
            MessageStore.open(tmp_path)
    assert is_free(tmp_path, 0)
    assert (tmp_path / "abort").exists() == is_left
    MessageStore.open(tmp_path).close()
    assert not (tmp_path / "abort").exists()
    assert raised.type is Interrupt


def test_opening_is_interrupted_as_its_threads_begin(tmp_path: Path) -> None:
    MessageStore.open(tmp_path).close()
    before = set(threading.enumerate())

    def open_and_close() -> None:
        MessageStore.open(tmp_path).close()

    for place in range(1, interrupted_at(-1, open_and_close, function="appending") + 1):
        with pytest.raises(Interrupt):
            interrupted_at(place, open_and_close, function="appending")
        until(lambda: set(threading.enumerate()) <= before)
        assert is_free(tmp_path, 0)


def test_opening_is_interrupted_before_anybody_has_its_writer(tmp_path: Path) -> None:
    def interrupt(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code is Writer.__init__.__code__:
            sys.setprofile(None)
            raise Interrupt

    sys.setprofile(interrupt)
    try:
        MessageStore.open(tmp_path)
    except Interrupt:
        pass
    else:
        pytest.fail("it was not interrupted")
    finally:
        sys.setprofile(None)
    assert is_free(tmp_path, 0)
    MessageStore.open(tmp_path).close()
    assert not (tmp_path / "abort").exists()
