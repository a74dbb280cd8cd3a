"""An archive of another store, or of an older topic of the same name, is never joined with a store's messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store import ArchiveOfAnother, MessageStore, ObjectsUnavailable, QueuesPassedOver
from store.archive.archive_log import ArchiveAddress
from store.directory.directory_log import TieredDirectoryAddress
from store.directory.restoring import restore
from tests.store.archive.lives import (
    ORDERS,
    archived,
    begin_at,
    bodies,
    forgets_archive,
    named,
    put,
    restarted,
)


def test_recreated_topic_is_not_joined_at_the_old_end(store: MessageStore, url: str) -> None:
    put(store, "orders", "old", 40)
    store.archive(url)
    forgets_archive(store)
    restarted(store)
    begin_at(store, 40)
    put(store, "other", "more", 2)
    with TieredDirectoryAddress(str(store.path), url).open() as log:
        with pytest.raises(ArchiveOfAnother, match="--forget orders"):
            log.bounds([ORDERS])
        with pytest.raises(ArchiveOfAnother):
            bodies(log, ORDERS, 39, 45)
    with pytest.raises((QueuesPassedOver, ArchiveOfAnother), match="orders/0: "):
        store.archive(url)
    assert archived(url) == named("old", 40)
    with suppress(ArchiveOfAnother):  # if nothing shows whose archive it is
        store.archive(url, forget=["orders"])
        assert archived(url) == named("newer", 5)


def test_readers_through_the_store_do_not_see_the_old_topic(store: MessageStore, url: str) -> None:
    put(store, "orders", "old", 60)
    store.archive(url)
    settings = (store.path / "config" / "store.conf").read_bytes()
    forgets_archive(store)
    restarted(store)
    begin_at(store, 40)
    (store.path / "config" / "store.conf").write_bytes(settings)
    reads: list[Callable[[], object]] = [
        lambda: list(store.scan("orders", 0, 0, 45)),
        lambda: store.get_message("g", "orders", 0, 7),
        lambda: store.query("orders", "old7"),
    ]
    for read in reads:
        with pytest.raises(ArchiveOfAnother, match="--forget orders"):
            read()
    assert sum(map(len, store.scan("orders", 0, 40, 45))) == 5


def test_topic_continues_after_retention_deleted_all_messages(store: MessageStore, url: str) -> None:
    """This looks like a recreated topic, and is not."""
    begin_at(store, 0)
    put(store, "orders", "old", 35)
    store.archive(url)
    end = store.max_offset("orders", 0)
    while store.min_offset("orders", 0) < end:
        put(store, "other", "x" * 500, 4)
        store.archive()
        store.clean(forced=True)
    put(store, "orders", "new", 3)
    assert store.archive().messages == 3
    assert len(archived(url)) == end + 3
    with TieredDirectoryAddress(str(store.path)).open() as log:
        assert log.bounds([ORDERS]) == {ORDERS: (0, end + 3)}
        assert bodies(log, ORDERS, 0, end + 3) == archived(url)


def test_archive_of_an_older_version_is_compared(store: MessageStore, url: str) -> None:
    put(store, "orders", "old", 30)
    put(store, "other", "other", 3)
    store.archive(url)
    (metadata,) = Path(url).rglob("tieredStoreMetadata.json")
    text = metadata.read_text()
    older = re.sub(r'"last[A-Z]\w*":\d+,|,"metadata.crc32":\d+', "", text)
    metadata.write_text(older)
    assert "lastLogOffset" not in metadata.read_text()
    assert store.archive() == (0, 0, 0, 0)
    assert re.findall(r'"last\w*":\d+', metadata.read_text()) == re.findall(r'"last\w*":\d+', text)
    metadata.write_text(older)
    restarted(store)
    put(store, "orders", "new", 31)
    with pytest.raises(QueuesPassedOver, match="orders/0: the archive has another message at offset 29"):
        store.archive()
    assert store.archive(forget=["orders"]).messages == 31


def test_two_stores_archive_concurrently_under_one_name(store: MessageStore, url: str, tmp_path: Path) -> None:
    put(store, "orders", "ours", 3)
    with MessageStore.open(tmp_path / "elsewhere" / "mq") as other:
        other.create_topic("orders", 1)
        put(other, "orders", "theirs", 3)

        def progress(done: int, total: int) -> None:
            if not done:
                other.archive(url)

        with pytest.raises(
            ObjectsUnavailable, match=r"another process changed the metadata\. If another store archives here"
        ):
            store.archive(url, progress=progress)


def test_restored_store_continues_in_the_same_archive(store: MessageStore, url: str, tmp_path: Path) -> None:
    put(store, "orders", "old", 100)
    store.archive(url)
    restore(ArchiveAddress(url), tmp_path / "again" / "mq")
    with MessageStore.open(tmp_path / "again" / "mq") as restored:
        assert restored.archive(url) == (0, 0, 0, 0)
        put(restored, "orders", "more", 5)
        assert restored.archive().messages == 5
    put(store, "orders", "other", 6)
    with pytest.raises(ArchiveOfAnother, match="orders/0: the archive has another message at offset 104"):
        store.archive()
    assert archived(url) == named("old", 100) + named("more", 5)
    while store.clean(forced=True).log:
        pass
    assert store.offsets("orders", 0)[1] == 106
    with TieredDirectoryAddress(str(store.path)).open() as log:
        assert bodies(log, ORDERS, 0, 106) == named("old", 100) + named("other", 6)
