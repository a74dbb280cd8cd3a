from __future__ import annotations

from pathlib import Path

import pytest

from store import CorruptRecord, Message, MessageStore, StoreConfig
from store.format.hashes import java_hash_code
from store.format.layout import segment_name
from store.read.arrivals import Arrival


@pytest.fixture
def config() -> StoreConfig:
    return StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)


def test_arrivals_name_the_queues_of_each_append(tmp_path: Path, config: StoreConfig) -> None:
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("a", 4)
        store.create_topic("b", 2)
        seen = store.confirm_offset
        store.put(Message("a", b"", queue_id=3))
        middle = store.confirm_offset
        store.put_many([Message("b", b"x" * 500, tags="t", queue_id=n % 2) for n in range(20)])
        end = store.confirm_offset
        assert end - middle > 2 * 4096
        first = Arrival("a", 3, 0, 0)
        others = [Arrival("b", n % 2, n // 2, java_hash_code("t")) for n in range(20)]
        assert store.arrivals(seen, middle) == [first]
        assert store.arrivals(middle, end) == others
        assert store.arrivals(seen, end) == [first, *others]
        assert store.arrivals(end, end) == []


@pytest.mark.parametrize("name", ["hosts-5.3", "properties-4.9", "compressed-5.3", "property-crc"])
def test_arrivals_equal_the_queues_of_a_broker(name: str) -> None:
    with MessageStore.open(Path(__file__).parents[2] / "golden" / name, read_only=True) as store:
        told = store.arrivals(0, store.confirm_offset)
        queues = {(topic, queue_id) for topic, count in store.topics().items() for queue_id in range(count)}
        assert {(it.topic, it.queue_id) for it in told} == {queue for queue in queues if store.max_offset(*queue)}
        for queue in queues:
            end = store.max_offset(*queue)
            codes = store.tags_codes(*queue, 0, end).tolist()
            assert [it[2:] for it in told if it[:2] == queue] == list(zip(range(end), codes, strict=True))


def test_torn_record_is_an_error(tmp_path: Path, config: StoreConfig) -> None:
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("a", 1)
        store.put(Message("a", b"x", queue_id=0))
        with (tmp_path / "mq" / "commitlog" / segment_name(0)).open("r+b") as file:
            file.write(bytes(8))
        with pytest.raises(CorruptRecord, match=r"commit log offset 0: no record begins here \(size 0, magic 0x0\)"):
            store.arrivals(0, store.confirm_offset)
