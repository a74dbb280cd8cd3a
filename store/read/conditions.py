"""SQL92 expressions as trees of conditions on properties, by the rules of RocketMQ's filter.

A property is a text. A condition is true, false or unknown (null) for a message, or fails, where RocketMQ's raises an
exception. A message matches only if it is true. `evaluation` evaluates it for many messages, `sql_filter` for one.
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
"""A literal up to here is an Integer, and stays one when it is negated; a larger one is a Long."""


@dataclass(frozen=True)
class Constant:
    """A literal. An int is RocketMQ's Integer or Long, by its size, a float its Double, None its NULL."""

    value: bool | str | int | float | None
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Property:
    """A property's text, null where the message has none."""

    name: str
    operands: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Negative:
    """`-x`: of a number; null of all else."""

    operands: tuple[Node]


@dataclass(frozen=True)
class Equal:
    """`x = y`."""

    operands: tuple[Node, Node]


@dataclass(frozen=True)
class Ordered:
    """`x > y`, and so on."""

    symbol: Symbol
    operands: tuple[Node, Node]


@dataclass(frozen=True)
class OneOf:
    """`property IN (texts)`."""

    operands: tuple[Property]
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Contains:
    """`x CONTAINS text` and its like; false of null, negated or not."""

    part: Part
    operands: tuple[Node]
    text: str
    negated: bool


@dataclass(frozen=True)
class Cast:
    """A property in the place of a condition: false, or unknown if the message lacks it."""

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
    """Yield the nodes of a tree, one depth at a time."""
    level = [node]
    while level:
        yield level
        level = [operand for parent in level for operand in parent.operands]


def names_of(condition: Node) -> frozenset[str]:
    """Return the properties that a condition reads."""
    return frozenset(node.name for level in levels(condition) for node in level if isinstance(node, Property))


def texts_of(condition: Node, name: str) -> frozenset[str] | None:
    """Return the texts one of which a property has wherever a condition is true; None if it may have any."""
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
    """Return whether the form of a condition shows that no message can match."""
    match condition:
        case Constant(value):
            return value is not True
        case Cast():
            return True
        case Equal((other, Constant(str()))):  # but "'true' = (condition)" may be
            return isinstance(other, Condition)
        case Equal((Constant(value), other) | (other, Constant(value))):
            return isinstance(other, Condition) and isinstance(value, int | float) and not isinstance(value, bool)
        case And(operands):
            return any(map(is_never_true, operands)) or _is_contradiction(operands)
        case Or(operands):
            return all(map(is_never_true, operands))
    return False


def _is_contradiction(operands: tuple[Node, ...]) -> bool:
    """Return whether one property must equal two texts."""
    wanted: dict[str, str] = {}
    for operand in operands:
        match operand:
            case Equal((Property(name), Constant(str() as text)) | (Constant(str() as text), Property(name))):
                if wanted.setdefault(name, text) != text:
                    return True
    return False
