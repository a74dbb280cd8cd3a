from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from store import ConfigError, Message, MessageStore, StoreConfig
from store.append.locks import DELIVERY_BYTE, ByteLock
from store.disk.queue_files import Entries
from store.format.entering import NOT_FOR_PUTTING
from store.format.layout import CQ_ENTRY, LOCK_FILE, SCHEDULE_TOPIC
from store.upkeep.verify import repair, verify
from tests import seen
from tests.rocketmq.golden import config_of
from tests.store.read.test_golden import GOLDEN, NAMES


def as_it_is(path: Path) -> None: ...


def without_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue", ignore_errors=True)


def without_checkpoint(path: Path) -> None:
    (path / "checkpoint").unlink(missing_ok=True)


def killed(path: Path) -> None:
    (path / "abort").write_text("1")


def index_config(name: str) -> StoreConfig:
    """Return the settings that match the index files, which do not record their sizes."""
    config = config_of(name)
    return StoreConfig(maxHashSlotNum=int(str(config["maxHashSlotNum"])), maxIndexNum=int(str(config["maxIndexNum"])))


def test_broker_with_other_index_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    shutil.copytree(GOLDEN / "index-5.3", path)
    for _ in range(2):
        with pytest.raises(
            ConfigError,
            match=r"maxHashSlotNum=5000000.* Set both as in the settings of the broker that wrote the file",
        ):
            MessageStore.open(path)
    assert not (path / "abort").exists()
    MessageStore.open(path, config=index_config("index-5.3")).close()
    MessageStore.open(path).close()


@pytest.mark.parametrize("change", [as_it_is, without_queues, without_checkpoint, killed])
@pytest.mark.parametrize("name", NAMES)
def test_directory_of_a_broker_is_opened_for_writing(tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    path = tmp_path / "mq"
    shutil.copytree(GOLDEN / name, path)
    change(path)
    expected = seen.golden(GOLDEN / f"{name}.jsonl")
    turn = ByteLock(path / LOCK_FILE, DELIVERY_BYTE)
    assert turn.take()  # otherwise delayed messages, which are due by now, would be delivered among them
    with closing(turn), MessageStore.open(path, config=index_config(name)) as store:
        seen.assert_same(seen.by_get_message(store), expected)
        for queue in expected.values():
            for row in queue.rows:
                for key in {row["properties"].get("UNIQ_KEY"), *(row["keys"] or "").split()} - {None}:
                    found = store.query(row["topic"], key, max_messages=1000)
                    assert row["physicalOffset"] in [message.physical_offset for message in found]
        store.create_topic("ours", 1)
        topic, queue_id = min((name for name in expected if name[0] not in NOT_FOR_PUTTING), default=("ours", 0))
        result = store.put(Message(topic, b"ours", queue_id=queue_id))
        assert result.queue_offset == (expected[topic, queue_id].maximum if topic != "ours" else 0)
        assert store.get_message("g", topic, queue_id, result.queue_offset).messages[0].body == b"ours"
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.max_offset(topic, queue_id) == result.queue_offset + 1
    assert not (path / "abort").exists()


def codes(path: Path) -> list[int]:
    """Return the tags codes of the delayed messages' entries."""
    return [int(code) for file in delays(path) for code in entries(file)["tags_code"][entries(file)["size"] > 0]]


def delays(path: Path) -> list[Path]:
    return sorted(file for file in (path / "consumequeue" / SCHEDULE_TOPIC).rglob("*") if file.is_file())


def entries(file: Path) -> Entries:
    return np.frombuffer(file.read_bytes(), CQ_ENTRY)


@pytest.mark.parametrize("use", [lambda path, config: MessageStore.open(path, config=config).close(), repair])
@pytest.mark.parametrize("change", [as_it_is, without_checkpoint, killed])
def test_delivery_times_are_the_brokers(
    tmp_path: Path, change: Callable[[Path], None], use: Callable[[Path, StoreConfig], None]
) -> None:
    """`messageDelayLevel` maps levels to delays; a missing entry gets RocketMQ's default."""
    path, config = shutil.copytree(GOLDEN / "delayed-5.3", tmp_path / "mq"), index_config("delayed-5.3")
    usual = codes(path)
    assert len(usual) > 20
    for file in delays(path):
        own = entries(file).copy()
        own["tags_code"][own["size"] > 0] += 7000
        file.write_bytes(own.tobytes())
    expected = [code + 7000 for code in usual]
    change(path)
    assert verify(path, config=config).findings == []
    use(path, config)
    assert codes(path) == expected
    assert verify(path, config=config).findings == []
    damaged = entries(delays(path)[0]).copy()
    damaged["tags_code"][0] = 5
    damaged["tags_code"][1] = 1 << 60
    delays(path)[0].write_bytes(damaged.tobytes())
    (finding,) = verify(path, config=config).findings
    assert finding.what.startswith("2 entries are not what their records say")
    repair(path, config)
    assert codes(path) == [*usual[:2], *expected[2:]]


@pytest.mark.parametrize("name", ["clean", "crashed"])
def test_end_of_the_log_is_the_brokers(name: str) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as reader:
        ends = [row["physicalOffset"] for queue in seen.golden(GOLDEN / f"{name}.jsonl").values() for row in queue.rows]
        assert reader.confirm_offset > max(ends)
        assert reader.wait(reader.confirm_offset, 0.01) == reader.confirm_offset
