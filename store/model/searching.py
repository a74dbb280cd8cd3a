"""Bisection, of whatever ascends."""

from __future__ import annotations

from collections.abc import Callable


def first_not(low: int, high: int, is_before: Callable[[int], bool]) -> int:
    """The first of [low, high) that is not before what is looked for; `high` without one. All before it are."""
    while low < high:
        middle = (low + high) // 2
        if is_before(middle):
            low = middle + 1
        else:
            high = middle
    return low
