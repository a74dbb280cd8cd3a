from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_mq.errors import CheckpointError
from pyspark_mq.offsets.stream_offsets import (
    READER_ID,
    EpochOffset,
    StreamOffset,
    batch_ranges,
    begin_batch,
    to_json,
)
from store.model.log_protocol import Bounds, Fingerprint, Queue, QueueRange

RESOURCES = Path(__file__).parents[2] / "resources" / "offsets"
READER = "5f0c2b9e4d7a41b8a0c3e6f1927d5b84"
LAST = {
    Queue("orders", 0): Fingerprint(5250, 1763772000123),
    Queue("orders", 1): Fingerprint(104857, 1763772000456),
}
NONE: dict[str, Any] = {"$last": {}}
A0, A1, B0 = Queue("a", 0), Queue("a", 1), Queue("b", 0)

queues = st.builds(Queue, st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}", fullmatch=True), st.integers(0, 100))
positions = st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=10)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.just(READER)
keys = st.sampled_from(["$start", "$last", "$epoch", "$reader", "$from", "a", "0", "1"]) | st.text(max_size=5)
any_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=12
)
nearly = st.fixed_dictionaries(
    {"$epoch": st.integers(-1, 5) | any_json, "$reader": st.just(READER) | any_json, "$last": st.just({}) | any_json},
    optional={"$from": st.lists(st.dictionaries(keys, any_json, max_size=2), max_size=2) | any_json},
)

fingerprints = st.builds(Fingerprint, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


def load(name: str) -> Any:
    return json.loads((RESOURCES / name).read_text())


@given(positions, positions, st.dictionaries(queues, fingerprints, max_size=10))
def test_offset_survives_the_checkpoint(
    following: dict[Queue, int], starts: dict[Queue, int], last: dict[Queue, Fingerprint]
) -> None:
    offset = StreamOffset(following, starts, last)
    assert StreamOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


@given(positions)
def test_offsets_are_written_in_a_fixed_order(following: dict[Queue, int]) -> None:
    backwards = dict(reversed(following.items()))
    assert json.dumps(to_json(following)) == json.dumps(to_json(backwards))


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("v1-plain.json", StreamOffset({Queue("orders", 0): 23, Queue("orders", 1): 345}, last=LAST)),
        ("v1-no-queues.json", StreamOffset({})),
        (
            "v1-pinned.json",
            StreamOffset(
                {
                    Queue("audit", 0): 7,
                    Queue("orders", 0): 23,
                    Queue("orders", 1): 345,
                    Queue("orders", 10): 0,
                },
                starts={Queue("audit", 0): 7, Queue("orders", 10): 0},
                last={Queue("audit", 0): Fingerprint(4194304, 1763772000123), **LAST},
            ),
        ),
    ],
)
def test_stored_checkpoints_are_read(name: str, offset: StreamOffset) -> None:
    assert StreamOffset.from_json(load(name)) == offset
    assert json.dumps(offset.to_json()) == (RESOURCES / name).read_text().strip()


def test_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"^The checkpoint has an offset with '\$epoch', which a newer pyspark-mq wrote. Upgrade"
    ):
        StreamOffset.from_json(load("future-key.json"))


@pytest.mark.parametrize(
    "json_",
    [
        {"orders": {"0": 3}},
        {},
        {"orders": 3, **NONE},
        {"orders": {"0": "3"}, **NONE},
        {"orders": {"0": True}, **NONE},
        {"orders": {"0": -1}, **NONE},
        {"orders": {"x": 1}, **NONE},
        {"orders": {"²": 1}, **NONE},
        {"orders": {"00": 1}, **NONE},
        {"orders": {"2147483648": 1}, **NONE},
        {"orders": {"9" * 5000: 1}, **NONE},
        {"orders": {"0": 1 << 63}, **NONE},
        {"orders": {"0": float("inf")}, **NONE},
        {"logOffset": 17, **NONE},
        {"$start": 1, **NONE},
        {"$last": 1},
        {"$last": {"orders": {"0": 1}}},
        {"$last": {"orders": {"0": [1]}}},
        {"$last": {"orders": {"0": [1, -1]}}},
        17,
        None,
        [],
        "earliest",
    ],
)
def test_a_foreign_checkpoint_is_refused(json_: Any) -> None:
    with pytest.raises(CheckpointError, match="that this source cannot read"):
        StreamOffset.from_json(json_)


