from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from store import (
    Boundary,
    CorruptRecord,
    InvalidMessageId,
    Message,
    MessageStore,
    OffsetNotYet,
    StoreConfig,
    UnknownTopic,
)
from store.format.layout import PUBLISHED_END, RECORD_HEADER, field_offset, segment_name
from store.upkeep.verify import repair

SIZES = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 2000}
SMALL = StoreConfig(**SIZES, maxHashSlotNum=100, maxIndexNum=40, flushIntervalCommitLog=3_600_000)


def filled(path: Path, config: StoreConfig = SMALL) -> MessageStore:
    """Create a store of 100 messages with keys `k0` to `k99`; each tenth also has the key `ten`."""
    store = MessageStore.open(path, config=config)
    store.create_topic("t", 2)
    store.put_many([message(n) for n in range(100)])
    return store


def message(n: int) -> Message:
    return Message("t", f"{n}".encode(), keys=(f"k{n}", *["ten"] * (n % 10 == 0)))


def found(store: MessageStore, key: str, **bounds: int) -> list[int]:
    return [int(message.body) for message in store.query("t", key, **bounds)]


def check(store: MessageStore, numbers: range) -> None:
    for n in numbers:
        assert found(store, f"k{n}") == [n]
    assert found(store, "ten") == [n for n in numbers if n % 10 == 0]
    assert found(store, f"k{numbers.stop}") == []


