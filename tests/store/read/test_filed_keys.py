"""Who only reads learns that keys were lost from the index; and takes neither retention, nor a writer, nor a broker for
a loss; and an index that is being made anew for none that is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store import CorruptSegment, Message, MessageStore, StoreConfig
from store.any_log import Queue, QueueRange
from store.format.layout import ABORT_FILE, INDEX_DIR, INDEX_ENTRY, QUEUE_ENDS_FILE
from store.read.query import messages_with_key

SIZES = StoreConfig(mappedFileSizeCommitLog=64 << 10, maxHashSlotNum=50, maxIndexNum=30)
GOLDEN = Path(__file__).parents[2] / "golden"
# Many openings and index files, the ends noted with every flush, and all retention that there can be.
WRITES = """
import sys
from store import Message, MessageStore
from store.log import queue_ends
queue_ends._WRITE_EVERY = 1
for _ in range(3):
    with MessageStore.open(sys.argv[1]) as store:
        for _ in range(30):
            store.put_many([Message("t", bytes(100), queue_id=0, keys=(f"k{n % 7}",)) for n in range(20)])
            store.flush()
            store.clean(forced=True)
"""


def put(store: MessageStore, count: int, body: bytes = b"x") -> None:
    store.put_many([Message("t", body, queue_id=0, keys=(f"k{number}",)) for number in range(count)])


def files(path: Path) -> list[Path]:
    return sorted((path / INDEX_DIR).iterdir())


def narrowed(store: MessageStore, key: str) -> list[QueueRange]:
    return store.with_keys([QueueRange(Queue("t", 0), *store.offsets("t", 0))], [key])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """100 messages with keys, in four index files."""
    with MessageStore.open(tmp_path, config=SIZES) as store:
        store.create_topic("t", 1)
        put(store, 100)
    assert len(files(tmp_path)) == 4
    return tmp_path


def without_first(path: Path) -> None:
    files(path)[0].unlink()


def without_last(path: Path) -> None:
    files(path)[-1].unlink()


def without_any(path: Path) -> None:
    shutil.rmtree(path / INDEX_DIR)


def with_zeros(path: Path) -> None:
    files(path)[1].write_bytes(bytes(files(path)[1].stat().st_size))


def with_a_zeroed_end(path: Path) -> None:
    whole = files(path)[2].read_bytes()
    files(path)[2].write_bytes(whole[: -INDEX_ENTRY.itemsize].ljust(len(whole), b"\0"))


LOSSES = [without_first, without_last, without_any, with_zeros, with_a_zeroed_end]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_loss_is_told_until_the_store_was_opened_for_writing(made: Path, lose: Callable[[Path], None]) -> None:
    lose(made)
    with MessageStore.open(made, read_only=True) as reader:
        for _ in range(2):
            with pytest.raises(CorruptSegment, match=r"index: file \d{17} had a key .* open the store for writing"):
                reader.query("t", "k5")
            assert narrowed(reader, "k5") == [QueueRange(Queue("t", 0), 0, 100)]
        MessageStore.open(made).close()
        assert [message.queue_offset for message in reader.query("t", "k5")] == [5]
        assert [message.queue_offset for message in reader.query("t", "k99")] == [99]


def test_a_loss_is_told_beside_a_writer_and_after_one_that_was_killed(made: Path) -> None:
    (made / ABORT_FILE).touch()
    with MessageStore.open(made) as writer:
        put(writer, 10)
        without_first(made)
        with MessageStore.open(made, read_only=True) as reader, pytest.raises(CorruptSegment, match="open the store"):
            reader.query("t", "k5")


def test_what_retention_takes_is_no_loss(made: Path) -> None:
    with MessageStore.open(made) as store:
        put(store, 1000, bytes(1000))
        before = files(made)
        while store.clean(forced=True).log:
            pass
        assert files(made)[0] > before[0]
        with MessageStore.open(made, read_only=True) as reader:
            assert [message.queue_offset for message in reader.query("t", "k999")] == [1099]
            assert narrowed(reader, "k999") == [QueueRange(Queue("t", 0), 1099, 1100)]


def test_nor_is_what_is_under_way_beside_who_writes(made: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITES, str(made)]) as writer:
        looks = 0
        while writer.poll() is None:
            with MessageStore.open(made, read_only=True) as reader:
                reader._filed_keys.check()
            looks += 1
    assert (writer.returncode, looks > 10) == (0, True)
    with MessageStore.open(made, read_only=True) as reader:
        assert len(reader.query("t", "k5", 3)) == 3


def test_files_are_listed_no_more_often_where_there_are_many(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a listing for each, a look at some thousand took minutes."""
    listed, scandir = [0], os.scandir

    def counted(path: Path) -> Any:
        listed[-1] += path == made / INDEX_DIR
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    for _ in range(2):
        with MessageStore.open(made, read_only=True) as reader:
            listed.append(0)
            reader._filed_keys.check()
        listed.append(0)
        with MessageStore.open(made) as writer:
            put(writer, 100)
    assert listed[1] == listed[3]


