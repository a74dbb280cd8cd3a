from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store import (
    CorruptStore,
    InvalidArgument,
    InvalidGroup,
    Message,
    MessageRefused,
    MessageStore,
    OffsetLost,
    Producer,
    PutStatus,
    StoreBusy,
    StoreClosed,
    StoreConfig,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from store.api.message_store import delete_topic
from store.format.topic_names import PRODUCERS_TOPIC
from store.model.errors import system_errors
from tests.children import ended
from tests.store.client.producers import SMALL, bodies, nobody_appends
from tests.waiting import PATIENCE


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "store", config=SMALL) as it:
        for topic in ("t", "u", "v"):
            it.create_topic(topic, 1)
        yield it


def note(store: MessageStore) -> Path:
    return store.path / "producers" / "p" / "reached.json"


def die(store: MessageStore, *sent: tuple[str, int]) -> None:
    """Send the messages in a process, wait until they are appended, then kill it."""
    child = os.fork()
    if child == 0:
        producer = Producer(store.path, "p")
        for topic, sequence in sent:
            producer.send(topic, str(sequence), sequence=sequence)
        producer.flush()
        os._exit(0)
    assert ended(child) == 0


def test_stored_message_is_not_appended_again(store: MessageStore) -> None:
    die(store, ("t", 10), ("u", 3), ("t", 20))
    with Producer(store.path, "p") as producer:
        assert [producer.last_sequence(topic) for topic in ("t", "u", "v")] == [20, 3, None]
        sent = [producer.send("t", str(n), sequence=n) for n in (10, 15, 20, 21)]
        other = producer.send("u", "4", sequence=4)
        statuses = [future.result(PATIENCE).status for future in sent]
    assert statuses == [PutStatus.ALREADY_STORED] * 3 + [PutStatus.PUT_OK]
    assert other.result().queue_offset == 1
    assert (bodies(store, "t"), bodies(store, "u")) == ([b"10", b"20", b"21"], [b"3", b"4"])
    with Producer(store.path, "p") as producer:
        assert [producer.last_sequence(topic) for topic in ("t", "u", "v")] == [21, 4, None]


def test_records_are_found_in_a_topic_with_more_queues(store: MessageStore) -> None:
    store.create_topic(PRODUCERS_TOPIC, 3)
    for n in range(5):
        die(store, ("t", n))
        with Producer(store.path, "p") as producer:
            assert producer.last_sequence("t") == n


def test_names_do_not_affect_each_other(store: MessageStore) -> None:
    for name in ("p", "q"):
        with Producer(store.path, name) as producer:
            producer.send("t", name, sequence=1)
    assert bodies(store, "t") == [b"p", b"q"]


def test_refused_messages_of_several_topics_fail_alone(store: MessageStore) -> None:
    with Producer(store.path, "p", linger=60) as producer:
        sent = [
            producer.send("tuv"[n % 3], str(n), tags="a|b" if n % 50 == 7 else None, sequence=n) for n in range(200)
        ]
        producer.send("t", "last", sequence=1000)
        with pytest.raises(MessageRefused):
            producer.flush()
    assert {n for n, future in enumerate(sent) if future.exception()} == {7, 57, 107, 157}
    with Producer(store.path, "p") as producer:
        assert [producer.last_sequence(topic) for topic in ("t", "u", "v")] == [1000, 199, 197]
    assert len(bodies(store, "t") + bodies(store, "u") + bodies(store, "v")) == 197


@pytest.mark.parametrize(
    ("name", "sequence", "words"),
    [(None, 1, "a producer with a name"), ("p", None, "needs a sequence"), ("p", "1", "'1'")],
)
def test_sequence_needs_a_name_and_name_a_sequence(
    store: MessageStore, name: str | None, sequence: Any, words: str
) -> None:
    with Producer(store.path, name) as producer, pytest.raises(InvalidArgument, match=words):
        producer.send("t", b"", sequence=sequence)


