from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from store import CorruptStore, Message, MessageStore, StoreClosed
from store.append.published_end import PublishedEnd, current_boot_id
from store.format.layout import PUBLISHED_END, PUBLISHED_END_FILE_BYTES, field_offset


@pytest.fixture
def published(tmp_path: Path) -> PublishedEnd:
    PublishedEnd.create(tmp_path, 100, store_timestamp=7)
    return PublishedEnd(tmp_path, writable=True)


def test_new_file_is_clean(published: PublishedEnd) -> None:
    assert published.confirm_offset == published.announced_end == published.flushed_offset == 100
    assert published.store_timestamp == 7
    assert published.same_boot
    assert published.path.stat().st_size == PUBLISHED_END_FILE_BYTES


def test_append_is_seen_by_a_reader(published: PublishedEnd) -> None:
    reader = PublishedEnd(published.path.parent, writable=False)
    published.announce(150, 9)
    assert (reader.confirm_offset, reader.announced_end, reader.store_timestamp) == (100, 150, 9)
    published.publish(150)
    assert reader.confirm_offset == 150
    published.mark_flushed(150)
    published.mark_flushed(120)
    assert reader.flushed_offset == 150
    published.flush()


def test_empty_log_has_no_time(tmp_path: Path) -> None:
    PublishedEnd.create(tmp_path, 0)
    assert PublishedEnd(tmp_path, writable=False).numbers == (0, 0, 0)


def test_recreated_file_is_the_one_that_readers_mapped(published: PublishedEnd) -> None:
    PublishedEnd.create(published.path.parent, 300)
    assert not published.is_replaced
    assert published.confirm_offset == published.flushed_offset == 300


def test_deleted_file_counts_as_replaced(published: PublishedEnd) -> None:
    published.path.unlink()
    assert published.is_replaced
    PublishedEnd.create(published.path.parent, 100)
    assert published.is_replaced


def test_closed_object_does_not_write(published: PublishedEnd) -> None:
    published.close()
    with pytest.raises(StoreClosed):
        published.publish(150)


def test_another_boot_is_detected(published: PublishedEnd) -> None:
    if not current_boot_id():
        pytest.skip("this system has no boot id")
    fields = np.frombuffer(bytearray(published.path.read_bytes()), PUBLISHED_END, 1)
    fields["boot_id"] = b"another"
    with published.path.open("r+b") as file:
        file.write(fields.tobytes())
    assert not published.same_boot


@pytest.mark.parametrize("size", [0, PUBLISHED_END.itemsize, PUBLISHED_END_FILE_BYTES + 1])
@pytest.mark.parametrize("read_only", [False, True])
def test_wrong_size_is_an_error(tmp_path: Path, size: int, read_only: bool) -> None:
    MessageStore.open(tmp_path).close()
    os.truncate(tmp_path / "watermark", size)
    with pytest.raises(CorruptStore, match=rf"watermark: {size} bytes, expected 4096\. Delete the file and open"):
        MessageStore.open(tmp_path, read_only=read_only)


@pytest.mark.parametrize("writable", [False, True])
def test_pipe_in_its_place_is_an_error(tmp_path: Path, writable: bool) -> None:
    os.mkfifo(tmp_path / "watermark")
    with pytest.raises(CorruptStore, match="watermark: 0 bytes, expected 4096"):
        PublishedEnd(tmp_path, writable=writable)


@pytest.mark.parametrize(("field", "value"), [("magic", b"NOTOURS!"), ("version", (1).to_bytes(8, "big"))])
@pytest.mark.parametrize("read_only", [False, True])
def test_wrong_magic_or_version_is_an_error(tmp_path: Path, field: str, value: bytes, read_only: bool) -> None:
    MessageStore.open(tmp_path).close()
    with (tmp_path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, field))
        file.write(value)
    with pytest.raises(CorruptStore, match=r"watermark: magic .* expected b'PYMQMARK' version 2\. .*delete the file"):
        MessageStore.open(tmp_path, read_only=read_only)


@pytest.mark.parametrize("field", ["flushed_offset", "store_timestamp", "announced_end", "confirm_offset"])
def test_flipped_bit_of_a_number_is_detected(published: PublishedEnd, field: str) -> None:
    start = field_offset(PUBLISHED_END, field)
    right = published.path.read_bytes()[start : start + 8]
    for bit in range(64):
        wrong = (int.from_bytes(right, "big") ^ 1 << bit).to_bytes(8, "big")
        with published.path.open("r+b") as file:
            file.seek(start)
            file.write(wrong)
        with pytest.raises(
            CorruptStore, match=f"watermark: {field} is 0x.* its checksum is wrong. Delete the file and open"
        ):
            getattr(published, field)


def test_flipped_bit_loses_no_message(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"x")] * 10)
    with (tmp_path / "watermark").open("r+b") as file:
        file.seek(field_offset(PUBLISHED_END, "confirm_offset") + 7)
        file.write(b"\0")
    for read_only in (True, False):
        with pytest.raises(CorruptStore, match="confirm_offset is 0x"):
            MessageStore.open(tmp_path, read_only=read_only)
    (tmp_path / "watermark").unlink()
    with MessageStore.open(tmp_path) as store:
        assert store.offsets("t", 0) == (0, 10)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PublishedEnd(tmp_path, writable=False)
