from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from store.archive.served_records import NAMELESS, NamedMessage, is_name, named, names


@given(st.integers(0, 4094), st.integers(0, 1023), st.lists(st.integers(0, (1 << 40) - 1), min_size=1))
def test_id_names_its_message(topic: int, queue: int, offsets: list[int]) -> None:
    given = names(topic, queue, np.array(offsets, np.int64)).tolist()
    assert [named(each) for each in given] == [NamedMessage(topic, queue, offset) for offset in offsets]
    assert all(map(is_name, given))


def test_messages_without_an_id_are_not_mixed_up() -> None:
    for topic, queue, offset in ((4095, 0, 0), (1 << 30, 5, 5), (0, 1024, 0), (0, 0, 1 << 40), (4094, 1023, 1 << 62)):
        assert names(topic, queue, np.array([3, offset], np.int64)).tolist()[1] == NAMELESS
    assert named(NAMELESS) is None
    assert is_name(NAMELESS)
    for of_a_log in (0, 1 << 40, (1 << 62) - 1):
        assert not is_name(of_a_log)
        assert named(of_a_log) is None
