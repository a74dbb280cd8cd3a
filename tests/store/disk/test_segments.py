from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import CorruptSegment, OffsetLost, ReadOnlyStore, StoreFull
from store.disk.segments import Segments
from store.format.layout import PREALLOCATE_FILE, segment_name


def segments(root: Path, size: int = 100, *, writable: bool = True) -> Segments:
    return Segments(root, "log", size, writable=writable)


def test_first_write_creates_a_complete_segment(tmp_path: Path) -> None:
    log = segments(tmp_path)
    log.write(230, b"abc")
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == [segment_name(200)]
    assert (tmp_path / "log" / segment_name(200)).stat().st_size == 100
    assert not (tmp_path / PREALLOCATE_FILE).exists()
    assert log.read(229, 5) == b"\0abc\0"
    assert log.view(230, 3).tobytes() == b"abc"
    assert log.exists(299)
    assert not log.exists(300)


def test_segments_of_another_writer_are_found(tmp_path: Path) -> None:
    reader, writer = segments(tmp_path, writable=False), segments(tmp_path)
    assert reader.starts() == []
    writer.write(0, b"x")
    assert reader.starts() == [0]
    writer.write(1, b"y")
    assert reader.read(0, 2) == reader.view(0, 2).tobytes() == b"xy"


def test_reader_learns_the_size_from_the_files(tmp_path: Path) -> None:
    reader, writer = Segments(tmp_path, "log", None, writable=False), segments(tmp_path)
    assert (reader.starts(), reader.size, reader.exists(150)) == ([], 0, False)
    with pytest.raises(OffsetLost):
        reader.read(150, 1)
    for start in (100, 200, 300):
        writer.write(start, b"%d" % start)
    assert reader.read(200, 3) == b"200"
    assert (reader.starts(), reader.size) == ([100, 200, 300], 100)


def test_replaced_file_is_read_if_current_is_required(tmp_path: Path) -> None:
    reader, writer = segments(tmp_path, writable=False), segments(tmp_path)
    writer.write(0, b"old")
    writer.write(100, b"next")
    assert reader.read(0, 3) == b"old"
    writer.delete(0)
    writer.write(0, b"new")
    assert reader.read(0, 3) == b"old"
    assert reader.read(0, 3, current=True) == b"new"
    assert reader.read(100, 4, current=True) == b"next"


def test_leftovers_of_a_dead_creator_are_not_used(tmp_path: Path) -> None:
    (tmp_path / PREALLOCATE_FILE).write_bytes(b"x" * 150)
    log = segments(tmp_path)
    log.write(10, b"y")
    assert log.read(0, 100) == b"y".rjust(11, b"\0").ljust(100, b"\0")


def test_new_segment_has_its_first_bytes_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ counts the first entry of a queue's last file even if it is zero, as a machine crash may leave it."""
    sync, rename, steps = os.fdatasync, os.rename, list[tuple[str, bytes]]()

    def record(name: str, path: Path) -> None:
        steps.append((name, path.read_bytes()))

    monkeypatch.setattr(os, "fdatasync", lambda fd: (record("on the device", tmp_path / PREALLOCATE_FILE), sync(fd)))
    monkeypatch.setattr(os, "rename", lambda old, new: (record("named", Path(old)), rename(old, new)))
    segments(tmp_path).write(120, b"first")
    content = b"first".rjust(25, b"\0").ljust(100, b"\0")
    assert steps == [("on the device", content), ("named", content)]
    assert segments(tmp_path).read(100, 100) == content


def test_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_source: object, _target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(StoreFull, match=segment_name(100)):
        segments(tmp_path).write(150, b"x")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of descriptors are looked up in /proc")
def test_names_of_a_new_segment_and_its_folders_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, flushed = tmp_path / "mq", list[str]()
    root.mkdir()
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    Segments(root, "consumequeue/t/0", 100, writable=True).write(0, b"x")
    assert flushed == [str(root / folder) for folder in ("consumequeue/t/0", "consumequeue/t", "consumequeue", "")]


def test_reader_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(ReadOnlyStore, match="read_only=True"):
        segments(tmp_path, writable=False).write(0, b"x")
    assert not (tmp_path / "log").exists()


def test_missing_segment_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        OffsetLost, match=rf"{segment_name(100)}: this segment is missing. Retention deleted its bytes 100 to 200"
    ):
        segments(tmp_path).read(150, 1)


@pytest.mark.parametrize("name", ["0", segment_name(150), "copy", segment_name(100) + ".bak", "\u0660" * 20, "x" * 20])
def test_file_with_a_wrong_name_is_an_error(tmp_path: Path, name: str) -> None:
    log = segments(tmp_path)
    log.write(0, b"x")
    (tmp_path / "log" / name).write_bytes(bytes(100))
    with pytest.raises(CorruptSegment, match=r"not the name of a segment of 100 bytes .*\. Move the file out"):
        log.starts()


def test_folders_are_skipped(tmp_path: Path) -> None:
    log = segments(tmp_path)
    log.write(0, b"x")
    (tmp_path / "log" / "lost+found").mkdir()
    assert log.check() == [0]


