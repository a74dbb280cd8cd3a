"""One pull answered: RocketMQ's codes, corrected offsets, and a hold on the first attempt only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store import GetStatus, Message, MessageStore, TagFilter, message_filter
from store.broker.hold import PullRequestHoldService
from store.broker.pull import PullMessageProcessor, PullRequest, response_code
from store.broker.response_codes import ResponseCode


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        it.put_many([Message("orders", b"%d" % n, tags="AB"[n % 2], queue_id=0) for n in range(10)])
        yield it


@pytest.fixture
def processor(store: MessageStore) -> Iterator[PullMessageProcessor]:
    with PullRequestHoldService(store) as hold:
        yield PullMessageProcessor(store, hold)


def request(offset: int, queue_id: int = 0, *, seconds: float = 0, tags: str | None = None) -> PullRequest:
    return PullRequest(
        "group", "orders", queue_id, offset, message_filter=TagFilter.parse(tags), suspend_timeout=seconds
    )


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
def test_every_status_has_its_code(status: GetStatus, offset: int, code: int) -> None:
    assert response_code(status, offset) == code


def test_no_status_is_forgotten() -> None:
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
def test_answers(
    processor: PullMessageProcessor, offset: int, queue_id: int, code: ResponseCode, next_begin: int
) -> None:
    answer = processor.pull(request(offset, queue_id))
    assert (answer.code, answer.next_begin_offset) == (code, next_begin)


def test_an_unknown_topic(processor: PullMessageProcessor) -> None:
    answer = processor.pull(PullRequest("group", "payments", 0, 0, suspend_timeout=60))
    assert answer.code is ResponseCode.TOPIC_NOT_EXIST
    assert "payments" in answer.remark


def test_only_what_matches(processor: PullMessageProcessor) -> None:
    answer = processor.pull(request(0, tags="B"))
    assert [m.body for m in answer.messages] == [b"1", b"3", b"5", b"7", b"9"]
    nothing = processor.pull(request(0, tags="C", seconds=60))  # not held: there are messages to go past
    assert (nothing.code, nothing.next_begin_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 10)


def test_a_pull_is_held_until_a_match_arrives(store: MessageStore, processor: PullMessageProcessor) -> None:
    def put_later() -> None:
        store.put(Message("orders", b"no", tags="A", queue_id=0))
        store.put(Message("orders", b"yes", tags="C", queue_id=0))

    thread = threading.Timer(0.05, put_later)
    thread.start()
    answer = processor.pull(request(10, tags="C", seconds=60))
    thread.join()
    assert [m.body for m in answer.messages] == [b"yes"]
    assert answer.next_begin_offset == 12


def test_with_a_condition_any_arrival_ends_a_held_pull(store: MessageStore, processor: PullMessageProcessor) -> None:
    wanted = replace(request(10, seconds=60), message_filter=message_filter("region = 'eu'", "SQL92"))
    for number, region in ((10, "us"), (11, "eu")):
        message = Message("orders", b"%d" % number, queue_id=0, properties={"region": region})
        thread = threading.Timer(0.05, store.put, (message,))
        thread.start()
        answer = processor.pull(replace(wanted, offset=number))
        thread.join()
        assert [m.body for m in answer.messages] == ([b"11"] if region == "eu" else [])
        assert answer.next_begin_offset == number + 1


def test_a_held_pull_that_times_out_is_answered_not_found(processor: PullMessageProcessor) -> None:
    answer = processor.pull(request(10, seconds=0.05))
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert (answer.next_begin_offset, answer.min_offset, answer.max_offset) == (10, 0, 10)


def test_a_held_pull_ends_when_the_service_stops(store: MessageStore) -> None:
    hold = PullRequestHoldService(store)
    thread = threading.Timer(0.05, hold.stop)
    thread.start()
    assert PullMessageProcessor(store, hold).pull(request(10, seconds=60)).code is ResponseCode.PULL_NOT_FOUND
    thread.join()


def test_many_consumers_share_one_service(store: MessageStore, processor: PullMessageProcessor) -> None:
    answers: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: answers.append(processor.pull(request(10, seconds=60)).messages[0].body))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    store.put(Message("orders", b"new", queue_id=0))
    for thread in threads:
        thread.join()
    assert answers == [b"new"] * 20
