"""Arrow arrays built from buffers equal those that pyarrow's conversions build."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.arrays import arrow, blobs, constant, numbers, texts

KINDS = (np.int32, np.int64, np.uint8, np.float64)


@given(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 100), st.booleans())), st.integers(0, 20))
def test_numbers_equal_pyarrows(kind: type[np.generic], rows: list[tuple[int, bool]], first: int) -> None:
    values, nulls = np.array([value for value, _ in rows], kind), np.array([null for _, null in rows], np.bool_)
    assert arrow(values).equals(pa.array(values))
    assert arrow(values, nulls=nulls).equals(pa.array(values, mask=nulls))
    found = numbers(pa.array(values)[first:])
    assert found.dtype == values.dtype
    assert found.tolist() == values[first:].tolist()


@given(st.lists(st.booleans()), st.integers(0, 20))
def test_truth_values_equal_pyarrows(rows: list[bool], first: int) -> None:
    values = np.array(rows, np.bool_)
    assert arrow(values).equals(pa.array(values))
    assert numbers(arrow(values)[first:]).tolist() == rows[first:]


def test_strided_numbers_equal_pyarrows() -> None:
    assert arrow(np.arange(10)[::2]).to_pylist() == [0, 2, 4, 6, 8]


@given(st.lists(st.text()), st.lists(st.binary()))
def test_texts_and_blobs_equal_pyarrows(words: list[str], bodies: list[bytes]) -> None:
    assert texts(words).equals(pa.array(words, pa.string()))
    assert blobs(bodies).equals(pa.array(bodies, pa.binary()))
    for value in (*words, *bodies):
        assert constant(value).equals(pa.scalar(value))


def test_lone_surrogate_is_no_text() -> None:
    with pytest.raises(UnicodeEncodeError):
        texts(["\ud800"])
