"""Narrowing ranges by time, key and id never loses a match, even with wrong clocks, a damaged index or a broker's
files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import numpy as np
import pytest

from store import Message, MessageStore, StoreConfig
from store.append import appender, published_end
from store.append.published_end import PublishedEnd
from store.disk.index import Index
from store.format.layout import PUBLISHED_END, field_offset
from store.model.log_protocol import Queue, QueueRange

SIZES = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 100 * 20, "maxHashSlotNum": 50}
GOLDEN = Path(__file__).parents[2] / "golden"
NOW = 1_800_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Replace the appender's clock with a settable time in ms."""
    now = [NOW]
    monkeypatch.setattr(appender, "time", SimpleNamespace(time=lambda: now[0] / 1000, monotonic=monotonic))
    return now


def opened(path: Path, **settings: object) -> MessageStore:
    return MessageStore.open(path, config=StoreConfig(**(SIZES | settings)))  # type: ignore[arg-type]


def put(store: MessageStore, *keys: str, topic: str = "t", body: bytes = b"x") -> None:
    if topic not in store.topics():
        store.create_topic(topic, 1)
    store.put_many([Message(topic, body, queue_id=0, keys=(key,)) for key in keys])


def at_times(store: MessageStore, clock: list[int], *times: int) -> None:
    for time in times:
        clock[0] = NOW + time
        put(store, f"k{time}")


def spans(ranges: list[QueueRange]) -> list[tuple[int, int]]:
    return [(r.start, r.end) for r in ranges]


def everything(store: MessageStore, topic: str = "t") -> list[QueueRange]:
    return [QueueRange(Queue(topic, 0), *store.offsets(topic, 0))]


def times_ascend_from(store: MessageStore) -> int:
    """Return the first offset of queue 0 of topic `t` from which store times are known to ascend."""
    known_from = store._published_end.times_from
    rows = store.to_arrow("t", ("physicalOffset",)).read_all()["physicalOffset"].to_pylist()
    return sum(known_from is None or physical < known_from for physical in rows)


def with_key(store: MessageStore, key: str, topic: str = "t") -> list[tuple[int, int]]:
    return spans(store.with_keys(everything(store, topic), [key]))


@pytest.mark.filterwarnings("ignore:The store time of the newest")
def test_times_ascend_from_the_last_step_back_of_the_clock(tmp_path: Path, clock: list[int]) -> None:
    hours = 3_600_000
    with opened(tmp_path) as store:
        at_times(store, clock, *[3 * hours] * 100, *range(100))
        assert times_ascend_from(store) == 100


@pytest.mark.filterwarnings("ignore:The store time of the newest")
@pytest.mark.parametrize("steps", [([3], [0]), ([0], [3], [1]), ([3], [2], [1], [4, 5])])
def test_key_is_found_in_its_time_despite_clock_changes(
    tmp_path: Path, clock: list[int], steps: tuple[list[int], ...]
) -> None:
    hours = 3_600_000 * 2
    with opened(tmp_path, maxIndexNum=30) as store:
        times = [NOW + hours * hour + n * 1000 for step in steps for hour in step for n in range(20)]
        for clock[0] in times:
            put(store, "k")
        for begin in (*times, 0):
            for end in (begin, begin + 10_000, NOW + hours * 9):
                found = [message.store_timestamp for message in store.query("t", "k", 1000, begin, end)]
                assert found == [time for time in times if begin <= time <= end]


def test_ranges_are_narrowed_by_key_and_id(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *(f"k{number}" for number in range(300)), "k7")
        put(store, "k7", topic="u")
        assert with_key(store, "k7") == [(7, 8), (300, 301)]
        assert with_key(store, "k7", "u") == [(0, 1)]
        assert with_key(store, "none") == []
        assert spans(store.with_keys(everything(store), ["k1", "k66"])) == [(1, 67)]
        ids = next(store.scan("t", 0, 200, 201, ("msgId", "physicalOffset"))).to_pylist()[0]
        assert with_key(store, ids["msgId"]) == [(200, 201)]
        offset_id = "7F00000100002A9F" + f"{ids['physicalOffset']:016X}"
        assert with_key(store, offset_id) == [(200, 201)]


