"""The message filter for a SQL92 condition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import copysign, isnan
from typing import Any

import numpy as np
import pyarrow as pa

from store.format.arrays import arrow, constant, pc
from store.format.layout import PROPERTY_TAGS
from store.model.log_protocol import Bools, Int64s
from store.read.conditions import (
    COMPARISONS,
    INT_MAX,
    And,
    Cast,
    Constant,
    Contains,
    Equal,
    Negative,
    Node,
    Not,
    OneOf,
    Or,
    Ordered,
    Part,
    Property,
    names_of,
)
from store.read.evaluation import double_of, evaluate, long_of

_Value = bool | str | int | float | None


@dataclass(frozen=True)
class SqlFilter:
    """A `MessageFilter` for a condition, which must be true. Filters with equal expressions are equal."""

    expression: str
    condition: Node = field(compare=False, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filter reads: `properties`, which includes RocketMQ's own, such as TAGS and KEYS."""
        return ("properties",)

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """None, because tag hashes do not determine the result of a condition."""
        return None

    def match_codes(self, tags_codes: Int64s) -> Bools:
        return np.ones(len(tags_codes), np.bool_)

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        properties = batch.column("properties")
        # Names are unique in a message, and "last" is much faster than "first".
        values = {name: pc.map_lookup(properties, constant(name), "last") for name in names_of(self.condition)}
        return arrow(evaluate(self.condition, values, len(properties)).true)

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Return whether a message matches. tag: the property TAGS if `properties` lacks it."""
        try:
            return _value(self.condition, properties if tag is None else {PROPERTY_TAGS: tag, **properties}) is True
        except _Failure:
            return False


class _Failure(Exception):
    """Two values cannot be compared. RocketMQ throws an exception then, and does not deliver the message."""


def _value(node: Node, properties: Mapping[str, str]) -> _Value:
    """Evaluate a condition for one message, as `evaluation.evaluate` for many."""
    match node:
        case Constant(value):
            return value
        case Property(name):
            return properties.get(name)
        case Negative((operand,)):
            number = _value(operand, properties)
            return -number if isinstance(number, int | float) and not isinstance(number, bool) else None
        case Equal((first, second)):
            left, right = _value(first, properties), _value(second, properties)
            if left is None or right is None:
                return left is right or (None if left is None else False)
            return _equal(left, right)
        case Ordered(symbol, (first, second)):
            if (left := _value(first, properties)) is None or (right := _value(second, properties)) is None:
                return None
            return bool(COMPARISONS[symbol](*_numbers(left, right)))
        case OneOf((property,), texts):
            text = properties.get(property.name)
            return None if text is None else text in texts
        case Contains(part, (operand,), text, negated):
            value = _value(operand, properties) if text else None
            return isinstance(value, str) and _contains(part, value, text) is not negated
        case Cast((property,)):
            return None if properties.get(property.name) is None else False
        case Not((operand,)):
            truth = _value(operand, properties)
            return None if truth is None else not truth
        case Or(operands):
            return _first(True, operands, properties)
        case And(operands):
            return _first(False, operands, properties)
    raise AssertionError(node)


def _first(decisive: bool, operands: tuple[Node, ...], properties: Mapping[str, str]) -> bool | None:
    """Evaluate AND or OR up to the first operand that decides. decisive: False for AND."""
    unknown = False
    for operand in operands:
        truth = _value(operand, properties)
        if truth is decisive:
            return decisive
        unknown |= truth is None
    return None if unknown else not decisive


def _contains(part: Part, value: str, text: str) -> bool:
    if part == "CONTAINS":
        return text in value
    return value.startswith(text) if part == "STARTSWITH" else value.endswith(text)


def _equal(left: _Value, right: _Value) -> bool:
    match left, right:
        case (str(), str()) | (bool(), bool()):
            return left == right
        case str(text), bool(truth):
            return (text.lower() == "true") is truth
        case bool(), str():
            raise _Failure
        case (bool(), _) | (_, bool()):
            return False
    first, second = _numbers(left, right)
    return bool(first == second)


def _numbers(left: _Value, right: _Value) -> tuple[Any, Any]:
    literals = [value for value in (left, right) if not isinstance(value, str)]
    if literals and all(isinstance(literal, int) for literal in literals):
        narrow = max(abs(literal) for literal in literals if isinstance(literal, int)) <= INT_MAX
        return _integer(left, narrow), _integer(right, narrow)
    return _double(left), _double(right)


def _integer(value: _Value, narrow: bool) -> int:
    number = long_of(value) if isinstance(value, str) else value
    if not isinstance(number, int) or (narrow and not -INT_MAX - 1 <= number <= INT_MAX):
        raise _Failure
    return number


def _double(value: _Value) -> tuple[bool, float, float]:
    """Return a key that orders as Java's doubles, see `evaluation.total_order`."""
    number = double_of(value) if isinstance(value, str) else value
    if number is None:
        raise _Failure
    number = float(number)
    return (True, 0.0, 0.0) if isnan(number) else (False, number, copysign(1.0, number))