@pytest.mark.parametrize(
    ("what", "start", "bounds", "begin", "starts", "losses"),
    [
        ("a batch follows the one before", {A0: 15}, {A0: (10, 20)}, {A0: 15}, {}, []),
        (
            "a new queue begins at its first message",
            {A0: 15},
            {A0: (10, 20), B0: (3, 9)},
            {A0: 15, B0: 3},
            {B0: 3},
            [],
        ),
        ("idle at the end", {A0: 20}, {A0: (10, 20)}, {A0: 20}, {}, []),
        ("deleted", {A0: 5}, {A0: (10, 20)}, {A0: 10}, {A0: 10}, ["a/0 [5, 10) is lost"]),
        ("cut or recreated", {A0: 25}, {A0: (0, 20)}, {A0: 0}, {A0: 0}, ["a/0 [20, 25) is lost"]),
        ("gone", {A0: 5, B0: 7}, {A0: (0, 9)}, {A0: 5}, {}, ["b/0 from offset 7 on is lost: the queue was deleted"]),
    ],
)
def test_begin_of_a_batch(
    what: str,
    start: dict[Queue, int],
    bounds: dict[Queue, tuple[int, int]],
    begin: dict[Queue, int],
    starts: dict[Queue, int],
    losses: list[str],
) -> None:
    batch = begin_batch(StreamOffset(start), {queue: Bounds(*bound) for queue, bound in bounds.items()})
    assert (batch.begin, batch.starts) == (begin, starts)
    assert len(batch.losses) == len(losses)
    for loss, expected in zip(batch.losses, losses, strict=True):
        assert str(loss).startswith(expected)


def test_replaced_queue_is_read_from_its_first_message() -> None:
    start = StreamOffset({A0: 15, A1: 5, B0: 7}, last={queue: Fingerprint(100, 1) for queue in (A0, A1, B0)})
    batch = begin_batch(start, {A0: Bounds(10, 20), A1: Bounds(0, 5), B0: Bounds(8, 9)}, replaced=[A0])
    assert batch.begin == {A0: 10, A1: 5, B0: 8}
    assert batch.starts == {A0: 10, B0: 8}
    assert batch.last == {A1: Fingerprint(100, 1)}
    assert str(batch.losses[0]).startswith("a/0 from offset 15 on is lost: the queue has other messages")
    assert "begins at 10" in str(batch.losses[0])


def test_fingerprint_of_an_unknown_queue_is_ignored() -> None:
    assert begin_batch(StreamOffset({A0: 5}, last={B0: Fingerprint(100, 1)}), {A0: Bounds(0, 9)}).last == {}


def test_start_offsets_are_pinned_until_they_are_read() -> None:
    initial = StreamOffset({A0: 5, A1: 0}, starts={A0: 5, A1: 0})
    bounds = {A0: Bounds(0, 9), A1: Bounds(0, 0)}
    first = StreamOffset({A0: 7, A1: 0}, begin_batch(initial, bounds).starts)
    assert first.starts == {A0: 5, A1: 0}
    # A replay gets another initial offset, because "latest" has moved. The batch is the same.
    moved = StreamOffset({A0: 9, A1: 4}, starts={A0: 9, A1: 4})
    assert batch_ranges(moved, first) == batch_ranges(initial, first) == [QueueRange(Queue("a", 0), 5, 7)]
    # The second batch has moved past the pin of a/0, and reads a/1 first.
    second = StreamOffset({A0: 9, A1: 4}, begin_batch(first, {A0: Bounds(0, 9), A1: Bounds(0, 4)}).starts)
    assert second.starts == {A1: 0}
    assert batch_ranges(first, second) == [QueueRange(Queue("a", 0), 7, 9), QueueRange(Queue("a", 1), 0, 4)]


