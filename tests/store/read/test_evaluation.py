from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store.read.conditions import names_of
from store.read.evaluation import double_of, doubles, evaluate, long_of, longs, total_order
from store.read.sql92 import parse
from tests.expressions import VALUES


def letter(expression: str, properties: dict[str, str]) -> str:
    """Return T for true, F for false, N for unknown (null) or E for an error."""
    condition = parse(expression).condition
    values = {name: pa.array([properties.get(name)], pa.string()) for name in names_of(condition)}
    true, null, error = (mask.tolist() for mask in evaluate(condition, values, 1))
    assert sum(true + null + error) <= 1
    return "T" if true[0] else "N" if null[0] else "E" if error[0] else "F"


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        # the type of the literal decides
        ("a = 5", {"a": "05"}, "T"),
        ("a = 5", {"a": "+5"}, "T"),
        ("a = 5", {"a": "5.0"}, "E"),
        ("a = 5.0", {"a": "5"}, "T"),
        ("a > 5.0", {"a": " 5.5f "}, "T"),
        ("a > 5", {"a": "3000000000"}, "E"),
        ("a > 2147483648", {"a": "3000000000"}, "T"),
        ("a > -2147483648", {"a": "-3000000000"}, "F"),
        ("a > -2147483647", {"a": "-3000000000"}, "E"),
        ("a = '5'", {"a": "05"}, "F"),
        ("a <= -5", {"a": "-5"}, "T"),
        ("5 < a", {"a": "6"}, "T"),
        ("a BETWEEN 10 AND 20", {"a": "20"}, "T"),
        ("a NOT BETWEEN 10 AND 20", {"a": "21"}, "T"),
        # an operand decides before a later one raises an error
        ("a > 5 OR b = 'x'", {"a": "abc", "b": "x"}, "E"),
        ("b = 'x' OR a > 5", {"a": "abc", "b": "x"}, "T"),
        ("b = 'y' AND a > 5", {"a": "abc", "b": "x"}, "F"),
        ("a > 5 AND b = 'y'", {"a": "abc", "b": "x"}, "E"),
        ("a <> 'x'", {}, "N"),
        ("NOT (a = 'x')", {}, "N"),
        ("a NOT IN ('x')", {}, "N"),
        ("a IS NULL", {}, "T"),
        ("a IS NOT NULL", {}, "F"),
        ("a = b", {}, "T"),
        ("a = b", {"a": "x"}, "F"),
        ("a = b", {"b": "x"}, "N"),
        ("a > 5 OR b = 'x'", {"b": "x"}, "T"),
        ("a > 5 AND b = 'x'", {"b": "x"}, "N"),
        ("a CONTAINS 'x'", {}, "F"),
        ("a NOT CONTAINS 'x'", {}, "F"),
        ("a NOT STARTSWITH 'x'", {"a": "yx"}, "T"),
        ("a ENDSWITH ''", {"a": "x"}, "F"),
        ("a = TRUE", {"a": "TrUe"}, "T"),
        ("a = FALSE", {"a": "yes"}, "T"),
        ("TRUE = a", {"a": "true"}, "E"),
        ("a", {"a": "true"}, "F"),
        ("NOT a = 'x'", {"a": "x"}, "E"),
        ("-a = 5", {"a": "5"}, "N"),
        ("a = b", {"a": "5", "b": "5.0"}, "F"),
        ("a >= b", {"a": "5", "b": "5.0"}, "T"),
        ("a > b", {"a": "5", "b": "x"}, "E"),
        ("a > b", {"a": "NaN", "b": "Infinity"}, "T"),
        ("a > b", {"a": "0", "b": "-0.0"}, "T"),
        ("a > -(b = 5)", {"b": "x"}, "N"),
        ("-(a = 5) IS NULL", {"a": "5"}, "T"),
        ("-(a = 5) IS NULL", {"a": "x"}, "E"),
    ],
)
def test_unusual_rules_equal_rocketmqs(expression: str, properties: dict[str, str], expected: str) -> None:
    assert letter(expression, properties) == expected
    assert parse(expression).match(None, properties) is (expected == "T")


LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1


def long(text: str | None) -> int | None:
    numbers, sound = longs(pa.array([text, "1"], pa.string()))
    assert (numbers[1], sound[1]) == (1, True)
    return int(numbers[0]) if sound[0] else None


def double(text: str | None) -> float | None:
    numbers, sound = doubles(pa.array([text, "1"], pa.string()))
    assert (numbers[1], sound[1]) == (1.0, True)
    return float(numbers[0]) if sound[0] else None


@given(st.integers(LONG_MIN - 3, LONG_MAX + 3), st.integers(0, 30), st.booleans())
@example(LONG_MIN, 0, False)
@example(LONG_MIN - 1, 0, False)
@example(LONG_MAX, 0, True)
@example(LONG_MAX + 1, 9, True)
@example(0, 0, False)
def test_integers_may_have_leading_zeros(number: int, zeros: int, plus: bool) -> None:
    sign = "-" if number < 0 else "+" if plus else ""
    expected = number if LONG_MIN <= number <= LONG_MAX else None
    assert long(f"{sign}{'0' * zeros}{abs(number)}") == expected


@pytest.mark.parametrize(
    "text", ["", "+", "-", "+-5", "5-", " 5", "5 ", "5\n", "5.0", "0x10", "1_000", "5L", "x", None]
)
def test_other_texts_are_no_integers(text: str | None) -> None:
    assert long(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("\u0665", 5), ("-\u0661\u096b", -15), ("\U0001d7d3", None), ("\u00b2", None), ("\u0665x", None)],
)
def test_digits_of_other_scripts_are_read_as_in_java(text: str, number: int | None) -> None:
    assert long(text) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_usual_doubles_are_parsed(number: float) -> None:
    for text in (repr(number), f"{number:.30f}", f" {number!r}d\t", f"{number:+E}f"):
        assert double(text) == float(text.strip(" \tdf"))


@given(st.floats(allow_nan=False))
def test_hexadecimal_doubles_are_parsed(number: float) -> None:
    if math.isfinite(number):
        assert double(number.hex()) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.", 5.0),
        (".5", 0.5),
        ("-.5e3D", -500.0),
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("1e-400", 0.0),
        ("Infinity", math.inf),
        ("+Infinity", math.inf),
        ("0x1p99999", math.inf),
        ("-0X.8P99999f", -math.inf),
        ("0x1.8p1d", 3.0),
        ("\x00 5\n", 5.0),
    ],
)
def test_unusual_doubles_are_parsed(text: str, number: float) -> None:
    assert double(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "+",
        "e5",
        "5e",
        "5dd",
        "inf",
        "nan",
        "infinity",
        "NaNd",
        "0x10",
        "0x.p1",
        "5\u00a0",
        "\u0665",
        None,
    ],
)
def test_other_texts_are_no_doubles(text: str | None) -> None:
    assert double(text) is None


def test_doubles_have_a_total_order() -> None:
    ascending = [-math.inf, -1e308, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    order = total_order(np.array(ascending))
    assert (np.diff(order) > 0).all()
    assert total_order(np.array([-math.nan])) == order[-1:]


@given(st.lists(st.sampled_from(VALUES) | st.text(max_size=5) | st.text("+-.0123456789eEdxXp \u0665", max_size=8)))
def test_single_texts_equal_columns(values: list[str]) -> None:
    column = pa.array(values, pa.string())
    numbers, sound = longs(column)
    found = [number if yes else None for number, yes in zip(numbers.tolist(), sound, strict=True)]
    assert found == [long_of(value) for value in values]
    fractions, sound = doubles(column)
    texts = [repr(number) if yes else None for number, yes in zip(fractions.tolist(), sound, strict=True)]
    assert texts == [None if (number := double_of(value)) is None else repr(number) for value in values]
