from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import GetStatus, Message, MessageStore, TagFilter
from store.broker.pull import PullRequest, answer, response_code
from store.model.codes import ResponseCode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        it.put_many([Message("orders", b"%d" % n, tags="AB"[n % 2], queue_id=0) for n in range(10)])
        yield it


def request(offset: int, queue_id: int = 0, *, tags: str | None = None) -> PullRequest:
    return PullRequest("group", "orders", queue_id, offset, message_filter=TagFilter.parse(tags))


@pytest.mark.parametrize(
    ("status", "offset", "code"),
    [
        (GetStatus.FOUND, 5, 0),
        (GetStatus.NO_MATCHED_MESSAGE, 5, 20),
        (GetStatus.OFFSET_OVERFLOW_ONE, 5, 19),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 5, 21),
        (GetStatus.OFFSET_TOO_SMALL, 5, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 5, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 19),
    ],
)
def test_statuses_map_to_rocketmqs_codes(status: GetStatus, offset: int, code: int) -> None:
    assert response_code(status, offset) == code


def test_every_status_has_a_code() -> None:
    assert all(response_code(status, 0) in ResponseCode for status in GetStatus)


@pytest.mark.parametrize(
    ("offset", "queue_id", "code", "next_begin"),
    [
        (0, 0, ResponseCode.SUCCESS, 10),
        (10, 0, ResponseCode.PULL_NOT_FOUND, 10),
        (99, 0, ResponseCode.PULL_OFFSET_MOVED, 10),
        (-1, 0, ResponseCode.PULL_OFFSET_MOVED, 0),
        (0, 1, ResponseCode.PULL_NOT_FOUND, 0),
        (7, 1, ResponseCode.PULL_OFFSET_MOVED, 0),
        (0, 2, ResponseCode.INVALID_PARAMETER, 0),
    ],
)
def test_pulls_get_codes_and_next_offsets(
    store: MessageStore, offset: int, queue_id: int, code: ResponseCode, next_begin: int
) -> None:
    response = answer(store, request(offset, queue_id))
    assert (response.code, response.next_begin_offset) == (code, next_begin)


def test_unknown_topic_is_refused(store: MessageStore) -> None:
    response = answer(store, PullRequest("group", "payments", 0, 0))
    assert response.code is ResponseCode.TOPIC_NOT_EXIST
    assert "payments" in response.remark


def test_only_matching_messages_are_returned(store: MessageStore) -> None:
    response = answer(store, request(0, tags="B"))
    assert [m.body for m in response.messages] == [b"1", b"3", b"5", b"7", b"9"]
    nothing = answer(store, request(0, tags="C"))
    assert (nothing.code, nothing.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 10)
