from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from store import ObjectsUnavailable, RequestRefused
from store.model.codes import ResponseCode
from store.remoting.connection import Connection
from store.remoting.tiered_store import ArchiveReads
from tests.waiting import until


def connection() -> Connection:
    return Connection(lambda connection, command: None, lambda connection, error: None)


@pytest.fixture
def reads() -> Iterator[ArchiveReads]:
    it = ArchiveReads(seconds=0.05)
    yield it
    it.stop()


class Archive:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def work(self, name: str) -> str:
        self.asked.append(name)
        assert self.gate.wait(60)
        return name


def test_slow_read_is_refused_with_busy(reads: ArchiveReads) -> None:
    archive, it = Archive(), connection()
    asked = [reads.begin(it, lambda: archive.work("")) for _ in range(20)]

    def all_done() -> bool:
        reads.look()
        return all(each.done() for each in asked)

    until(all_done)
    assert {type(each.exception()) for each in asked} == {RequestRefused}
    assert {each.exception().code for each in asked} == {ResponseCode.SYSTEM_BUSY}  # type: ignore[union-attr]
    archive.gate.set()
    assert reads.begin(it, lambda: 5).result() == 5


def test_reads_of_disconnected_clients_are_dropped(reads: ArchiveReads) -> None:
    archive, gone, there = Archive(), connection(), connection()
    for _ in range(8):
        reads.begin(connection(), lambda: archive.work("there"))
    until(lambda: len(archive.asked) == 8)
    reads.begin(gone, lambda: archive.work("gone"))
    reads.lost(gone)
    left = reads.begin(there, lambda: archive.work("left"))
    reads.stop()
    assert isinstance(left.exception(), RequestRefused)
    assert isinstance(reads.begin(there, lambda: None).exception(), RequestRefused)
    archive.gate.set()
    assert archive.asked == ["there"] * 8


@pytest.mark.parametrize("error", [ObjectsUnavailable("away"), KeyError("a mistake")])
def test_error_of_a_read_is_raised(reads: ArchiveReads, error: Exception) -> None:
    def fail() -> None:
        raise error

    for _ in range(20):
        assert reads.begin(connection(), fail).exception() is error
