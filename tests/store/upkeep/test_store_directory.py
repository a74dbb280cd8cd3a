from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store import ConfigError, CorruptSegment, Message, MessageStore, NotAStore, OffsetLost, StoreConfig
from store.format.layout import segment_name
from store.upkeep.store_directory import StoreDirectory

SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200)


def listing(path: Path) -> list[str]:
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


@pytest.mark.parametrize("kind", ["missing", "empty", "other files"])
def test_reader_needs_a_store(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mq"
    if kind != "missing":
        path.mkdir()
    if kind == "other files":
        (path / "notes.txt").write_text("mine")
    what = "does not exist" if kind == "missing" else "is no store"
    before = listing(tmp_path)
    for options in ({"read_only": True}, {"create": False}):
        with pytest.raises(NotAStore, match=rf"{path}: {what}\. Create a store: pyspark-mq topic create"):
            MessageStore.open(path, **options)
    assert listing(tmp_path) == before


def test_writer_refuses_a_directory_with_other_files(tmp_path: Path) -> None:
    for name in ("d.txt", "c.txt", "b.txt", "a.txt"):
        (tmp_path / name).touch()
    before = listing(tmp_path)
    with pytest.raises(
        NotAStore, match=r"this directory has other files \(a.txt, b.txt, c.txt, ...\) and no store. Name a new or"
    ):
        MessageStore.open(tmp_path)
    assert listing(tmp_path) == before


def test_file_is_refused_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAStore, match=r"file: this is a file. Name a directory"):
        MessageStore.open(tmp_path / "file")


def test_config_folder_may_exist_first(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/store.conf").write_text("mappedFileSizeCommitLog=8192\n")
    with MessageStore.open(tmp_path) as store:
        assert store.config.mappedFileSizeCommitLog == 8192


def test_sizes_are_set_by_the_first_opening(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, config=SMALL).close()
    for options in ({}, {"config": StoreConfig(maxMessageSize=10)}, {"read_only": True}):
        with MessageStore.open(tmp_path, **options) as store:
            assert store.config.mappedFileSizeCommitLog == 4096
            assert store.config.mappedFileSizeConsumeQueue == 200
    with MessageStore.open(tmp_path, config=StoreConfig(maxMessageSize=10)) as store:
        assert store.config.maxMessageSize == 10


def test_concurrent_creation_with_other_sizes_is_refused(tmp_path: Path) -> None:
    directory = StoreDirectory.at(tmp_path)
    directory.create()
    small = directory.configuration(SMALL)
    with MessageStore.open(tmp_path) as first:
        first.create_topic("t", 1)
        first.put_many([Message("t", bytes(100)) for _ in range(100)])
        with pytest.raises(
            ConfigError, match=r"store.conf: mappedFileSizeCommitLog=1073741824, not 4096, because another pro"
        ):
            MessageStore(directory, small, read_only=False)
        with MessageStore.open(tmp_path, config=SMALL) as second:
            assert second.put(Message("t", b"x")).queue_offset == 100
        assert first.get_message("g", "t", 0, 100).messages[0].body == b"x"


def test_store_created_concurrently_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Path.iterdir

    def list_later(path: Path) -> Iterator[Path]:
        (path / "commitlog").mkdir(exist_ok=True)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", list_later)
    with MessageStore.open(tmp_path) as store:
        assert store.create_topic("t", 1) == 1


def test_missing_sizes_are_added_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    conf = tmp_path / "config/store.conf"
    conf.write_text("# mine\nmappedFileSizeCommitLog=8192\nlistenPort=7")
    with MessageStore.open(tmp_path, config=replace(SMALL, maxIndexNum=50)) as store:
        assert store.config.mappedFileSizeCommitLog == 8192
    assert conf.read_text() == (
        "# mine\nmappedFileSizeCommitLog=8192\nlistenPort=7\n"
        "mappedFileSizeConsumeQueue=200\nmaxHashSlotNum=5000000\nmaxIndexNum=50\n"
    )
    with MessageStore.open(tmp_path) as store:
        assert store.config == StoreConfig(
            mappedFileSizeCommitLog=8192, mappedFileSizeConsumeQueue=200, maxIndexNum=50, listenPort=7
        )


@pytest.mark.parametrize("left", [b"", b"\0" * 700, b"\n", None])
def test_empty_or_lost_settings_are_a_warning(three_segments: Path, left: bytes | None) -> None:
    conf = three_segments / "config/store.conf"
    what = "lost" if left is None else "empty, perhaps after a crash"
    conf.unlink() if left is None else conf.write_bytes(left)
    warning = rf"store.conf: {what}. Sizes are taken from the store's files, other settings have their defaults"
    with pytest.warns(UserWarning, match=warning):
        reader = MessageStore.open(three_segments, read_only=True)
    with reader:
        assert reader.offsets("t", 0) == (0, 9)
        assert (reader.config.mappedFileSizeCommitLog, reader.config.mappedFileSizeConsumeQueue) == (4096, 200)
    assert (conf.read_bytes() if conf.exists() else None) == left
    with pytest.warns(UserWarning, match=warning):
        store = MessageStore.open(three_segments)
    with store:
        assert store.put(Message("t", b"x")).queue_offset == 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert StoreConfig.load(conf) == replace(
            StoreConfig(), mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200
        )
        MessageStore.open(three_segments).close()


def test_settings_of_a_later_version_are_kept(tmp_path: Path) -> None:
    MessageStore.open(tmp_path, config=SMALL).close()
    conf = tmp_path / "config/store.conf"
    conf.write_text(conf.read_text() + "invented=later\n")
    with pytest.warns(UserWarning, match=r"store\.conf: ignored, because this package has no such settings: invented"):
        MessageStore.open(tmp_path).close()
    assert conf.read_text().endswith("invented=later\n")


def test_abort_exists_while_a_writer_is_open(tmp_path: Path) -> None:
    abort = tmp_path / "abort"
    with MessageStore.open(tmp_path):
        assert abort.read_text() == str(os.getpid())
        with MessageStore.open(tmp_path), MessageStore.open(tmp_path, read_only=True):
            pass
        assert abort.exists()
    assert not abort.exists()
    with MessageStore.open(tmp_path, read_only=True):
        assert not abort.exists()


def test_reader_changes_nothing(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t")
        store.put(Message("t", b"x"))
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in listing(tmp_path)}
    with MessageStore.open(tmp_path, read_only=True) as reader:
        assert reader.topics() == {"t": 4}
        assert len(reader.get_message("g", "t", 0, 0).messages) == 1
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in listing(tmp_path)} == before


