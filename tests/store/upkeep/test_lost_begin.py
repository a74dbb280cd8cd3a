"""A log whose first segments are gone looks as after retention; but retention notes first what it deletes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import segment_name
from store.publish.published_end import PublishedEnd
from store.upkeep.repair import repair
from store.upkeep.verify import verify

SIZE = 4096
CONFIG = StoreConfig(mappedFileSizeCommitLog=SIZE, mappedFileSizeConsumeQueue=200, deleteFileBatchMax=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five segments, of which retention took the first two."""
    path = tmp_path / "mq"
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", bytes(500)) for _ in range(32)])
        store.clean(forced=True)
        assert store.put(Message("t", b"next")).queue_offset == 32
    return path


def told(path: Path) -> list[str]:
    """What opening for writing warns of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        MessageStore.open(path).close()
    return [str(warning.message) for warning in found]


def set_published(path: Path, **fields: object) -> None:
    with closing(PublishedEnd(path, writable=True)) as published:
        for name, value in fields.items():
            published._fields[name][...] = value


def test_what_retention_took_is_not_missed(path: Path) -> None:
    assert told(path) == []
    assert verify(path).findings == []


@pytest.mark.parametrize("crashed", [False, True])
def test_a_segment_that_it_did_not_take_is_missed_until_it_is_done_without(path: Path, crashed: bool) -> None:
    (path / "commitlog" / segment_name(2 * SIZE)).unlink()
    said = f"no file for bytes {2 * SIZE} to {3 * SIZE}, which retention did not delete here"
    assert [finding.where for finding in verify(path).findings if said in finding.what] == ["commitlog"]
    with pytest.warns(RuntimeWarning, match=said):
        MessageStore.open(path, read_only=True).close()
    if crashed:
        set_published(path, boot_id=b"another")
        assert len(told(path)) == 1
        return
    for _ in range(2):
        (warning,) = told(path)
        assert re.match(rf"{path}/commitlog: {said}", warning)
    with pytest.warns(RuntimeWarning, match=said), MessageStore.open(path) as store:
        assert store.put(Message("t", b"next")).queue_offset == 33
    repair(path)
    assert told(path) == []
    assert verify(path).findings == []


def test_retention_does_not_take_a_lost_segment_for_its_own(path: Path) -> None:
    """Lost while the store is open, and not to be told from what is deleted now."""
    with MessageStore.open(path) as store:
        (path / "commitlog" / segment_name(2 * SIZE)).unlink()
        with pytest.warns(RuntimeWarning, match=f"no file for bytes {2 * SIZE} to {3 * SIZE}, which retention did not"):
            assert len(store.clean(forced=True).log) == 2
    assert told(path) == []


def test_a_hole_is_told_too(path: Path) -> None:
    (path / "commitlog" / segment_name(4 * SIZE)).unlink()
    (warning,) = told(path)
    assert warning.startswith(f"{path}/commitlog: no file for bytes {4 * SIZE} to {5 * SIZE}; restore")
    assert [finding.what[:23] for finding in verify(path).findings[:1]] == ["the segment is missing;"]


def test_a_retention_that_died_before_it_deleted(path: Path) -> None:
    set_published(path, log_begin=0)
    with MessageStore.open(path) as store:
        store._writer.begin_log_at(4 * SIZE)  # type: ignore[union-attr]
    assert told(path) == []
    assert verify(path).findings == []


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_broker_took_is_not_missed(path: Path, killed: bool) -> None:
    """One that appended, too: then our published end says nothing."""
    with MessageStore.open(path) as store:
        end = store.confirm_offset
        store.put(Message("t", b"a broker's"))
    set_published(path, confirm_offset=end | 0xFF << 56)
    with closing(PublishedEnd(path, writable=True)) as published:
        published.publish(end)
        published.announce(end, 1)
    if killed:
        (path / "abort").touch()
    (path / "queueends").unlink()
    (path / "commitlog" / segment_name(2 * SIZE)).unlink()
    assert told(path) == []
    assert told(path) == []
    assert verify(path).findings == []


def test_where_nobody_noted_it_the_next_writer_does(path: Path) -> None:
    set_published(path, log_begin=0)
    (path / "commitlog" / segment_name(2 * SIZE)).unlink()
    assert told(path) == []
    (path / "commitlog" / segment_name(3 * SIZE)).unlink()
    assert len(told(path)) == 1


def test_two_who_clean_note_what_both_took(path: Path) -> None:
    with MessageStore.open(path) as first, MessageStore.open(path) as second:
        first.put_many([Message("t", bytes(500)) for _ in range(32)])
        second.clean(forced=True, config=replace(CONFIG, deleteFileBatchMax=3))
        assert first._writer is not None
        first._writer.begin_log_at(SIZE)
    assert told(path) == []


@pytest.mark.parametrize("use", [lambda path: MessageStore.open(path).close(), repair])
def test_a_published_end_from_before_what_retention_took(path: Path, use: Callable[[Path], None]) -> None:
    """One that was put back says nothing of the log that there is: it is walked, and no byte of it goes."""
    before = (path / "watermark").read_bytes()
    with MessageStore.open(path) as store:
        store.put_many([Message("t", bytes(500)) for _ in range(32)])
        while store.clean(forced=True).log:
            pass
        expected = store.offsets("t", 0)
    (path / "watermark").write_bytes(before)
    assert verify(path).findings == []
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("t", 0) == expected
    use(path)
    assert told(path) == []
    with MessageStore.open(path) as store:
        assert store.offsets("t", 0) == expected
        assert store.put(Message("t", b"next")).queue_offset == expected[1]
    assert verify(path).findings == []
