"""Vectorized evaluation of conditions over Arrow columns, and Java's parsing of numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format.arrays import arrow, constant, numbers, pc, texts
from store.format.arrays import texts as strings
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
)

Float64s = npt.NDArray[np.float64]


_BLANKS = "".join(map(chr, range(ord(" ") + 1)))  # Java's String.trim removes these
_INTEGER = r"^[+-]?[0-9]+$"
_INTEGER_OF_ANY_SCRIPT = r"^[+-]?\p{Nd}+$"
_LONG_DIGITS = 19  # fits into an unsigned 64-bit integer
_LONG_MAX = np.uint64((1 << 63) - 1)
_DOUBLE = r"^[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)$"
_SUFFIXES = "fFdD"
_HEX_DOUBLE = r"^[+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?$"
_ONE_INTEGER, _ONE_DOUBLE, _ONE_HEX_DOUBLE = map(re.compile, (_INTEGER, _DOUBLE, _HEX_DOUBLE))
_ONE_INTEGER_OF_ANY_SCRIPT = re.compile(r"[+-]?\d+")


def mask_of(booleans: pa.BooleanArray | pa.BooleanScalar) -> Bools:
    """Return a mask in which null is False. A scalar gives shape (1,)."""
    if isinstance(booleans, pa.Scalar):
        return np.array([bool(booleans.as_py())])
    mask: Bools = numbers(pc.and_kleene(booleans, booleans.is_valid()) if booleans.null_count else booleans)
    return mask


def longs(values: pa.StringArray) -> tuple[Int64s, Bools]:
    """Parse as `Long.valueOf`. Return the numbers and a mask of valid texts.

    Valid texts have an optional sign, digits of any script, no blanks, and a value within 64 bits. Null is invalid.
    """
    values = _with_ascii_digits(pc.fill_null(values, constant("")))
    sound = mask_of(pc.match_substring_regex(values, _INTEGER))
    digits = pc.ascii_ltrim(values, "+-0")
    lengths = numbers(pc.binary_length(digits))
    sound &= lengths <= _LONG_DIGITS
    magnitudes = numbers(pc.if_else(arrow(sound & (lengths > 0)), digits, constant("0")).cast(pa.uint64()))
    negative = mask_of(pc.starts_with(values, "-"))
    sound &= magnitudes <= _LONG_MAX + negative
    return np.where(negative, 0 - magnitudes, magnitudes).view(np.int64), sound


def doubles(values: pa.StringArray) -> tuple[Float64s, Bools]:
    """Parse as `Double.valueOf`. Return the numbers and a mask of valid texts.

    As in Java, surrounding blanks, a suffix as in "5.0f" and hexadecimal numbers are valid. Too large numbers are
    infinite. Null is invalid.
    """
    values = pc.ascii_trim(pc.fill_null(values, constant("")), _BLANKS)
    sound = mask_of(pc.match_substring_regex(values, _DOUBLE))
    decimal = pc.ascii_rtrim(pc.if_else(arrow(sound), values, constant("0")), _SUFFIXES)
    found: Float64s = numbers(decimal.cast(pa.float64()))
    if not sound.all() and (hexadecimal := mask_of(pc.match_substring_regex(values, _HEX_DOUBLE))).any():
        distinct = values.filter(arrow(hexadecimal)).dictionary_encode()
        found = found.copy()
        found[hexadecimal] = np.array(list(map(_from_hex, distinct.dictionary.to_pylist())))[numbers(distinct.indices)]
        sound |= hexadecimal
    return found, sound


def total_order(doubles: Float64s) -> Int64s:
    """Map doubles to integers that order as Java's `Double.compare`: -0.0 before 0.0, NaN last and equal to itself."""
    bits = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64((1 << 63) - 1))


def long_of(text: str) -> int | None:
    """Parse one text as `longs`; None if it is invalid."""
    if not text.isascii() and _ONE_INTEGER_OF_ANY_SCRIPT.fullmatch(text):
        text = "".join(map(_ascii_digit, text))
    if not _ONE_INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-0")  # int() raises for thousands of digits
    if len(digits) > _LONG_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if -int(_LONG_MAX) - 1 <= number <= int(_LONG_MAX) else None


