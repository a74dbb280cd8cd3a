from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.properties import decode_properties
from store.model.errors import BadFrame
from store.remoting.bodies import Batched, batch_entries, decode_batch
from tests.store.remoting.broker import encode_batch
from tests.store.remoting.golden import FRAMES

(MADE,) = {bytes.fromhex(line["body"]) for line in FRAMES if line["code"] == 320}
BATCHES = st.lists(
    st.builds(
        Batched,
        flag=st.integers(-(1 << 31), (1 << 31) - 1),
        body=st.binary(max_size=30),
        properties=st.binary(max_size=30),
    ),
    max_size=5,
)


def test_batch_of_rocketmq_is_decoded_and_encoded() -> None:
    first, second = decode_batch(MADE, 99)
    assert (first.flag, first.body, second.flag, second.body) == (7, b"one", 0, b"")
    assert decode_properties(first.properties) == {"TAGS": "paid", "KEYS": "key-1 key-2", "WAIT": "true"}
    assert encode_batch([first, second]) == MADE


@given(BATCHES)
def test_batch_survives_encoding(batch: list[Batched]) -> None:
    assert decode_batch(encode_batch(batch), 99) == batch


@given(BATCHES.filter(bool), st.data())
def test_changed_batch_is_another_one_or_refused(batch: list[Batched], data: st.DataObject) -> None:
    changed = bytearray(encode_batch(batch))
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=3)):
        changed[at] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.integers(0, len(changed)))]
    try:
        found = decode_batch(bytes(changed), 99)
    except BadFrame:
        return
    assert sum(len(each.body) + len(each.properties) for each in found) <= len(changed)


@pytest.mark.parametrize("cut", range(1, 20))
def test_truncated_batch_is_refused(cut: int) -> None:
    with pytest.raises(BadFrame, match="message 1"):
        decode_batch(MADE[:-cut], 99)


@given(BATCHES)
def test_batches_of_columns_equal_those_of_messages(messages: list[Batched]) -> None:
    flags = np.array([message.flag for message in messages], np.int64)
    bodies = pa.array([message.body for message in messages], pa.binary())
    properties = pa.array([message.properties for message in messages], pa.binary())
    assert b"".join(batch_entries(bodies, properties, flags).to_pylist()) == encode_batch(messages)