def test_files_that_come_while_it_looks_begin_no_look_anew(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside busy writers with small files no search came to its end."""
    looks = 0
    with MessageStore.open(made) as writer, MessageStore.open(made, read_only=True) as reader:
        looked_for = reader._filed_keys._looked_for

        def with_another_file(keys_from: int | None) -> tuple[str, int] | None:
            nonlocal looks
            looks += 1
            assert looks <= 2
            put(writer, 100)
            return looked_for(keys_from)

        monkeypatch.setattr(reader._filed_keys, "_looked_for", with_another_file)
        assert [message.queue_offset for message in reader.query("t", "k99")] == [99]
        without_first(made)
        with pytest.raises(CorruptSegment, match=r"had a key .* open the store for writing"):
            reader.query("t", "k5")


def test_an_index_that_is_being_made_anew_is_never_searched_for_less(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of a recovery, as somebody sees it who opened the directory before, and who opens it then."""
    from store.index.index import Index
    from store.log.queue_ends import QueueEnds

    seen = []

    def look(verb: Callable[..., None]) -> Callable[..., None]:
        def looked(*arguments: object) -> None:
            for step in ("before", "behind"):
                with MessageStore.open(made, read_only=True) as new:
                    seen.append((verb.__name__, step, *(found(reader) for reader in (early, new))))
                if step == "before":
                    verb(*arguments)

        return looked

    def found(reader: MessageStore) -> int | None:
        with suppress(CorruptSegment):
            return sum(len(reader.query("t", f"k{number}")) for number in range(100))
        return None

    with MessageStore.open(made, read_only=True) as early:
        assert found(early) == 100
        for owner, name in ((Index, "keep"), (Index, "append"), (Index, "truncate"), (QueueEnds, "write")):
            monkeypatch.setattr(owner, name, look(getattr(owner, name)))
        without_any(made)
        MessageStore.open(made).close()
        steps = [("keep", "before"), ("keep", "behind"), ("append", "before")]
        assert seen[:3] == [(*step, None, None) for step in steps]
        assert all(counts == [100, 100] for _, _, *counts in seen[3:])
        assert {verb for verb, *_ in seen} == {"keep", "append", "truncate", "write"}


def test_a_search_under_which_the_index_goes_is_told(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a recovery takes it, which makes it anew."""
    with MessageStore.open(made, read_only=True) as reader:
        searches = messages_with_key

        def search(*arguments: object) -> object:
            without_any(made)
            return searches(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr("store.store_finder.messages_with_key", search)
        with pytest.raises(CorruptSegment, match="while that is at work, search later"):
            reader.query("t", "k5")


@pytest.mark.parametrize("lose", [without_first, with_zeros])
def test_a_file_whose_last_message_has_keys_in_the_next_one_too(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    with MessageStore.open(tmp_path, config=SIZES) as store:
        store.create_topic("t", 1)
        store.put_many([Message("t", b"x", queue_id=0, keys=(f"k{n}", f"o{n}")) for n in range(60)])
        begins, ends = zip(*store._index.spans(store._index.names()), strict=True)
        assert begins[1] == ends[0], "29 keys a file, two a message"
    lose(tmp_path)
    with MessageStore.open(tmp_path, read_only=True) as reader, pytest.raises(CorruptSegment, match="open the store"):
        reader.query("t", "k5")
    with MessageStore.open(tmp_path) as store:
        assert all(len(store.query("t", f"{kind}{n}")) == 1 for n in range(60) for kind in "ko")


def test_nor_what_a_broker_does(made: Path) -> None:
    shutil.copytree(GOLDEN / "index-5.3", made / "theirs")
    shutil.rmtree(made / "theirs" / INDEX_DIR)
    with MessageStore.open(made / "theirs", read_only=True) as reader:
        topic = next(topic for topic in sorted(reader.topics()) if reader.max_offset(topic, 0))
        assert reader.query(topic, "k") == []
    noted = (made / QUEUE_ENDS_FILE).read_bytes()
    with MessageStore.open(made) as store:
        put(store, 1)
    (made / QUEUE_ENDS_FILE).write_bytes(noted)
    without_first(made)
    with MessageStore.open(made, read_only=True) as reader:  # who left in good order, and did not note the ends
        assert reader.query("t", "k5") == []


@pytest.mark.parametrize("lose", LOSSES)
def test_who_has_it_open_for_writing_is_told_too(made: Path, lose: Callable[[Path], None]) -> None:
    with MessageStore.open(made) as writer, MessageStore.open(made) as other:
        if lose not in (with_zeros, with_a_zeroed_end):  # these are noticed at the first search
            assert len(writer.query("t", "k1")) == 1
        lose(made)
        for store in (writer, other):
            assert narrowed(store, "k99") == narrowed(store, "none") == [QueueRange(Queue("t", 0), 0, 100)]
            with pytest.raises(CorruptSegment, match="no file has it now"):
                store.query("t", "k99")
