from __future__ import annotations

import numpy as np
import pytest

from store import InvalidArgument, StoreError
from store.model.integers import LONG_MAX, integer


@pytest.mark.parametrize("value", [5, np.int64(5), np.uint8(5)])
def test_whole_numbers_are_accepted(value: int) -> None:
    number = integer("n", value, 0, 5)
    assert (type(number), number) == (int, 5)


@pytest.mark.parametrize("value", [5.0, np.float64(5), "5", b"5", None, True, np.True_, [5]])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match=rf"n=.*: must be a whole number, not of type {type(value).__name__}"):
        integer("n", value)  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "bounds"), [(-1, (0, 9)), (10, (0, 9)), (LONG_MAX + 1, ()), (-LONG_MAX - 2, ())])
def test_bounds_are_checked(value: int, bounds: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match=rf"n={value}: must lie between"):
        integer("n", value, *bounds)


def test_invalid_argument_is_a_store_error_and_value_error() -> None:
    assert issubclass(InvalidArgument, StoreError)
    assert issubclass(InvalidArgument, ValueError)
