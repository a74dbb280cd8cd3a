from __future__ import annotations

import pyarrow as pa
import pytest

from store.read.conditions import names_of
from store.read.evaluation import evaluate
from store.read.sql92 import parse


def letter(expression: str, properties: dict[str, str]) -> str:
    """T true, F false, N unknown, E an error."""
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
        # an error is an error, unless it is true before
        ("a > 5 OR b = 'x'", {"a": "abc", "b": "x"}, "E"),
        ("b = 'x' OR a > 5", {"a": "abc", "b": "x"}, "T"),
        ("b = 'y' AND a > 5", {"a": "abc", "b": "x"}, "F"),
        ("a > 5 AND b = 'y'", {"a": "abc", "b": "x"}, "E"),
        # what is missing
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
        # booleans
        ("a = TRUE", {"a": "TrUe"}, "T"),
        ("a = FALSE", {"a": "yes"}, "T"),
        ("TRUE = a", {"a": "true"}, "E"),
        ("a", {"a": "true"}, "F"),
        ("NOT a = 'x'", {"a": "x"}, "E"),
        ("-a = 5", {"a": "5"}, "N"),
        # two properties
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
def test_rules_that_surprise(expression: str, properties: dict[str, str], expected: str) -> None:
    assert letter(expression, properties) == expected
    assert parse(expression).match(None, properties) is (expected == "T")
