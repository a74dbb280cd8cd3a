"""Syntax trees of SQL92 conditions on properties, with the semantics of RocketMQ's filter.

A condition is true, false, unknown (null), or an error if RocketMQ throws an exception. Only true matches.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

Symbol = Literal[">", ">=", "<", "<="]
Part = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]

COMPARISONS: dict[Symbol, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
INT_MAX = (1 << 31) - 1
"""The largest Integer literal; larger ones are Longs."""


@dataclass(frozen=True)
class Constant:
    """A literal. int: RocketMQ's Integer or Long, float: Double."""

    value: bool | str | int | float | None
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Property:
    """A property's text, null if the message lacks it."""

    name: str
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Negative:
    """The negative of a number, null if the operand is no number."""

    operands: tuple[Node]


@dataclass(frozen=True)
class Equal:
    operands: tuple[Node, Node]


@dataclass(frozen=True)
class Ordered:
    symbol: Symbol
    operands: tuple[Node, Node]


@dataclass(frozen=True)
class OneOf:
    operands: tuple[Property]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Contains:
    """`x CONTAINS text`, STARTSWITH or ENDSWITH. False if x is null, even if negated."""

    part: Part
    operands: tuple[Node]
    text: str
    negated: bool


@dataclass(frozen=True)
class Cast:
    """A property used as a condition: false, or unknown if missing."""

    operands: tuple[Property]


@dataclass(frozen=True)
class Not:
    operands: tuple[Node]


@dataclass(frozen=True)
class And:
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    operands: tuple[Node, ...]


Condition = Equal | Ordered | OneOf | Contains | Cast | Not | And | Or
Node = Constant | Property | Negative | Condition


def levels(node: Node) -> Iterator[list[Node]]:
    level = [node]
    while level:
        yield level
        level = [operand for parent in level for operand in parent.operands]


def names_of(condition: Node) -> frozenset[str]:
    return frozenset(node.name for level in levels(condition) for node in level if isinstance(node, Property))


def texts_of(condition: Node, name: str) -> frozenset[str] | None:
    """Return all texts of a property in matching messages, None if it can have any."""
    match condition:
        case Equal((Property(found), Constant(str() as text)) | (Constant(str() as text), Property(found))):
            return frozenset((text,)) if found == name else None
        case OneOf((Property(found),), members):
            return frozenset(members) if found == name else None
        case And(operands):
            return next((texts for each in operands if (texts := texts_of(each, name)) is not None), None)
        case Or(operands):
            each_of = [texts_of(each, name) for each in operands]
            known = [texts for texts in each_of if texts is not None]
            return frozenset().union(*known) if len(known) == len(each_of) else None
    return None


def is_never_true(condition: Node) -> bool:
    match condition:
        case Constant(value):
            return value is not True
        case Cast():
            return True
        case Equal((other, Constant(str()))):  # not the reverse: "'true' = (condition)" can be true
            return isinstance(other, Condition)
        case Equal((Constant(value), other) | (other, Constant(value))):
            return isinstance(other, Condition) and isinstance(value, int | float) and not isinstance(value, bool)
        case And(operands):
            return any(map(is_never_true, operands)) or _is_contradiction(operands)
        case Or(operands):
            return all(map(is_never_true, operands))
    return False


def _is_contradiction(operands: tuple[Node, ...]) -> bool:
    wanted: dict[str, str] = {}
    for operand in operands:
        match operand:
            case Equal((Property(name), Constant(str() as text)) | (Constant(str() as text), Property(name))):
                if wanted.setdefault(name, text) != text:
                    return True
    return False
