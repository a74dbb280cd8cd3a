"""Check users' arguments, and raise `InvalidArgument`; format numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final, SupportsIndex

from store.model.errors import InvalidArgument

INT_MAX: Final = (1 << 31) - 1  # Java's int
LONG_MAX: Final = (1 << 63) - 1  # and long
_MAX_SECONDS = 253_402_300_799  # year 9999


def integer(name: str, value: SupportsIndex, minimum: int = -LONG_MAX - 1, maximum: int = LONG_MAX) -> int:
    """Return an integer. Raises `InvalidArgument` for a bool, a float, or a number out of bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise InvalidArgument(f"{name}={value!r}: must be a whole number, not of type {type(value).__name__}")
    if not minimum <= number <= maximum:
        raise InvalidArgument(f"{name}={number}: must lie between {minimum} and {maximum}")
    return number


def seconds(name: str, value: float) -> float:
    """Return a time or a time span. Raises `InvalidArgument` if it is no number, or after the year 9999."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _MAX_SECONDS:
        raise InvalidArgument(f"{name}={value!r:.40}: give a number of seconds, from -{_MAX_SECONDS} to {_MAX_SECONDS}")
    return number


def span(name: str, value: float) -> float:
    """Return a time span in seconds. Raises as `seconds`, and for a negative number."""
    number = seconds(name, value)
    if number < 0:
        raise InvalidArgument(f"{name}={value}: give a number of seconds, 0 or more")
    return number


def iso_time(milliseconds: int) -> str:
    """Return a time in the form 2026-01-31T12:00:00.000Z."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{milliseconds} ms since 1970"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def counted(number: int, noun: str) -> str:
    """Return text such as "1 topic" or "1,000 topics"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}={value!r:.40}: must be a text, not of type {type(value).__name__}")
    return value


def one_of(name: str, value: object, choices: Collection[object]) -> None:
    if value not in choices:
        raise InvalidArgument(f"{name}={value!r:.40}: give one of {', '.join(map(repr, choices))}")
