from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.op_message import offsets_ended, op_body


@given(st.lists(st.integers(0, 10**18 - 1)))
def test_it_says_what_was_written(offsets: list[int]) -> None:
    assert offsets_ended(op_body(offsets).encode()) == offsets


def test_it_is_rocketmqs() -> None:
    assert op_body([0, 1]) == "0,1,"


@pytest.mark.parametrize("text", [b"", b",", b"x", b"-1", b"1.5", "٣".encode(), b"\xff", b" 7", b"9" * 5000])
def test_what_is_no_offset_ends_nothing(text: bytes) -> None:
    assert offsets_ended(b"3," + text + b",5,") == [3, 5]
