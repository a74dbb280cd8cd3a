"""Queue ids, offsets, times and counts as users give them: whole numbers, of Python or of numpy, within bounds."""

from __future__ import annotations

import operator
from typing import Final, SupportsIndex

from store.errors import InvalidArgument

INT_MAX: Final = (1 << 31) - 1  # Java's int
LONG_MAX: Final = (1 << 63) - 1  # and long


def integer(name: str, value: SupportsIndex, minimum: int = -LONG_MAX - 1, maximum: int = LONG_MAX) -> int:
    """`value` as an int. Raises `InvalidArgument`, which names it, for a bool, a float, a text, or out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidArgument(f"{name}={value!r}: a {type(value).__name__}; give a whole number")
    if not minimum <= number <= maximum:
        raise InvalidArgument(f"{name}={number}: must lie between {minimum} and {maximum}")
    return number