def test_very_common_key_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.read.narrowing._MOST_SEARCHES", 9)
    with opened(tmp_path) as store:
        put(store, *["rare", *["often"] * 10])
        assert (with_key(store, "often"), with_key(store, "rare")) == ([(0, 11)], [(0, 1)])


def test_range_without_an_index_is_not_narrowed(tmp_path: Path) -> None:
    for is_on, keys in ((True, ["a"] * 100), (False, ["a", "b"]), (True, [*["c"] * 100, "a"])):
        with opened(tmp_path, messageIndexEnable=is_on) as store:
            put(store, *keys)
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert with_key(store, "b") == [(0, 102)]
        assert with_key(store, "a") == [(0, 102), (202, 203)]


def test_range_of_a_deleted_index_is_not_narrowed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *["a"] * 100)
        shutil.rmtree(tmp_path / "index")
        assert with_key(store, "a") == [(0, 100)]
        put(store, *["b"] * 100, "a")
        assert with_key(store, "a") == [(0, 100), (200, 201)]
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path) as store:  # rebuilds the index
        assert with_key(store, "b") == [(100, 200)]
        assert with_key(store, "none") == []


def test_index_of_other_sizes_is_not_used(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", "b")
    next((tmp_path / "index").iterdir()).write_bytes(bytes(100))
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert with_key(store, "a") == [(0, 2)]


def test_narrowing_keeps_ranges_deleted_by_retention(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *(f"k{number}" for number in range(250)), body=bytes(1000))
        wanted = everything(store)
        store.clean(forced=True)
        assert store.min_offset("t", 0) > 0
        assert store.with_keys(wanted, ["k0"]) == wanted
        assert with_key(store, "k249") == [(249, 250)]
        just_gone = [QueueRange(Queue("t", 0), store.min_offset("t", 0) - 1, 250)]
        assert store.with_keys(just_gone, ["none"]) == just_gone


def test_ranges_of_a_brokers_directory_are_not_narrowed(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "index-5.3", tmp_path / "theirs")
    with MessageStore.open(tmp_path / "theirs", read_only=True) as store:
        topic = next(topic for topic in sorted(store.topics()) if store.max_offset(topic, 0))
        wanted = everything(store, topic)
        assert store.with_keys(wanted, ["none"]) == wanted


def test_times_of_a_brokers_messages_are_checked_at_takeover(tmp_path: Path, clock: list[int]) -> None:
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100))
    (tmp_path / "watermark").unlink()  # as in a broker's directory
    clock[0] = NOW + 200
    with opened(tmp_path) as store:
        put(store, "new")
        assert times_ascend_from(store) == 0
        assert with_key(store, "k5") == [(0, 100)]  # the broker's index is not trusted


def set_time(path: Path, number: int, time: int) -> None:
    """Change the store time of a message of queue 0, as a broker with another clock would have set it."""
    with MessageStore.open(path, read_only=True) as store:
        at = next(store.scan("t", 0, number, number + 1, ("physicalOffset",)))["physicalOffset"][0].as_py()
    from store.format.layout import RECORD_HEADER

    with open(path / "commitlog" / f"{0:020d}", "r+b") as log:
        log.seek(at + field_offset(RECORD_HEADER, "store_timestamp"))
        log.write(time.to_bytes(8, "big"))


@pytest.mark.parametrize(("number", "time", "whole"), [(60, NOW, 60), (60, NOW + 99, 61), (99, NOW * 9000, 100)])
def test_range_before_a_step_back_of_times_is_not_narrowed(
    tmp_path: Path, clock: list[int], number: int, time: int, whole: int
) -> None:
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100))
    set_time(tmp_path, number, time)
    (tmp_path / "watermark").unlink()
    clock[0] = NOW + 1000
    with opened(tmp_path) as store:
        put(store, *["new"] * 100)
        assert times_ascend_from(store) == whole


def test_step_back_in_times_appended_by_a_broker_is_detected(tmp_path: Path, clock: list[int]) -> None:
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100))
    ours = (tmp_path / "watermark").read_bytes()
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100, 200))
    set_time(tmp_path, 150, NOW)
    (tmp_path / "watermark").write_bytes(ours)  # a broker does not change this file
    with opened(tmp_path) as store:
        assert store.max_offset("t", 0) == 200
        assert times_ascend_from(store) == 150
        assert with_key(store, "none") == [(0, 200)]