def test_sequences_must_ascend(store: MessageStore) -> None:
    with Producer(store.path, "p") as producer:
        producer.send(Message("t", b"5"), sequence=5)
        for again in (5, 4):
            with pytest.raises(InvalidArgument, match=f"sequence {again} of topic t was sent after 5"):
                producer.send("t", b"", sequence=again)
        producer.send("u", b"4", sequence=4)
    assert (bodies(store, "t"), bodies(store, "u")) == ([b"5"], [b"4"])


def test_failed_append_ends_a_named_producer(store: MessageStore) -> None:
    config = StoreConfig(lockTimeoutMillis=50)
    with MessageStore.open(store.path, config=config) as impatient:
        producer = Producer(impatient, "p")
        producer.send("t", "1", sequence=1).result(PATIENCE)
        with nobody_appends(store):
            failed = producer.send("t", "2", sequence=2)
            assert isinstance(failed.exception(PATIENCE), StoreBusy)
        with pytest.raises(StoreClosed, match=r"an append failed .* continues after the last stored sequence"):
            producer.send("t", "3", sequence=3)
        producer.close()
        with Producer(impatient, "p") as producer:
            for number in (1, 2, 3):
                producer.send("t", str(number), sequence=number)
    assert bodies(store, "t") == [b"1", b"2", b"3"]


def test_only_one_producer_may_use_a_name(store: MessageStore) -> None:
    with Producer(store.path, "p") as producer:
        with pytest.raises(StoreLocked, match="another producer with this name is open"):
            Producer(store.path, "p")
        ready, end = os.pipe(), os.pipe()
        child = os.fork()  # the child inherits all descriptors and outlives the parent
        if child == 0:
            os.write(ready[1], b".")
            os.read(end[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        producer.send("t", "1", sequence=1)
    Producer(store.path, "p").close()
    os.write(end[1], b".")
    assert ended(child) == 0


def test_wrong_names_are_refused(store: MessageStore) -> None:
    for name in ("", "../up", "a b"):
        with pytest.raises(InvalidGroup, match="a producer's name must be valid as a group's name"):
            Producer(store.path, name)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"sequences": {"t": "1"}, "since": 0, "open": true}', '{"since": 0}']
)
def test_damaged_progress_file_is_an_error(store: MessageStore, content: str) -> None:
    die(store, ("t", 1))
    note(store).write_text(content)
    with pytest.raises(CorruptStore, match=r"Restore it from a copy\. If you delete it"):
        Producer(store.path, "p")
    note(store).unlink()
    with Producer(store.path, "p") as producer:
        assert producer.last_sequence("t") == 1


@pytest.mark.parametrize(("code", "refusal"), [(errno.ENOSPC, StoreFull), (errno.EACCES, StoreUnavailable)])
def test_system_error_of_the_progress_file_is_raised(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, code: int, refusal: type[StoreError]
) -> None:
    def refuse(path: Path, *_: object) -> None:
        with system_errors(path):
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr("store.disk.client_progress.write_file", refuse)
        with pytest.raises(refusal, match=r"reached\.json") as kept:
            Producer(store.path, "p")
    producer = Producer(store.path, "p")
    producer.send("t", "1", sequence=1)
    producer.flush()
    with monkeypatch.context() as patched:
        patched.setattr("store.disk.client_progress.write_file", refuse)
        with pytest.raises(refusal, match=r"reached\.json"):
            producer.close()
    with Producer(store.path, "p") as producer:
        assert producer.last_sequence("t") == 1
    assert kept.value


def clean(store: MessageStore) -> None:
    for _ in range(4):
        store.put_many([Message("v", bytes(4000)) for _ in range(300)])
    store.clean(asked=True, forced=True)
    assert store.min_offset(PRODUCERS_TOPIC, 0) > 0


def test_progress_deleted_by_retention_is_an_error(store: MessageStore) -> None:
    die(store, ("t", 1))
    clean(store)
    with pytest.raises(OffsetLost, match="its last sequence in each topic is unknown"):
        Producer(store.path, "p")
    noted = json.loads(note(store).read_text())
    note(store).write_text(json.dumps({**noted, "sequences": {"t": 7}, "open": False}))
    with Producer(store.path, "p") as producer:
        assert producer.last_sequence("t") == 7