def test_a_batch_without_a_begin_is_refused() -> None:
    with pytest.raises(CheckpointError, match="does not record where b/0 begins"):
        batch_ranges(StreamOffset({A0: 5}), StreamOffset({A0: 5, B0: 1}))


def test_a_real_time_offset_survives_the_checkpoint() -> None:
    offset = EpochOffset(7, READER, ({Queue("orders", 0): 23, Queue("orders", 10): 1}, {Queue("orders", 2): 0}))
    json_ = json.loads(json.dumps(offset.to_json()))
    assert json_ == {
        "$epoch": 7,
        "$reader": READER,
        "$from": [{"orders": {"0": 23, "10": 1}}, {"orders": {"2": 0}}],
        "$last": {},
    }
    assert EpochOffset.from_json(json_) == offset
    assert offset.begin == {Queue("orders", 0): 23, Queue("orders", 10): 1, Queue("orders", 2): 0}


@given(any_json | nearly)
def test_any_json_is_an_offset_or_refused(json_: Any) -> None:
    with suppress(CheckpointError):
        offset = EpochOffset.from_json(json_) or StreamOffset.from_json(json_)
        if isinstance(offset, EpochOffset):
            assert READER_ID.fullmatch(offset.reader)
            assert 0 <= offset.epoch < 1 << 63
        assert type(offset).from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_a_micro_batch_offset_is_no_real_time_offset() -> None:
    assert EpochOffset.from_json({"orders": {"0": 23}}) is None
    assert EpochOffset.from_json({}) is None


@pytest.mark.parametrize(
    ("json_", "message"),
    [
        ({"$epoch": 7, "$reader": READER, "$from": []}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": READER, **NONE}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": READER, "$from": 1, **NONE}, "a damaged real-time"),
        ({"$epoch": "x", "$reader": READER, "$from": [], **NONE}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": READER, "$from": [{"orders": {"0": -1}}], **NONE}, "a damaged real-time"),
        ({"$epoch": float("inf"), "$reader": READER, "$from": [], **NONE}, "a damaged real-time"),
        ({"$epoch": True, "$reader": READER, "$from": [], **NONE}, "a damaged real-time"),
        ({"$epoch": 1 << 63, "$reader": READER, "$from": [], **NONE}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": 7, "$from": [], **NONE}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": READER.upper(), "$from": [], **NONE}, "a damaged .*reader"),
        ({"$epoch": 7, "$reader": "../../elsewhere", "$from": [], **NONE}, "a damaged .*reader"),
        ({"$epoch": 7, "$reader": READER, "$from": [{"a": {"0": 1}}, {"a": {"0": 2}}], **NONE}, "names a/0 twice"),
        ({"$epoch": 7, "$reader": READER, "$from": [], "orders": {"0": 1}, **NONE}, "a damaged real-time"),
        ({"$epoch": 7, "$reader": READER, "$from": [], "$later": 1, **NONE}, "which a newer pyspark-mq wrote"),
    ],
)
def test_a_wrong_real_time_offset_is_refused(json_: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        EpochOffset.from_json(json_)


def test_stored_real_time_checkpoint_is_read() -> None:
    tasks = ({Queue("orders", 0): 23, Queue("orders", 2): 0}, {Queue("orders", 1): 345})
    offset = EpochOffset(7, READER, tasks, LAST)
    assert EpochOffset.from_json(load("real_time.json")) == offset
    assert json.dumps(offset.to_json()) == (RESOURCES / "real_time.json").read_text().strip()
