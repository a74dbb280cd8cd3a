"""Which conditions can be seen to match nothing; and none that does match is among them."""

from __future__ import annotations

import pytest

from store.read.conditions import is_never_true
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
def test_what_is_never_true(expression: str, never: bool) -> None:
    found = parse(expression)
    assert is_never_true(found.condition) == never
    assert not (never and any(found.match(None, properties) for properties in SOME))