def test_closed_producer_needs_no_records(store: MessageStore) -> None:
    with Producer(store.path, "p") as producer:
        producer.send("t", "1", sequence=1)
    clean(store)
    with Producer(store.path, "p") as producer:
        assert producer.last_sequence("t") == 1


@pytest.mark.parametrize("is_closed", [True, False])
def test_recreated_topic_has_no_sequence(tmp_path: Path, is_closed: bool) -> None:
    def opened() -> MessageStore:
        store = MessageStore.open(tmp_path / "store", config=SMALL)
        for topic in ("t", "u"):
            store.create_topic(topic, 1)
        return store

    with opened() as store:
        if is_closed:
            with Producer(store, "p") as producer:
                producer.send("t", "20", sequence=20)
                producer.send("u", "3", sequence=3)
        else:
            die(store, ("t", 20), ("u", 3))
    delete_topic(tmp_path / "store", "t")
    with opened() as store, Producer(store, "p") as producer:
        assert [producer.last_sequence(topic) for topic in ("t", "u")] == [None, 3]
        assert producer.send("t", "1", sequence=1).result().status is PutStatus.PUT_OK
    with opened() as store, Producer(store, "p") as producer:
        assert producer.last_sequence("t") == 1


@pytest.mark.parametrize("is_found", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
def test_topic_recreated_while_its_producer_is_open(store: MessageStore, is_open: bool, is_found: bool) -> None:
    if is_found:
        with Producer(store.path, "p") as producer:
            producer.send("t", "old", sequence=3).result(PATIENCE)
    producer = Producer(store.path, "p")
    producer.send("u", "kept", sequence=7).result(PATIENCE)
    if not is_found:
        producer.send("t", "old", sequence=3).result(PATIENCE)
    delete_topic(store.path, "t")
    store.create_topic("t", 1)
    if not (is_open and is_found):
        producer.close()
        producer = Producer(store.path, "p")
        assert producer.send("u", "again", sequence=7).result(PATIENCE).status is PutStatus.ALREADY_STORED
    with producer:
        assert producer.send("t", "new", sequence=3).result(PATIENCE).status is PutStatus.PUT_OK
    assert store.offsets("t", 0) == (1, 2)
    assert store.offsets("u", 0) == (0, 1)


@pytest.mark.parametrize("others_first", [True, False])
def test_progress_newer_than_the_log_is_corrected(
    store: MessageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, others_first: bool
) -> None:
    """As after restoring a backup. Messages missing in the log are appended, even after concurrent appends."""
    back = tmp_path / "back"
    die(store, ("t", 10), ("u", 3))
    store.flush()
    store.close()
    shutil.copytree(store.path, back)
    with Producer(store.path, "p") as producer:
        producer.send("t", "20", sequence=20)
        producer.send("v", "5", sequence=5)
    shutil.copytree(store.path / "producers", back / "producers", dirs_exist_ok=True)
    if others_first:
        with Producer(back, "q") as producer:
            for sequence in range(9):
                producer.send("t", "q", sequence=sequence).result()
    with Producer(back, "p") as producer:
        sent = [producer.send(*each, sequence=int(each[1])) for each in (("t", "10"), ("t", "20"), ("u", "3"))]
        sent.append(producer.send("v", "5", sequence=5))
        known = [future.result().status is PutStatus.ALREADY_STORED for future in sent]
    assert known == [True, False, True, False]
    assert "producer p recorded the sequences {'t': 20, 'u': 3, 'v': 5}" in caplog.text


def test_progress_newer_than_a_shortened_log_is_an_error(store: MessageStore) -> None:
    with Producer(store.path, "p") as producer:
        producer.send("t", "10", sequence=10).result()
    clean(store)
    store.close()
    file = note(store)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"since": 99}))
    with pytest.raises(OffsetLost, match=r"its file reached\.json is newer than the log"):
        Producer(store.path, "p")
    file.write_text(json.dumps({"sequences": {"t": 10}, "since": 1, "open": False}))
    with Producer(store.path, "p") as producer:
        assert producer.send("t", "10", sequence=10).result().status is PutStatus.ALREADY_STORED