def test_keys_of_every_kind_of_append_are_found(tmp_path: Path) -> None:
    table = pa.table(
        {
            "body": ["0", "1", "2", "3"],
            "keys": pa.array([["a", "b"], [], None, ["a"]], pa.list_(pa.string())),
            "properties": pa.array(
                [[("UNIQ_KEY", "U0")], [("KEYS", "a  c")], [], [("UNIQ_KEY", "U3")]], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 2)
        store.create_topic("other", 1)
        store.append_table("t", table)
        store.append_table("t", pa.table({"body": ["4", "5"], "keys": ["a d", None]}))
        store.put(Message("t", b"6", keys=("a", "e"), properties={"UNIQ_KEY": "U6"}))
        store.put_many([Message("t", b"7", keys=("a",)), Message("other", b"8", keys=("a",))])
        with MessageStore.open(tmp_path, read_only=True) as reader:
            for each in (store, reader):
                assert found(each, "a") == [0, 1, 3, 4, 6, 7]
                assert found(each, "a", max_messages=2) == [6, 7]
                for key, number in {"b": 0, "c": 1, "d": 4, "e": 6, "U0": 0, "U3": 3, "U6": 6}.items():
                    assert found(each, key) == [number]
                assert found(each, "f") == []
                with pytest.raises(UnknownTopic):
                    each.query("nobody", "a")


def test_lookup_by_times_and_ids(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        last = store.query("t", "ten")[-1]
        assert found(store, "ten", end=last.store_timestamp - 1) == []
        assert found(store, "ten", begin=last.store_timestamp + 1) == []
        assert store.message_by_id(last.msg_id) == last
        with pytest.raises(InvalidMessageId):
            store.message_by_id("k3")
        with pytest.raises(OffsetNotYet):
            store.message_by_id(f"{last.msg_id[:16]}{store.confirm_offset:016X}")
        assert store.offset_by_time("t", 0, last.store_timestamp) == 0
        assert store.offset_by_time("t", 0, last.store_timestamp, Boundary.UPPER) == 49
        assert store.offset_by_time("t", 0, last.store_timestamp + 1) == 50


def test_lookup_among_many_messages(tmp_path: Path) -> None:
    count = 200_000
    keys = [f"customer-{n % 50_000}" for n in range(count)]
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 4)
        store.append_table("t", pa.table({"body": [f"{n}" for n in range(count)], "keys": keys}))
        for n in (0, 1, 777, 49_999):
            assert found(store, f"customer-{n}") == [n, n + 50_000, n + 100_000, n + 150_000]


def test_lookup_without_the_index(tmp_path: Path) -> None:
    with filled(tmp_path, StoreConfig(**SIZES, messageIndexEnable=False)) as store:
        assert found(store, "k1") == []
    assert not (tmp_path / "index").exists()
    repair_with_index(tmp_path)
    with MessageStore.open(tmp_path) as store:
        check(store, range(100))


def repair_with_index(path: Path) -> None:
    conf = path / "config" / "store.conf"
    conf.write_text(conf.read_text().replace("messageIndexEnable=false", "messageIndexEnable=true"))
    repair(path)


@pytest.mark.parametrize("crash", ["machine", "boot", "no watermark", "no queues", "index lost"])
def test_recovery_restores_the_index(tmp_path: Path, crash: str) -> None:
    """A copy of a live writer's directory is the state after a crash. The last index file may be lost completely."""
    store = filled(tmp_path / "live")
    for n in range(100, 120):
        store.put(message(n))
    shutil.copytree(tmp_path / "live", tmp_path / "mq")
    store.close()
    path = tmp_path / "mq"
    files = sorted((path / "index").iterdir())
    assert len(files) > 2
    if crash == "no watermark":
        (path / "watermark").unlink()
    elif crash == "no queues":
        shutil.rmtree(path / "consumequeue")
    else:
        another_boot(path)
    if crash == "machine":
        files[-1].write_bytes(bytes(files[-1].stat().st_size))
    if crash == "index lost":
        shutil.rmtree(path / "index")
    with MessageStore.open(path) as recovered:
        check(recovered, range(120))
        recovered.put(message(120))
        check(recovered, range(121))


def test_clean_close_keeps_the_index(tmp_path: Path) -> None:
    filled(tmp_path).close()
    files = {file: file.stat().st_ino for file in (tmp_path / "index").iterdir()}
    another_boot(tmp_path)
    with MessageStore.open(tmp_path) as store:
        store.put(message(100))
        check(store, range(101))
    assert {file: file.stat().st_ino for file in (tmp_path / "index").iterdir()} == files


def another_boot(path: Path) -> None:
    with (path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, "boot_id"))
        file.write(b"an earlier boot".ljust(40, b"\0"))


def test_records_cut_off_the_log_are_not_indexed(tmp_path: Path) -> None:
    store = filled(tmp_path / "live")
    store.flush()
    for n in range(100, 300):
        store.put(message(n))
    shutil.copytree(tmp_path / "live", tmp_path / "mq")
    end = max(message.physical_offset for message in store.query("t", "k150"))
    store.close()
    path = tmp_path / "mq"
    log = path / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    log.write_bytes(data[:end] + bytes(len(data) - end))
    another_boot(path)
    with MessageStore.open(path) as recovered:
        check(recovered, range(150))
        for n in range(150, 200):
            recovered.put(message(n))
        check(recovered, range(200))


@pytest.mark.parametrize("repairs", [False, True])
def test_lost_index_is_rebuilt(tmp_path: Path, repairs: bool) -> None:
    filled(tmp_path).close()
    for file in (tmp_path / "index").iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    if repairs:
        repair(tmp_path)
    with MessageStore.open(tmp_path) as store:
        check(store, range(100))


def test_retention_deletes_index_files(tmp_path: Path) -> None:
    with filled(tmp_path) as store:
        for n in range(100, 2000):
            store.put(message(n))
        files = len(list((tmp_path / "index").iterdir()))
        step = store.clean(forced=True)
        assert 0 < len(step.index) == files - len(list((tmp_path / "index").iterdir()))
        assert found(store, "k1") == []
        assert found(store, "k1999") == [1999]
        assert found(store, "ten", max_messages=2) == [1980, 1990]


@pytest.mark.parametrize("field", ["queue_id", "queue_offset"])
def test_record_unknown_to_its_queue_is_damage(tmp_path: Path, field: str) -> None:
    with filled(tmp_path / "mq") as store:
        expected = store.query("t", "k7")[0]
    segment = tmp_path / "mq" / "commitlog" / segment_name(0)
    data = bytearray(segment.read_bytes())
    data[expected.physical_offset + field_offset(RECORD_HEADER, field) + RECORD_HEADER[field].itemsize - 1] ^= 1
    segment.write_bytes(data)
    with MessageStore.open(tmp_path / "mq", read_only=True) as store:
        for find in (lambda: store.query("t", "k7"), lambda: store.message_by_id(expected.msg_id)):
            with pytest.raises(CorruptRecord, match="but that queue has another record there"):
                find()
        assert store.query("t", "k8")