@pytest.fixture
def three_segments(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=SMALL) as store:
        store.create_topic("t", 1)
        for number in range(9):
            store.put(Message("t", bytes([number]) * 1000))
        assert store.confirm_offset > 2 * 4096
    return tmp_path


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/t/0"])
def test_truncated_segment_is_an_error(three_segments: Path, folder: str) -> None:
    file = three_segments / folder / segment_name(0)
    os.truncate(file, 100)
    with (
        MessageStore.open(three_segments, read_only=True) as reader,
        pytest.raises(CorruptSegment, match=rf"{file}: 100 bytes, but segments of this store have \d+\. Restore"),
    ):
        list(reader.scan("t", 0, 0, 9))


def test_file_with_a_wrong_name_is_an_error(three_segments: Path) -> None:
    (three_segments / "commitlog/copy of a segment").write_bytes(bytes(4096))
    with (
        MessageStore.open(three_segments, read_only=True) as reader,
        pytest.raises(
            CorruptSegment, match=r"commitlog/copy of a segment: this is not the name of a segment of 4096 bytes"
        ),
    ):
        reader.offsets("t", 0)


def test_segment_missing_in_the_middle_is_an_error(three_segments: Path) -> None:
    file = three_segments / "commitlog" / segment_name(4096)
    file.unlink()
    with MessageStore.open(three_segments, read_only=True) as reader:
        assert sum(batch.num_rows for batch in reader.scan("t", 0, 0, 3)) == 3
        assert sum(batch.num_rows for batch in reader.scan("t", 0, 6, 9)) == 3
        with pytest.raises(
            OffsetLost, match=rf"{file}: this segment is missing. .* bytes 4096 .* restore a lost file from a copy"
        ):
            list(reader.scan("t", 0, 0, 9))
    (three_segments / "watermark").unlink()
    with pytest.raises(
        CorruptSegment, match=r"commitlog: the file of bytes 4096 to 8192 is missing. Restore the missing"
    ):
        MessageStore.open(three_segments)


def test_local_urls_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in (f"file://{tmp_path}/store", f"file:{tmp_path}/store", f"file://localhost{tmp_path}/store/"):
        assert StoreDirectory.at(text).root == tmp_path / "store"
    for url in ("s3://bucket/store", "hdfs://name/store"):
        with pytest.raises(NotAStore, match=rf"{url}: a store must be on a local disk, .*Copy the store"):
            StoreDirectory.at(url)
    with pytest.raises(
        NotAStore, match=r"file://tmp/store: a store must be on .* local directory begins with file:///"
    ):
        StoreDirectory.at("file://tmp/store")


def test_paths_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("store", "a::b", "a b%20c#d?e", "x:y"):
        assert StoreDirectory.at(name).root == tmp_path / name
        assert StoreDirectory.at(tmp_path / name).root == tmp_path / name
        assert StoreDirectory.at(os.fsencode(name)).root == tmp_path / name  # type: ignore[arg-type]
    assert StoreDirectory.at("~/store").root == Path("/home/me/store")
    with pytest.raises(NotAStore, match="a path must not have a zero byte"):
        StoreDirectory.at("a\0b")
