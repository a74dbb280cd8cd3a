"""Texts as numbers, by the rules of Java's `Long.valueOf` and `Double.valueOf`, for many texts at once and for one."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from store.format import compute as pc
from store.format.arrays import arrow, constant, numbers, texts
from store.model.log_protocol import Bools, Int64s

Float64s = npt.NDArray[np.float64]


_BLANKS = "".join(map(chr, range(ord(" ") + 1)))  # what Java's String.trim takes away
_INTEGER = r"^[+-]?[0-9]+$"
_INTEGER_OF_ANY_SCRIPT = r"^[+-]?\p{Nd}+$"
_LONG_DIGITS = 19  # so many fit into 64 bits without a sign
_LONG_MAX = np.uint64((1 << 63) - 1)
_DOUBLE = r"^[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)$"
_SUFFIXES = "fFdD"
_HEX_DOUBLE = r"^[+-]?0[xX]([0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?$"
_ONE_INTEGER, _ONE_DOUBLE, _ONE_HEX_DOUBLE = map(re.compile, (_INTEGER, _DOUBLE, _HEX_DOUBLE))
_ONE_INTEGER_OF_ANY_SCRIPT = re.compile(r"[+-]?\d+")


def mask_of(booleans: pa.BooleanArray | pa.BooleanScalar) -> Bools:
    """As a mask, false where null; of a scalar, shape (1,)."""
    if isinstance(booleans, pa.Scalar):
        return np.array([bool(booleans.as_py())])
    mask: Bools = numbers(pc.and_kleene(booleans, booleans.is_valid()) if booleans.null_count else booleans)
    return mask


def longs(values: pa.StringArray) -> tuple[Int64s, Bools]:
    """What `Long.valueOf` makes of each text, and where it makes something: both of shape (n,).

    A sign and digits of any script, no blanks; what is beyond 64 bits is refused. Null is refused.
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
    """What `Double.valueOf` makes of each text, and where it makes something: both of shape (n,).

    Blanks around it, a suffix as in "5.0f" and hexadecimal are Java's; too large is infinite. Null is refused.
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
    """Integers in the order of Java's `Double.compare`: -0.0 before 0.0, NaN equal to itself and behind all."""
    bits = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64((1 << 63) - 1))


def long_of(text: str) -> int | None:
    """`longs` of one text; None where there is none."""
    if not text.isascii() and _ONE_INTEGER_OF_ANY_SCRIPT.fullmatch(text):
        text = "".join(map(_ascii_digit, text))
    if not _ONE_INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-0")  # Python reads no more than a few thousand digits
    if len(digits) > _LONG_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if -int(_LONG_MAX) - 1 <= number <= int(_LONG_MAX) else None


def double_of(text: str) -> float | None:
    """`doubles` of one text; None where there is none."""
    text = text.strip(_BLANKS)
    if _ONE_DOUBLE.fullmatch(text):
        return float(text.rstrip(_SUFFIXES))
    return _from_hex(text) if _ONE_HEX_DOUBLE.fullmatch(text) else None


def _with_ascii_digits(values: pa.StringArray) -> pa.StringArray:
    """Integers in other scripts' digits, as Java reads them; other texts as they are."""
    foreign = ~mask_of(pc.string_is_ascii(values))
    if foreign.any():
        foreign &= mask_of(pc.match_substring_regex(values, _INTEGER_OF_ANY_SCRIPT))
        distinct = values.filter(arrow(foreign)).dictionary_encode()
        translated = texts(["".join(map(_ascii_digit, text)) for text in distinct.dictionary.to_pylist()])
        values = pc.replace_with_mask(values, arrow(foreign), translated.take(distinct.indices))
    return values


def _ascii_digit(character: str) -> str:
    # Java looks at UTF-16 units: a digit that takes two of them is none.
    return character if character in "+-" or ord(character) > 0xFFFF else str(unicodedata.decimal(character))


def _from_hex(text: str) -> float:
    try:
        return float.fromhex(text.rstrip(_SUFFIXES))  # a digit stands last before a suffix: the exponent's
    except OverflowError:
        return -np.inf if text.startswith("-") else np.inf
