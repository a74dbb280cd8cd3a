"""Light queues named by a client: a broker without light queues stores both properties as received."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from store import CorruptSegment, Message, MessageStore, StoreConfig
from store.model.log_protocol import Queue, QueueRange
from store.upkeep.verify import repair, verify
from tests.store.read.test_golden import GOLDEN
from tests.store.upkeep.test_damaged import bodies

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=20, maxIndexNum=50)
MULTI = StoreConfig(maxHashSlotNum=100, maxIndexNum=400)


def made_up(queues: str, offsets: str, topic: str = "t", keys: str = "") -> Message:
    """A message with light queue properties, which `put` refuses. The misspelled names pass; `broker_has_it` corrects
    them."""
    properties = {"_NNER_MULTI_DISPATCH": queues, "_NNER_MULTI_QUEUE_OFFSET": offsets}
    return Message(topic, b"made up", properties=properties, keys=keys.split(), queue_id=0)


def broker_has_it(path: Path) -> None:
    """Turn the directory into a broker's and correct the property names of `made_up`."""
    for file in (path / "commitlog").iterdir():
        content = file.read_bytes()
        file.write_bytes(content.replace(b"_NNER_MULTI", b"INNER_MULTI"))
    for name in ("watermark", "queueends"):
        (path / name).unlink()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    ("queues", "offsets", "is_told"),
    [
        ("%LMQ%x", "3", True),
        ("%LMQ%x", "4611686018427387904", True),
        ("%LMQ%x,%LMQ%x", "1,0", True),
        ("%LMQ%x,%LMQ%y", "0", False),
        ("%LMQ%x", "-1", False),
        ("t", "0", False),
        ("t", "10", False),
        ("t", "11", False),
        ("u,t", "0,99", False),
    ],
)
def test_store_shows_no_wrong_light_queue(tmp_path: Path, queues: str, offsets: str, is_told: bool, lost: bool) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        store.create_topic("u", 1)
        for n in range(9):
            store.put(Message("t", b"%d" % n))
        store.put(made_up(queues, offsets))
        store.put(Message("t", b"10"))
        store.put(made_up(queues, offsets, "u"))
        expected = bodies(store)
    broker_has_it(path)
    if lost:
        shutil.rmtree(path / "consumequeue")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with MessageStore.open(path) as store:
                found = bodies(store)
                assert {name: found[name] for name in found if not name[0].startswith("%")} == expected
                assert store.put(Message("t", b"next")).queue_offset == len(expected["t", 0])
                expected["t", 0].append(b"next")
        assert bool(told) == is_told
        is_told = False
    assert verify(path).findings == []


@pytest.mark.parametrize("lost", [False, True])
def test_light_queue_of_a_broker_is_unchanged(tmp_path: Path, lost: bool) -> None:
    path = tmp_path / "mq"
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", path)
    with MessageStore.open(path, config=MULTI) as store:
        light = [Queue(topic, 0) for topic in store.topics() if topic.startswith("%LMQ%")]
        before = store.bounds(light)
        assert len(before) == 5
        expected = {queue: list(store.scan(queue.topic, queue.queue_id, *before[queue])) for queue in light}
        for queue, (first, end) in before.items():
            for offset in (first, end - 1, end + 1, end + 1000):
                store.put(made_up(queue.topic, f"{offset}", topic="lmq"))
    broker_has_it(path)
    with pytest.warns(RuntimeWarning, match="The light queue leaves them out"):
        store = MessageStore.open(path)
    with store:
        assert store.bounds(light) == before
        assert {queue: list(store.scan(queue.topic, queue.queue_id, *before[queue])) for queue in light} == expected
    assert verify(path).findings == []
    if lost:
        shutil.rmtree(path / "consumequeue" / light[0].topic)
        assert verify(path).findings
    with pytest.warns(RuntimeWarning, match="The light queue leaves them out"):
        repair(path)
    assert verify(path).findings == []


@pytest.mark.parametrize("lost", ["watermark", "queueends"])
def test_direct_puts_follow_dispatched_messages_in_a_light_queue(tmp_path: Path, lost: str) -> None:
    path, light = tmp_path / "mq", Queue("%LMQ%device-1", 0)
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", path)
    with MessageStore.open(path, config=MULTI) as store:
        end = store.max_offset(light.topic, light.queue_id)
        assert [store.put(Message(light.topic, b"own")).queue_offset for _ in range(3)] == [end, end + 1, end + 2]
        expected = list(store.scan(light.topic, light.queue_id, 0, end + 3))
    assert verify(path).findings == []
    (path / lost).unlink()
    with MessageStore.open(path) as store:
        assert list(store.scan(light.topic, light.queue_id, 0, end + 3)) == expected
        assert store.max_offset(light.topic, light.queue_id) == end + 3
    assert verify(path).findings == []


def test_lookup_by_key_finds_messages_of_a_light_queue(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 1)
        for n in range(3):
            store.put(made_up("%LMQ%x", f"{n}", keys=f"k{n}"))
    broker_has_it(path)
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    with MessageStore.open(path) as store:
        of_topic, light = (QueueRange(Queue(topic, 0), *store.offsets(topic, 0)) for topic in ("t", "%LMQ%x"))
        assert store.with_keys([of_topic, light], ["k1"]) == [of_topic._replace(start=1, end=2), light]


def test_light_queue_without_its_first_file_is_rebuilt(tmp_path: Path) -> None:
    path, light = tmp_path / "mq", Queue("%LMQ%device-1", 0)
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", path)
    with MessageStore.open(path, config=MULTI) as store:
        before = store.offsets(light.topic, light.queue_id)
        expected = list(store.scan(light.topic, light.queue_id, *before))
    min((path / "consumequeue" / light.topic / "0").iterdir()).unlink()
    with (
        MessageStore.open(path, read_only=True, config=MULTI) as reader,
        pytest.raises(CorruptSegment, match="the log has the message of offset 0"),
    ):
        reader.offsets(light.topic, light.queue_id)
    with MessageStore.open(path) as store:
        assert store.offsets(light.topic, light.queue_id) == before == (0, 11)
        assert list(store.scan(light.topic, light.queue_id, *before)) == expected
    assert verify(path).findings == []


def test_lost_light_queue_is_rebuilt(tmp_path: Path) -> None:
    """No table lists a light queue, so only the log can show it."""
    path, light = tmp_path / "mq", Queue("%LMQ%device-1", 0)
    shutil.copytree(GOLDEN / "multi-dispatch-5.3", path)
    with MessageStore.open(path, config=MULTI) as store:
        expected = list(store.scan(light.topic, light.queue_id, 0, 11))
    shutil.rmtree(path / "consumequeue" / light.topic)
    with MessageStore.open(path) as store:
        assert list(store.scan(light.topic, light.queue_id, 0, 11)) == expected
    assert verify(path).findings == []
