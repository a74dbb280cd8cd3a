from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import FilterError
from store.read.sql92 import parse
from tests.expressions import Expressions, property_sets

MAP = pa.map_(pa.string(), pa.string())
SEEDS = st.integers(0, 1 << 32)


@given(SEEDS, st.integers(0, 12))
def test_single_messages_match_like_batches(seed: int, count: int) -> None:
    random = Random(seed)
    try:
        accept = parse(Expressions(random).any())
    except FilterError:
        return
    sets = property_sets(random, count)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([list(properties.items()) for properties in sets], MAP)], ["properties"]
    )
    matches = accept.match_batch(batch)
    assert matches.type == pa.bool_()
    assert matches.to_pylist() == [accept.match(properties.get("TAGS"), properties) for properties in sets]
    assert accept.match_batch(batch.slice(count // 2)).to_pylist() == matches.to_pylist()[count // 2 :]


def test_tag_is_the_property_tags() -> None:
    assert parse("TAGS = 'paid'").match("paid", {})
    assert parse("TAGS IS NULL").match(None, {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("TRUE", True), ("NULL IS NULL", True), ("1 > 2", False), ("NULL", False), ("-1 < 0.5", True)],
)
def test_conditions_without_a_property_work(expression: str, expected: bool) -> None:
    accept = parse(expression)
    batch = pa.RecordBatch.from_arrays([pa.array([[], [], []], MAP)], ["properties"])
    assert accept.match_batch(batch).to_pylist() == [expected] * 3
    assert accept.match("paid", {"a": "5"}) is expected
    assert accept.columns == ("properties",)


def test_condition_cannot_exclude_queue_entries() -> None:
    accept = parse("TAGS = 'paid'")
    assert accept.tags_codes is None
    assert accept.match_codes(np.array([0, 5, -1])).tolist() == [True, True, True]
