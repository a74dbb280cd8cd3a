from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig, UnsupportedStore, UnsupportedWarning
from store.disk import unsupported
from store.upkeep.verify import repair, verify

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=10, maxIndexNum=20)
GOLDEN = Path(__file__).parents[2] / "golden"


def unpacked(name: str, to: Path) -> Path:
    shutil.unpack_archive(GOLDEN / f"{name}.tar.gz", to)
    return to / "store"


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in root.rglob("*")
    }


def read(path: Path) -> object:
    return MessageStore.open(path, read_only=True)


def write(path: Path) -> object:
    return MessageStore.open(path)


def write_without_making(path: Path) -> object:
    return MessageStore.open(path, create=False)


def ours(path: Path) -> Path:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("orders", 1)
        store.put(Message("orders", b"first"))
    return path


def dledger(path: Path) -> Path:
    (ours(path) / "commitlog").rename(path / "dledger-broker-a")
    return path


def log_elsewhere(path: Path) -> Path:
    (ours(path) / "commitlog").rename(path.with_name("other-disk"))
    return path


def rocksdb(path: Path) -> Path:
    return unpacked("rocksdb-5.4", path)


def newer_rocksdb(path: Path) -> Path:
    root = unpacked("rocksdb-5.4", path)
    (root / "consumequeue").rename(root / "consumequeue_rocksdb")
    return root


def double_write(path: Path) -> Path:
    folder = ours(path) / "consumequeue_rocksdb"
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000005\n")
    return path


def rocksdb_settings(path: Path) -> Path:
    folder = ours(path) / "config" / "topics"
    folder.mkdir()
    (folder / "CURRENT").write_text("MANIFEST-000005\n")
    return path


def controller_mode(path: Path) -> Path:
    (ours(path) / "epochFileCheckpoint").write_text('{"1": 0}')
    return path


def batch_queues(path: Path) -> Path:
    return unpacked("batchcq-compaction-5.4", path)


Make = Callable[[Path], Path]
NOT_READ = [
    (dledger, "DLedger"),
    (rocksdb, "RocksDB"),
    (newer_rocksdb, "RocksDB"),
    (log_elsewhere, "storePathCommitLog"),
]
NOT_WRITTEN = [
    *NOT_READ,
    (double_write, "RocksDB"),
    (rocksdb_settings, "settings in RocksDB"),
    (controller_mode, "controller mode"),
    (batch_queues, "BatchCQ"),
]


@pytest.mark.parametrize(("make", "name"), NOT_READ)
@pytest.mark.parametrize("use", [read, verify])
def test_unsupported_directory_is_not_read(
    make: Make, name: str, use: Callable[[Path], object], tmp_path: Path
) -> None:
    path = make(tmp_path / "mq")
    with pytest.raises(UnsupportedStore, match=name):
        use(path)


@pytest.mark.parametrize(("make", "name"), NOT_WRITTEN)
@pytest.mark.parametrize("use", [write, write_without_making, repair])
def test_unsupported_directory_is_not_written(
    make: Make, name: str, use: Callable[[Path], object], tmp_path: Path
) -> None:
    path = make(tmp_path / "mq")
    before = digests(path)
    with pytest.raises(UnsupportedStore, match=name):
        use(path)
    assert digests(path) == before


@pytest.mark.parametrize("make", [double_write, rocksdb_settings, controller_mode])
def test_directory_that_is_only_readable_is_read(make: Make, tmp_path: Path) -> None:
    with warnings.catch_warnings(), MessageStore.open(make(tmp_path / "mq"), read_only=True) as store:
        warnings.simplefilter("error")
        assert [message.body for message in store.get_message("group", "orders", 0, 0).messages] == [b"first"]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    others = [place for place in ("/dev/shm", "/var/tmp", "/tmp") if os.stat(place).st_dev != tmp_path.stat().st_dev]
    if not others:
        pytest.skip("this machine has one file system for all")
    with tempfile.TemporaryDirectory(dir=others[0]) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_folder_on_another_file_system_is_read_only(tmp_path: Path, elsewhere: Path, name: str) -> None:
    path = ours(tmp_path / "mq")
    (path / "index").mkdir(exist_ok=True)
    shutil.move(path / name, elsewhere / name)
    (path / name).symlink_to(elsewhere / name)
    before = digests(path) | digests(elsewhere)
    for use in (write, write_without_making, repair):
        with pytest.raises(UnsupportedStore, match=f"another file system.*as {name} shows"):
            use(path)
    with MessageStore.open(path, read_only=True) as store:
        assert [message.body for message in store.get_message("group", "orders", 0, 0).messages] == [b"first"]
    assert digests(path) | digests(elsewhere) == before


def test_batch_queues_are_left_out_with_a_warning(tmp_path: Path) -> None:
    path = batch_queues(tmp_path)
    with pytest.warns(UnsupportedWarning, match=r"topics Bcq: batch queues.*left out|Cmp"):
        store = MessageStore.open(path, read_only=True)
    with store:
        assert "Simple" in store.topics()
        assert "Bcq" not in store.topics()
        with pytest.raises(UnsupportedStore, match="topic 'Bcq' has batch queues"):
            store.offsets("Bcq", 0)
        with pytest.raises(UnsupportedStore, match="topic 'Bcq' has batch queues"):
            list(store.scan("Bcq", 0, 0, 1))


@pytest.mark.filterwarnings("ignore::store.UnsupportedWarning")
def test_left_out_queues_and_tags_in_the_index_are_no_damage(tmp_path: Path) -> None:
    sizes = StoreConfig(maxHashSlotNum=1000, maxIndexNum=4000)
    assert verify(batch_queues(tmp_path), config=sizes).findings == []


def test_compacted_topics_are_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UnsupportedWarning, match=r"topics Cmp: shown with all messages"):
        MessageStore.open(batch_queues(tmp_path), read_only=True).close()


def test_static_topics_are_a_warning(tmp_path: Path) -> None:
    path = ours(tmp_path / "mq")
    mapping = {"topicQueueMappingInfoMap": {"orders": {"topic": "orders", "totalQueues": 8}}}
    (path / "config" / "topicQueueMapping.json").write_text(json.dumps(mapping))
    with pytest.warns(UnsupportedWarning, match=r"topics orders: static"):
        MessageStore.open(path, read_only=True).close()


def test_store_during_its_creation_is_not_unsupported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_a_queue = unsupported._queue_file

    def meanwhile(root: Path) -> Path | None:
        monkeypatch.undo()
        ours(root)
        return find_a_queue(root)

    monkeypatch.setattr(unsupported, "_queue_file", meanwhile)
    unsupported.refuse_kinds(tmp_path, writing=False)
    assert find_a_queue(tmp_path)