def double_of(text: str) -> float | None:
    """Parse one text as `doubles`; None if it is invalid."""
    text = text.strip(_BLANKS)
    if _ONE_DOUBLE.fullmatch(text):
        return float(text.rstrip(_SUFFIXES))
    return _from_hex(text) if _ONE_HEX_DOUBLE.fullmatch(text) else None


def _with_ascii_digits(values: pa.StringArray) -> pa.StringArray:
    foreign = ~mask_of(pc.string_is_ascii(values))
    if foreign.any():
        foreign &= mask_of(pc.match_substring_regex(values, _INTEGER_OF_ANY_SCRIPT))
        distinct = values.filter(arrow(foreign)).dictionary_encode()
        translated = texts(["".join(map(_ascii_digit, text)) for text in distinct.dictionary.to_pylist()])
        values = pc.replace_with_mask(values, arrow(foreign), translated.take(distinct.indices))
    return values


def _ascii_digit(character: str) -> str:
    # Java parses UTF-16 code units: a digit outside the basic plane is invalid.
    return character if character in "+-" or ord(character) > 0xFFFF else str(unicodedata.decimal(character))


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text.rstrip(_SUFFIXES))  # F and D are no digits of the exponent, which is decimal
    except OverflowError:
        return -np.inf if text.startswith("-") else np.inf


_PARTS = {"CONTAINS": "match_substring", "STARTSWITH": "starts_with", "ENDSWITH": "ends_with"}


class Truth(NamedTuple):
    """The results of a condition for n messages, as masks of shape (n,), or (1,) for a constant.

    At most one mask is set for a message: true, null (unknown), or error (RocketMQ throws an exception). If none is
    set, the result is false.
    """

    true: Bools
    null: Bools
    error: Bools


def evaluate(condition: Node, values: Mapping[str, pa.StringArray], count: int) -> Truth:
    """Evaluate a condition for `count` messages. values: the texts of each of its properties."""
    masks = _truth(condition, {name: _Text(value) for name, value in values.items()})
    true, null, error = (np.broadcast_to(mask, (count,)) for mask in masks)
    return Truth(true, null, error)


class _Text:
    """The texts of a property, or one literal."""

    def __init__(self, values: pa.StringArray | pa.StringScalar) -> None:
        self.values = values

    @cached_property
    def null(self) -> Bools:
        return mask_of(pc.is_null(self.values))

    @cached_property
    def longs(self) -> tuple[Int64s, Bools]:
        return longs(self._array)

    @cached_property
    def doubles(self) -> tuple[npt.NDArray[np.float64], Bools]:
        return doubles(self._array)

    @property
    def _array(self) -> pa.StringArray:
        return strings([self.values.as_py()]) if isinstance(self.values, pa.Scalar) else self.values


class _Number(NamedTuple):
    value: int | float


_Value = Truth | _Text | _Number
_Texts = Mapping[str, _Text]
_YES, _NO = np.ones(1, np.bool_), np.zeros(1, np.bool_)  # constants, broadcast to all messages
_UNKNOWN = Truth(_NO, _YES, _NO)


def _value(node: Node, texts: _Texts) -> _Value:
    match node:
        case Constant(None):
            return _UNKNOWN
        case Constant(bool(value)):
            return Truth(np.array([value]), _NO, _NO)
        case Constant(str(value)):
            return _Text(constant(value))
        case Constant(int(value) | float(value)):
            return _Number(value)
        case Property(name):
            return texts[name]
        case Negative((operand,)):
            negated = _value(operand, texts)
            if isinstance(negated, _Number):
                return _Number(-negated.value)
            return Truth(_NO, ~_errors(negated), _errors(negated))
        case Equal((left, right)):
            return _equal(_value(left, texts), _value(right, texts))
        case Ordered(symbol, (left, right)):
            return _ordered(COMPARISONS[symbol], _value(left, texts), _value(right, texts))
        case OneOf((property,), members):
            values = texts[property.name].values
            found = pc.is_in(values, strings(members))
            null = texts[property.name].null
            return Truth(mask_of(found) & ~null, null, _NO)
        case Contains(part, (operand,), text, negated):
            return _contains(part, _value(operand, texts) if text else _UNKNOWN, text, negated)
        case Cast((property,)):
            return Truth(_NO, texts[property.name].null, _NO)
        case Not((operand,)):
            return _not(_truth(operand, texts))
        case Or(operands):
            return reduce(_or, (_truth(operand, texts) for operand in operands))
        case And(operands):  # De Morgan's law also holds for errors
            return _not(reduce(_or, (_not(_truth(operand, texts)) for operand in operands)))
    raise AssertionError(node)


