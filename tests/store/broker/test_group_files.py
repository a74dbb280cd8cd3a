from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import CorruptStore, Message, MessageStore
from store.api.group_protocol import ConsumeFromWhere, Subscription
from store.broker.group_files import Resets, first_offsets
from store.directory.directory_group import DirectoryGroup
from store.directory.directory_log import DirectoryLog
from store.directory.directory_member import DirectoryMember
from store.model.log_protocol import Queue

Q0, Q1, Q2 = (Queue("t", number) for number in range(3))
LAST, FIRST, TIMESTAMP = (
    ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DirectoryLog]:
    store = MessageStore.open(tmp_path)
    store.create_topic("t", 2)
    store.put_many([Message("t", b"x", queue_id=queue) for queue in (0, 0, 0, 1, 1, 1, 1, 1)])
    with DirectoryLog(store) as log:
        yield log


@pytest.fixture
def member(log: DirectoryLog, tmp_path: Path) -> Iterator[DirectoryMember]:
    with DirectoryGroup(tmp_path, "g").join({"t": Subscription()}) as member:
        yield member


def test_new_group_begins_as_configured(log: DirectoryLog, member: DirectoryMember, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, read_only=True) as store:
        time = store.get_message("g", "t", 1, 0).messages[0].store_timestamp
    assert first_offsets(log, "t", member.committed, LAST) == {Q0: 3, Q1: 5}
    assert first_offsets(log, "t", member.committed, FIRST) == {Q0: 0, Q1: 0}
    assert first_offsets(log, "t", member.committed, TIMESTAMP, time) == {Q0: 0, Q1: 0}
    assert first_offsets(log, "t", member.committed, TIMESTAMP, time + 3_600_000) == {Q0: 3, Q1: 5}
    assert first_offsets(log, "u", member.committed, LAST) == {}


@pytest.mark.parametrize("where", ConsumeFromWhere)
def test_added_queue_is_read_from_its_first_message(
    log: DirectoryLog, member: DirectoryMember, tmp_path: Path, where: ConsumeFromWhere
) -> None:
    member.begin(first_offsets(log, "t", member.committed, LAST))
    with MessageStore.open(tmp_path) as store:
        store.create_topic("t", 3)
        store.put(Message("t", b"x", queue_id=2))
    assert first_offsets(log, "t", member.committed, where, 1 << 50) == {Q2: 0}


def test_retry_topic_is_read_from_its_first_message(log: DirectoryLog, member: DirectoryMember, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path) as store:
        member.send_back(store.get_message("g", "t", 0, 0).messages, delay_level=-1)
        store.create_topic("%RETRY%g", 1)
    assert first_offsets(log, "%RETRY%g", member.committed, LAST) == {Queue("%RETRY%g", 0): 0}


def test_reset_is_returned_until_it_is_known(tmp_path: Path) -> None:
    resets = Resets(tmp_path, "g")
    assert resets.since(0, "x") == (0, {})
    resets.add({Q0: 1, Q1: 2})
    resets.add({Q0: 5})
    assert [resets.since(known, "x") for known in range(3)] == [(2, {Q0: 5, Q1: 2}), (2, {Q0: 5}), (2, {})]
    resets.add({Q0: 6, Q1: 7}, "y")
    assert [resets.since(known, "x") for known in (0, 2)] == [(3, {Q0: 5, Q1: 2}), (3, {})]
    assert [resets.since(known, "y") for known in (0, 2)] == [(3, {Q0: 6, Q1: 7})] * 2
    resets.add({Q0: 8})
    assert [resets.since(0, instance) for instance in "xy"] == [(4, {Q0: 8, Q1: 2}), (4, {Q0: 8, Q1: 7})]
    resets.forget()
    assert resets.since(0, "x") == (0, {})


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{}",
            "[]",
            '{"count": 1, "queues": [["t"]]}',
            '{"count": 1, "queues": 3}',
            '{"count": [], "queues": []}',
        ),
        *('{"count": 1, "queues": [["t", 0, "x", 1]]}', '{"count": Infinity, "queues": []}'),
    ],
)
def test_wrong_file_of_resets_is_an_error(tmp_path: Path, text: str) -> None:
    resets = Resets(tmp_path, "g")
    resets.add({Q0: 1})
    (tmp_path / "consumers/g/resets.json").write_text(text)
    with pytest.raises(CorruptStore, match=r"resets.json: this file is not the record of a reset .* Delete it"):
        resets.read()