@pytest.mark.parametrize("length", [1, 99, 101])
def test_file_of_a_wrong_length_is_an_error(tmp_path: Path, length: int) -> None:
    segments(tmp_path).write(0, b"x")
    os.truncate(tmp_path / "log" / segment_name(0), length)
    message = rf"{segment_name(0)}: {length} bytes, but segments of this store have 100\. Restore the file"
    with pytest.raises(CorruptSegment, match=message):
        segments(tmp_path).starts()
    with pytest.raises(CorruptSegment, match=message):
        segments(tmp_path).read(0, 1)


def test_empty_last_file_is_skipped(tmp_path: Path) -> None:
    log = segments(tmp_path)
    log.write(0, b"x")
    (tmp_path / "log" / segment_name(100)).touch()
    assert log.check() == [0]
    assert not log.exists(100)
    log.write(100, b"y")
    assert log.check() == [0, 100]
    assert log.read(100, 1) == b"y"


def test_segment_missing_in_the_middle_is_an_error(tmp_path: Path) -> None:
    log = segments(tmp_path)
    for start in (100, 200, 500):
        log.write(start, b"x")
    assert log.starts() == [100, 200, 500]
    with pytest.raises(CorruptSegment, match=r"the file of bytes 300 to 500 is missing\. Restore the missing segments"):
        log.check()


@settings(deadline=None)
@given(data=st.data())
def test_zero_clears_exactly_the_range(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    size = 3 * 4096 + 40
    log = segments(tmp_path_factory.mktemp("zero"), size)
    content, filler = bytearray(2 * size), data.draw(st.sampled_from((b"\7", b" ", b"X")))
    for _ in range(data.draw(st.integers(0, 4))):
        at, length = data.draw(st.integers(0, 2 * size - 1)), data.draw(st.integers(1, 5000))
        length = min(length, size - at % size)
        log.write(at, filler * length)
        content[at : at + length] = filler * length
    begin, end = sorted(data.draw(st.tuples(st.integers(0, 2 * size), st.integers(0, 2 * size))))
    log.zero(begin, end)
    content[begin:end] = bytes(end - begin)
    for start in log.starts():
        assert log.read(start, size) == content[start : start + size]


@pytest.mark.parametrize(("begin", "end"), [(0, 200), (5, 195), (99, 101), (100, 200), (0, 1), (150, 150), (50, 400)])
def test_zero_over_full_segments(tmp_path: Path, begin: int, end: int) -> None:
    log = segments(tmp_path)
    for start in (0, 100):
        log.write(start, b"x" * 100)
    log.zero(begin, end)
    stop = min(end, 200)
    assert log.read(0, 100) + log.read(100, 100) == b"x" * begin + bytes(stop - begin) + b"x" * (200 - stop)


def test_zeroing_keeps_holes(tmp_path: Path) -> None:
    log = segments(tmp_path, 1 << 20)
    log.write(5000, b"x")
    path = tmp_path / "log" / segment_name(0)
    blocks = path.stat().st_blocks
    log.zero(0, 1 << 20)
    assert path.stat().st_blocks <= blocks
    assert path.read_bytes() == bytes(1 << 20)


def test_only_files_of_the_range_are_replaced(tmp_path: Path) -> None:
    size = 1 << 20
    log = segments(tmp_path, size)
    log.write(5000, b"before")
    log.write(40_000, b"in the first" * 2000)
    log.write(size + 100, b"in the second" * 10)
    log.write(2 * size, b"in the third")
    log.write(3 * size, b"in the fourth")
    paths = sorted((tmp_path / "log").iterdir())
    before = [(path.read_bytes(), path.stat().st_blocks) for path in paths]
    inodes = [path.stat().st_ino for path in paths]
    held = log.view(size, size)
    log.rewrite(45_000, size + 150)
    assert [(path.read_bytes(), path.stat().st_blocks) for path in paths] == before
    stay = [path.stat().st_ino == inode for path, inode in zip(paths, inodes, strict=True)]
    assert stay == [False, False, True, True]
    log.rewrite(2 * size + 12, 3 * size)
    assert paths[2].stat().st_ino == inodes[2], "the file has no bytes in that range"
    log.write(3 * size + 4096, bytes(4096))
    log.rewrite(3 * size + 13, 4 * size)
    assert paths[3].stat().st_ino != inodes[3], "a page of zeros may be a hole on the device"
    log.write(size + 230, b"and more")
    assert paths[1].read_bytes()[100:238] == b"in the second" * 10 + b"and more"
    assert held[100:238].tobytes() == b"in the second" * 10 + bytes(8)


def test_flushing_names_of_a_missing_folder_does_nothing(tmp_path: Path) -> None:
    segments(tmp_path).flush_names()


def test_flush_of_ranges_with_and_without_files(tmp_path: Path) -> None:
    log = segments(tmp_path)
    log.write(100, b"x")
    log.flush(0, 0)
    log.flush(50, 350)


def test_segment_in_use_survives_its_deletion(tmp_path: Path) -> None:
    log = segments(tmp_path)
    log.write(0, b"abc")
    view = log.view(0, 3)
    (tmp_path / "log" / segment_name(0)).unlink()
    for start in range(100, 2000, 100):
        log.write(start, b"x")
        log.view(start, 1)
    assert view.tobytes() == b"abc"
    with pytest.raises(OffsetLost):
        log.read(0, 1)


def test_deleted_segment_is_readable_only_where_it_is_open(tmp_path: Path) -> None:
    log, reader = segments(tmp_path), segments(tmp_path, writable=False)
    log.write(0, b"a" * 100)
    log.write(100, b"b" * 100)
    assert reader.starts() == [0, 100]
    view = reader.view(0, 100)
    assert 100 <= log.delete(0) <= 4096
    assert view.tobytes() == reader.read(0, 100) == b"a" * 100
    assert reader.starts() == log.starts() == [100]
    for each in (log, reader):
        with pytest.raises(OffsetLost):
            each.read(0, 100)
    assert view.tobytes() == b"a" * 100


def test_first_byte_follows_deletions_of_another_process(tmp_path: Path) -> None:
    log, other = segments(tmp_path), segments(tmp_path)
    assert other.first() == 0
    for start in (0, 100, 200, 300):
        log.write(start, b"x")
    assert other.first() == 0
    for start in (0, 100):
        log.delete(start)
        assert other.first() == start + 100
    log.delete(300)
    assert other.first() == 200
    log.delete(200)
    assert other.first() == 0
    log.write(500, b"x")
    assert other.first() == 500


def test_file_opened_while_another_thread_drops_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, close = segments(tmp_path), segments(tmp_path), os.close
    segments(tmp_path).write(0, b"x")
    gc.collect()
    read = []

    def close_while_another_opens(descriptor: int) -> None:
        monkeypatch.undo()
        close(descriptor)
        read.append(second.read(0, 1))

    monkeypatch.setattr(os, "close", close_while_another_opens)
    assert first.read(0, 1) == b"x"
    first.starts()  # sees the directory for the first time, so drops open files
    assert read == [b"x"]


def test_listing_closes_deleted_files(tmp_path: Path) -> None:
    log, reader = segments(tmp_path), segments(tmp_path, writable=False)
    for start in (0, 100):
        log.write(start, b"x")
        assert reader.view(start, 1).tobytes() == b"x"
    log.delete(0)
    for each in (log, reader):
        each.starts()
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists() or link.is_symlink()]
    assert not [target for target in held if "(deleted)" in target and str(tmp_path) in target]