def _truth(node: Node, texts: _Texts) -> Truth:
    value = _value(node, texts)
    assert isinstance(value, Truth)  # ensured by the grammar
    return value


def _not(condition: Truth) -> Truth:
    true, null, error = condition
    return Truth(~(true | null | error), null, error)


def _or(left: Truth, right: Truth) -> Truth:
    true = left.true | (right.true & ~left.error)
    error = left.error | (right.error & ~left.true)  # ignored if the left operand is true
    return Truth(true, (left.null | right.null) & ~true & ~error, error)


def _contains(part: Part, value: _Value, text: str, negated: bool) -> Truth:
    if not isinstance(value, _Text):
        return Truth(_NO, _NO, _errors(value))
    found = mask_of(getattr(pc, _PARTS[part])(value.values, text))
    return Truth(~found & ~_nulls(value) if negated else found, _NO, _NO)


def _equal(left: _Value, right: _Value) -> Truth:
    """Compare by `=`. Two nulls are equal. If only the left value is null the result is unknown, if only the right one,
    false.
    """
    left_null, right_null = _nulls(left), _nulls(right)
    error = _errors(left) | _errors(right)
    both = ~(left_null | right_null | error)
    same, comparable = _same(left, right)
    error = error | (both & ~comparable)
    true = ((both & same) | (left_null & right_null)) & ~error
    return Truth(true, left_null & ~right_null & ~error, error)


def _same(left: _Value, right: _Value) -> tuple[Bools, Bools]:
    """Compare values that are not null. Return two masks: equal, and comparable."""
    match left, right:
        case _Text(values=one), _Text(values=other):
            return mask_of(pc.equal(one, other)), _YES
        case Truth(one), Truth(other):
            return one == other, _YES
        case _Text(values=texts), Truth(true):
            return mask_of(pc.match_substring_regex(texts, "^true$", ignore_case=True)) == true, _YES
        case Truth(), _Text():
            return _NO, _NO
        case (Truth(), _Number()) | (_Number(), Truth()):
            return _NO, _YES
    first, second, comparable = _numbers(left, right)
    return first == second, comparable


def _ordered(compare: Callable[[Any, Any], Any], left: _Value, right: _Value) -> Truth:
    left_null, right_null = _nulls(left), _nulls(right)
    error = _errors(left) | (_errors(right) & ~left_null)  # an error after a null is ignored
    both = ~(left_null | right_null | error)
    if not both.any():
        return Truth(_NO, ~error, error)
    first, second, comparable = _numbers(left, right)
    error = error | (both & ~comparable)
    return Truth(both & compare(first, second) & ~error, (left_null | right_null) & ~error, error)


def _numbers(left: _Value, right: _Value) -> tuple[Int64s, Int64s, Bools]:
    """Return integers that compare as the values do, and the mask of valid numbers.

    A text is parsed as the type of the number that it is compared with, two texts as doubles.
    """
    assert not isinstance(left, Truth)  # `_same` handles conditions, and the grammar does not order them
    assert not isinstance(right, Truth)
    literals = [value.value for value in (left, right) if isinstance(value, _Number)]
    if literals and all(isinstance(literal, int) for literal in literals):
        narrow = max(map(abs, literals)) <= INT_MAX
        (first, sound), (second, also_sound) = _integers(left, narrow), _integers(right, narrow)
        return first, second, sound & also_sound
    (one, sound), (other, also_sound) = _doubles(left), _doubles(right)
    return total_order(one), total_order(other), sound & also_sound


def _integers(value: _Text | _Number, narrow: bool) -> tuple[Int64s, Bools]:
    if not isinstance(value, _Text):
        return np.array([value.value], np.int64), _YES
    numbers, sound = value.longs
    return numbers, sound & (numbers == numbers.astype(np.int32)) if narrow else sound


def _doubles(value: _Text | _Number) -> tuple[npt.NDArray[np.float64], Bools]:
    return value.doubles if isinstance(value, _Text) else (np.array([value.value], np.float64), _YES)


def _nulls(value: _Value) -> Bools:
    if isinstance(value, Truth):
        return value.null
    return value.null if isinstance(value, _Text) else _NO


def _errors(value: _Value) -> Bools:
    return value.error if isinstance(value, Truth) else _NO