def test_index_is_not_used_while_it_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        put(store, *["a"] * 100)
    shutil.rmtree(tmp_path / "index")
    keep, seen = Index.keep, []

    def kept(index: Index, names: list[str]) -> None:
        seen.append(PublishedEnd(tmp_path, writable=False).keys_from)
        keep(index, names)

    monkeypatch.setattr(Index, "keep", kept)
    with opened(tmp_path) as store:
        assert seen == [store.confirm_offset]
        assert PublishedEnd(tmp_path, writable=False).keys_from == 0


def test_known_times_and_keys_survive_a_reboot(
    tmp_path: Path, clock: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100))
    monkeypatch.setattr(published_end, "current_boot_id", lambda: b"another")
    with opened(tmp_path) as store:
        assert times_ascend_from(store) == 0
        assert with_key(store, "k50") == [(50, 51)]


def test_watermark_of_an_older_version_is_read(tmp_path: Path, clock: list[int]) -> None:
    with opened(tmp_path) as store:
        at_times(store, clock, *range(100))
    data = bytearray((tmp_path / "watermark").read_bytes())
    begin = field_offset(PUBLISHED_END, "times_from")
    data[begin:] = bytes(len(data) - begin)
    (tmp_path / "watermark").write_bytes(data)
    with MessageStore.open(tmp_path, read_only=True) as store:
        assert times_ascend_from(store) == 100
        assert with_key(store, "k0") == [(0, 100)]
    with opened(tmp_path) as store:
        at_times(store, clock, 100, *[101] * 100)
        assert times_ascend_from(store) == 100
        assert with_key(store, "none") == [(0, 100)]


def test_repaired_index_is_complete_before_it_is_used(tmp_path: Path) -> None:
    from store.upkeep.verify import repair

    with opened(tmp_path) as store:
        put(store, *(f"k{number}" for number in range(100)))
    shutil.rmtree(tmp_path / "index")
    repair(tmp_path)
    with opened(tmp_path) as store:
        assert with_key(store, "k5") == [(0, 100)]
        put(store, *["new"] * 100)
        assert with_key(store, "new") == [(0, 200)]
        assert np.array_equal(with_key(store, "none"), [(0, 100)])


def test_limit_of_searches_counts_each_key_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.read.narrowing._MOST_SEARCHES", 9)
    with opened(tmp_path) as store:
        put(store, "b", *["x"] * 70, "twice")
        store.put_many([Message("t", b"", queue_id=0, keys=("a", "b")) for _ in range(6)])
        store.put_many([Message("t", b"", queue_id=0, keys=("twice", "twice")) for _ in range(6)])
        whole = everything(store)
        assert store.with_keys(whole, ["a", "b"]) == store.with_keys(whole, ["twice"]) == whole


@pytest.mark.parametrize("damaged", [range(250, 251), range(204, 408)])
@pytest.mark.parametrize("byte", [b"\0", b"\x02"])
def test_key_after_a_damaged_entry_is_found(tmp_path: Path, damaged: range, byte: bytes) -> None:
    with opened(tmp_path, mappedFileSizeConsumeQueue=1000 * 20) as store:
        put(store, *(f"k{number}" for number in range(1000)))
    with open(tmp_path / "consumequeue" / "t" / "0" / f"{0:020d}", "r+b") as entries:
        entries.seek(damaged.start * 20)
        entries.write((bytes(6) + 14 * byte) * len(damaged))
    with MessageStore.open(tmp_path, read_only=True) as store:
        for number in range(0, 1000, 10):
            pieces = with_key(store, f"k{number}")
            assert any(start <= number < end for start, end in pieces)
            assert number in damaged or len(pieces) == 1


def test_ids_of_another_topic_are_not_searched(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *["x"] * 100)
        put(store, *["x"] * 100, topic="u")
        at = next(store.scan("u", 0, 50, 51, ("physicalOffset",)))["physicalOffset"][0].as_py()
        offset_id = f"7F00000100002A9F{at:016X}"
        assert (with_key(store, offset_id), with_key(store, offset_id, "u")) == ([], [(50, 51)])