def test_segment_that_shrinks_while_open_is_an_error(tmp_path: Path) -> None:
    """Reading the missing pages of a mapping would kill the process."""
    log = segments(tmp_path, size=3 * 4096)
    log.write(0, b"x" * 3 * 4096)
    assert log.view(0, 3 * 4096)[-1] == ord("x")
    os.truncate(tmp_path / "log" / segment_name(0), 4096)
    for read in (log.view, log.read):
        with pytest.raises(CorruptSegment, match=r"0+: 4096 bytes, but segments of this store have 12288\. Restore"):
            read(4096, 10)


@pytest.mark.parametrize("at", [0, 1, 4095, 4096, 100_000, 2**20 - 1, 2**20, 2**21 - 1, 2**21 + 5])
def test_first_nonzero_byte_is_found(tmp_path: Path, at: int) -> None:
    log = segments(tmp_path, size=1 << 21)
    for start in (0, 1 << 21):
        log.write(start + 50_000, bytes(100_000))
    assert log.first_not_zero(0, 1 << 23) is None
    log.write(at, b"x")
    assert log.first_not_zero(0, 1 << 23) == log.first_not_zero(at, at + 1) == at
    assert log.first_not_zero(0, at) is None
    assert log.first_not_zero(at + 1, 1 << 23) is None


def test_impossible_end_is_handled_by_the_existing_files(tmp_path: Path) -> None:
    """An announced end has a checksum of one byte, so one in 256 damaged ends passes."""
    log = segments(tmp_path)
    for start in (0, 100, 300):
        log.write(start, b"x")
    far = 1 << 55
    log.flush(0, far)
    log.rewrite(0, far)
    log.zero(100, far)
    assert log.first_not_zero(0, far) == 0
    assert log.first_not_zero(1, far) is None


def test_empty_file_before_others_is_an_error(tmp_path: Path) -> None:
    segments(tmp_path).write(100, b"x")
    (tmp_path / "log" / segment_name(0)).touch()
    for size in (100, None):
        with pytest.raises(CorruptSegment, match="0 bytes, but segments of this store have 100"):
            Segments(tmp_path, "log", size, writable=False).starts()


def test_several_empty_files_alone_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    for start in (0, 100):
        (tmp_path / "log" / segment_name(start)).touch()
    with pytest.raises(CorruptSegment, match=f"{segment_name(0)}: 0 bytes, but segments of this store have more"):
        Segments(tmp_path, "log", None, writable=False).starts()
