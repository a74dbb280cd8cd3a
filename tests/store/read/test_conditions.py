from __future__ import annotations

import pytest

from store.read.conditions import is_never_true, texts_of
from store.read.sql92 import parse

SOME = [{}, {"a": "x"}, {"a": "y", "b": "5"}, {"a": "true", "b": "true"}, {"a": "false"}, {"b": "x"}]


@pytest.mark.parametrize(
    ("expression", "never"),
    [
        ("a", True),
        ("FALSE", True),
        ("TRUE", False),
        ("NOT a", False),
        ("NOT a = 'x'", True),
        ("NOT (a = 'x')", False),
        ("a = TRUE", False),
        ("(a = 'x') = TRUE", False),
        ("(a = 'x') = 'true'", True),
        ("'true' = (a = 'x')", False),
        ("(a = 'x') = 1", True),
        ("1 = (a = 'x')", True),
        ("a = 'x' AND b", True),
        ("a = 'x' AND 'y' = a", True),
        ("a = 'x' AND a = 'x'", False),
        ("a = 'x' AND b = 'y'", False),
        ("a = '5' AND a = 5", False),
        ("a OR FALSE", True),
        ("a OR b = '5'", False),
        ("a IS NULL", False),
        ("a IS NOT NULL", False),
        ("a IN ('x')", False),
        ("b BETWEEN 1 AND 9", False),
    ],
)
def test_conditions_that_are_never_true_are_detected(expression: str, never: bool) -> None:
    found = parse(expression)
    assert is_never_true(found.condition) == never
    assert not (never and any(found.match(None, properties) for properties in SOME))


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("a = 'x'", {"x"}),
        ("'x' = a", {"x"}),
        ("a IN ('x', 'y')", {"x", "y"}),
        ("a NOT IN ('x', 'y')", None),
        ("a = 'x' AND b > 5", {"x"}),
        ("b > 5 AND a = 'x' AND a IN ('x', 'y')", {"x"}),
        ("a = 'x' OR a = 'y'", {"x", "y"}),
        ("a = 'x' OR b = 'y'", None),
        ("NOT (a = 'x')", None),
        ("a <> 'x'", None),
        ("a = 5", None),
        ("a CONTAINS 'x'", None),
        ("b = 'x'", None),
        ("a = 'x' AND (a = 'y' OR b = 'z')", {"x"}),
    ],
)
def test_texts_required_by_a_condition(expression: str, texts: set[str] | None) -> None:
    condition = parse(expression).condition
    assert texts_of(condition, "a") == texts
