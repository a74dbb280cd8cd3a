from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from store import (
    ConfigError,
    CorruptSegment,
    InvalidArgument,
    Message,
    MessageStore,
    NoArchive,
    StoreConfig,
    StoreLocked,
    UnknownTopic,
)
from store.archive.archive_log import ArchiveAddress
from store.archive.catalog import METADATA
from store.archive.of_store import StoreArchive, alone, remembered
from store.client.log_kinds import address_at
from store.disk.queue_ends import QueueEnds
from store.format.layout import CONF_FILE, CQ_ENTRY, segment_name
from store.model.log_protocol import Queue
from store.read.published import PublishedQueues
from tests.children import ended
from tests.filled import Filled
from tests.store.archive.test_archiving import rows, same


def test_only_named_topics_are_archived(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("more", 1)
    filled.put("more", 0, 2)
    assert filled.store.archive(str(tmp_path / "archive"), topics=["more"]).messages == 2
    filled.put("more", 0, 1)
    filled.put("orders", 0, 1)
    assert filled.store.archive().messages == 1
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert list(log.topics()) == ["more"]
    with pytest.raises(UnknownTopic, match="nowhere"):
        filled.store.archive(topics=["nowhere"])


def test_archive_settings_are_remembered(filled: Filled, tmp_path: Path) -> None:
    """Given topics replace the remembered ones; another URL is not remembered, and `clean` does not ask it."""
    url, copy, root = str(tmp_path / "archive"), str(tmp_path / "copy"), Path(filled.path)
    filled.store.create_topic("more", 1)
    filled.store.archive(url)
    filled.store.archive(topics=["more"])
    assert remembered(root) == (url, ("more",))
    filled.store.archive(copy, topics=["orders"])
    assert remembered(root) == (url, ("more",))
    filled.store.archive(f"file://{url}/", topics=["orders", "more"])
    assert remembered(root) == (url, ("orders", "more"))
    filled.store.archive(topics=())
    assert remembered(root) == (url, ())
    filled.put("orders", 0, 300, 1000)
    filled.store.archive(copy)
    assert filled.store.clean(forced=True).log == []


def test_topic_list_may_have_blanks(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("more", 1)
    filled.store.archive(str(tmp_path / "archive"), topics=["orders", "more"])
    path = Path(filled.path) / CONF_FILE
    path.write_text(path.read_text().replace("orders,more", "orders, more ,"))
    filled.put("more", 0, 300, 1000)
    filled.put("orders", 0, 1)
    assert filled.store.clean(forced=True).log == []
    assert filled.store.archive().messages == 301
    assert remembered(Path(filled.path)).topics == ("orders", "more")


def test_deleted_topic_in_the_settings_stops_nothing(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("more", 1)
    filled.store.archive(str(tmp_path / "archive"), topics=["orders", "more"])
    filled.store.delete_topic("more")
    filled.put("orders", 0, 5)
    filled.store.clean(forced=True)
    assert filled.store.archive().messages == 5
    with pytest.raises(UnknownTopic, match="more"):
        filled.store.archive(topics=["orders", "more"])


def test_only_old_enough_messages_are_archived(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled.store.archive(str(tmp_path / "archive"), older_than=3600).messages == 0
    now = time.time
    with monkeypatch.context() as in_half_an_hour:
        in_half_an_hour.setattr(time, "time", lambda: now() + 1800)
        filled.put("orders", 0, 1)
        assert filled.store.archive(older_than=900).messages == 8


def test_retention_keeps_messages_that_are_not_archived(filled: Filled, tmp_path: Path) -> None:
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 300, 1000)
    assert filled.store.clean(forced=True).log == []
    filled.store.archive()
    assert filled.store.clean(forced=True).log != []
    same(filled.store, tmp_path / "archive")
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert len(rows(log, Queue("orders", 0), 0, 303)) == 303
    (tmp_path / "archive" / METADATA).unlink(missing_ok=True)
    filled.put("orders", 0, 300, 1000)
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    assert filled.store.clean(forced=True).log == []


@pytest.mark.parametrize("at", [1 << 40, 200 << 10, 1])
def test_damaged_entry_does_not_mislead_retention(filled: Filled, tmp_path: Path, at: int) -> None:
    """The first entry that is not archived names a record elsewhere in the log, or far past its end."""
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 300, 1000)
    segments = list((Path(filled.path) / "commitlog").iterdir())
    first = next(
        offset for topic, queue, offset, body in filled.rows if (topic, queue, len(body)) == ("orders", 0, 1000)
    )
    with (Path(filled.path) / "consumequeue/orders/0" / segment_name(0)).open("r+b") as file:
        file.seek(first * CQ_ENTRY.itemsize)
        file.write(at.to_bytes(8, "big"))
    try:
        assert filled.store.clean(forced=True).log == []
    except CorruptSegment as error:
        assert f"entry {first} is damaged" in str(error)  # noqa: PT017
    assert list((Path(filled.path) / "commitlog").iterdir()) == segments


@pytest.mark.parametrize("lost", ["folder", "file"])
def test_retention_keeps_messages_of_a_damaged_queue(tmp_path: Path, lost: str) -> None:
    """`archive` cannot read the damaged queue, but the log still has the messages and the queue can be rebuilt."""
    filled, folder = Filled(tmp_path / "mq", {"orders": 1, "others": 1}), tmp_path / "mq/consumequeue/orders/0"
    filled.put("others", 0, 1)
    filled.store.archive(str(tmp_path / "archive"))
    filled.put("orders", 0, 150, 1000)
    shutil.rmtree(folder) if lost == "folder" else max(folder.iterdir()).unlink()
    filled.store.archive()
    with pytest.raises(CorruptSegment, match="entry 149 existed before and is missing"):
        filled.store.clean(forced=True)
    filled.store.close()
    shutil.rmtree(folder, ignore_errors=True)
    with MessageStore.open(filled.path) as store:
        store.archive()
        assert store.clean(forced=True).log != []
        same(store, tmp_path / "archive")
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert len(rows(log, Queue("orders", 0), 0, 150)) == 150


def test_readers_during_the_first_archive_lose_nothing(tmp_path: Path) -> None:
    """The settings name the archive before it is complete, and readers use it from then on."""
    config, seen = StoreConfig(mappedFileSizeCommitLog=16 << 10), list[tuple[int, list[int]]]()
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        for topic in ("orders", "others"):
            store.create_topic(topic, 1)
        for _ in range(60):
            for topic in ("orders", "others"):
                store.put(Message(topic, b"x" * 500, queue_id=0))
        assert store.clean(forced=True).log
        began = [store.min_offset(topic, 0) for topic in ("orders", "others")]
        assert min(began) > 0

        def look(done: int, total: int) -> None:
            with address_at(str(store.path)).open() as log:
                seen.append((done, [bounds.min_offset for bounds in log.bounds(queues).values()]))

        queues = [Queue("orders", 0), Queue("others", 0)]
        total = store.archive(str(tmp_path / "archive"), progress=look).messages
    assert [offsets for _, offsets in seen] == [began] * len(seen)
    assert [0, total] == [seen[0][0], seen[-1][0]]
    assert len(seen) == 3


def test_one_process_archives_at_a_time(filled: Filled, tmp_path: Path) -> None:
    with alone(Path(filled.path)), pytest.raises(StoreLocked, match="another process is archiving"):
        filled.store.archive(str(tmp_path / "archive"))


def test_forked_child_does_not_keep_the_archive_lock(filled: Filled, tmp_path: Path) -> None:
    read, write = os.pipe()
    with alone(Path(filled.path)):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # blocks until the test ends
            os._exit(0)
    os.close(read)
    filled.store.archive(str(tmp_path / "archive"))
    os.close(write)
    assert ended(child) == 0


def test_missing_archive_is_begun_again_only_if_forgotten(filled: Filled, tmp_path: Path) -> None:
    """If the archive's disk is not mounted, `clean` would trust the empty mount point, and readers would lose the
    archived messages."""
    root, url, mounted = Path(filled.path), tmp_path / "archive", tmp_path / "mounted"
    filled.put("orders", 0, 3)
    filled.store.archive(str(url))
    url.rename(mounted)
    url.mkdir()
    filled.put("orders", 0, 2)
    for named in (None, str(url), f"file://{url}/"):
        with pytest.raises(NoArchive, match=r"Mount its file system, .* delete the line 'archive'"):
            filled.store.archive(named)
    assert not list(url.iterdir())
    url.rmdir()
    mounted.rename(url)
    assert filled.store.archive().messages == 2
    url.rename(mounted)
    with pytest.raises(NoArchive):
        filled.store.archive(str(url))
    conf = root / CONF_FILE
    conf.write_bytes(re.sub(rb"(?m)^archive=.*\n", b"", conf.read_bytes()))
    assert filled.store.archive(str(url)).messages == len(filled.rows)


def test_store_without_queues_begins_no_archive(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.archive(str(tmp_path / "archive"))
        assert remembered(store.path).url == ""


def test_comments_in_any_encoding_survive(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store") as store:
        store.create_topic("t", 1)
        store.put(Message("t", b"x"))
    conf = tmp_path / "store/config/store.conf"
    before = "# 存入\n".encode() + conf.read_bytes()  # the UTF-8 text has a byte that is a line end in Latin-1
    conf.write_bytes(before)
    with MessageStore.open(tmp_path / "store") as store:
        store.archive(str(tmp_path / "Archiv für 存入"))
    assert conf.read_bytes().startswith("# 存入\n".encode())
    with MessageStore.open(tmp_path / "store") as store:
        assert store.config.archive == str(tmp_path / "Archiv für 存入")


def test_store_directory_is_refused_as_an_archive(filled: Filled, tmp_path: Path) -> None:
    """Its directory would be read as an archive from then on."""
    for url in (filled.path, f"file://{filled.path}", f"{filled.path}/archive", f"{filled.path}/commitlog/x"):
        with pytest.raises(InvalidArgument, match=r"has a store\. Archive to a directory outside of it"):
            filled.store.archive(url)
    assert not list(Path(filled.path).rglob("*_DefaultCluster"))


@pytest.mark.parametrize("name", ["..", "../x", "a/b", "."])
def test_broker_name_with_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with MessageStore.open(tmp_path / "mq", config=StoreConfig(brokerName=name)) as store:
        store.create_topic("orders", 1)
        with pytest.raises(ConfigError, match="cannot be the name of a folder in an archive"):
            store.archive(str(tmp_path / "archive"))
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize(
    ("owner", "verb"), [(StoreArchive, "queues"), (QueueEnds, "known"), (PublishedQueues, "offsets")]
)
def test_puts_during_clean_are_not_reported_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, verb: str
) -> None:
    look = getattr(owner, verb)
    filled = Filled(tmp_path / "mq", {"orders": 2})
    filled.store.archive(str(tmp_path / "archive"))

    def looked(*arguments: object) -> object:
        filled.put("orders", 1, 1)
        found = look(*arguments)
        filled.put("orders", 1, 1)
        filled.store._writing().settle()
        return found

    with MessageStore.open(filled.path) as other:
        monkeypatch.setattr(owner, verb, looked)
        other.clean(dry_run=True)
    filled.store.close()
