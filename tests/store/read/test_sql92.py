from __future__ import annotations

import pickle
import time
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import FilterError
from store.read.conditions import And, Constant, Equal, Not, Or, Ordered, Property
from store.read.sql92 import parse, parse_beginning
from tests.expressions import Expressions

A, B = Property("a"), Property("b")
SEEDS = st.integers(0, 1 << 32)


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("a = 5", Equal((A, Constant(5)))),
        ("a<>'it''s'", Not((Equal((A, Constant("it's"))),))),
        ("a = 'x\\' and B = TRUE", And((Equal((A, Constant("x\\"))), Equal((Property("B"), Constant(True)))))),
        ("a > 1.5 OR b Is nOt Null", Or((Ordered(">", (A, Constant(1.5))), Not((Equal((B, Constant(None))),))))),
        ("a = b > 5", Equal((A, Ordered(">", (B, Constant(5)))))),
        ("a/* one */=-- two\n5L", Equal((A, Constant(5)))),
        ("+(a) = (+5)", Equal((A, Constant(5)))),
        ("a NOT BETWEEN 20 AND 10", Not((And((Ordered(">=", (A, Constant(20))), Ordered("<=", (A, Constant(10))))),))),
        ("BETWEENa = andb", Equal((Property("BETWEENa"), Property("andb")))),
    ],
)
def test_expressions_are_evaluated(expression: str, condition: object) -> None:
    assert parse(expression).condition == condition


@pytest.mark.parametrize(
    ("expression", "position", "message"),
    [
        ("a != 5", 3, "'!' begins nothing of SQL92; write <> for 'not equal'"),
        ("a == 5", 4, "'=' cannot stand here; one = compares"),
        ("a = 5 && b = 6", 7, "write AND and OR"),
        ("a LIKE 'x%'", 3, "the condition is complete; there is no LIKE; use STARTSWITH"),
        ('a = "x"', 5, "texts stand in single quotes"),
        ("a = 'x", 5, "the text that begins here does not end"),
        ("user.name = 'x'", 5, "names are made of letters, digits, _ and \\$"),
        ("user-name = 'x'", 5, "names are made of letters, digits, _ and \\$"),
        ("a + 1 = 2", 3, "there is no arithmetic"),
        ("a = 1 -- end", 7, "a comment ends with a line break"),
        ("a = 1)", 6, "there is a \\( too few"),
        ("a IN ()", 7, "'\\)' cannot stand here\n"),
        ("(a = 1", 7, "it ends where more has to follow"),
        ("", 1, "it ends where more has to follow"),
        ("a = 5 AND", 10, "it ends where more has to follow"),
        ("a = 5 AND 'x'", 7, "a text or a number is no condition"),
        ("5", 1, "a text or a number is no condition"),
        ("a > 'x'", 3, "> compares numbers, and properties as numbers"),
        ("a BETWEEN 20 AND 10", 3, "nothing lies between 20 and 10; the smaller one stands first"),
        ("a BETWEEN 'a' AND 'b'", 3, "BETWEEN compares numbers"),
        ("a = NULL", 3, "write IS NULL"),
        ("TRUE = 5", 6, "TRUE can be compared with properties and conditions"),
        ("a IN (5)", 7, "'5' cannot stand here"),
        ("NOT a IN ('x')", 7, "IN takes a property on its left; for its negation write NOT IN"),
        ("a = " + "9" * 5000, 5, "is larger than 9223372036854775807"),
        ("a = 9223372036854775808", 5, "is larger than 9223372036854775807; write 9223372036854775808.0"),
        ("a = 0.0", 5, "0.0 is 0.0 as a double, which RocketMQ refuses; 0 is an integer"),
        ("a = 1e999", 5, "1e999 is inf as a double"),
        ("a = '\ud800'", 6, "half a character"),
        ("NOT " * 101 + "a", 1, "nested more than 100 deep"),
    ],
)
def test_mistakes_are_located(expression: str, position: int, message: str) -> None:
    with pytest.raises(FilterError, match=f"^SQL92 expression, character {position}: .*{message}") as refused:
        parse(expression)
    _, excerpt, caret = str(refused.value).split("\n")
    assert caret.index("^") < 50
    assert excerpt[caret.index("^") :][:1] == expression[position - 1 :][:1].replace("\ud800", " ")


def test_mistake_in_a_long_expression_is_located() -> None:
    with pytest.raises(FilterError, match=f"character {9 * 88 + 3}") as refused:
        parse("a = 1 OR\n" * 88 + "a > '1'" + "\nOR a = 2" * 88)
    _, excerpt, caret = str(refused.value).split("\n")
    assert excerpt == "    ... a = 1 OR a = 1 OR a = 1 OR a > '1' OR a = 2 OR a = 2 OR a =..."
    assert caret == " " * excerpt.index(">") + "^"


def test_bounds_are_compared_as_in_java() -> None:
    parse(f"a BETWEEN {2**53 + 1} AND {2**53}.0")
    with pytest.raises(FilterError, match="nothing lies between"):
        parse(f"a BETWEEN {2**53 + 1} AND {2**53}")


@pytest.mark.parametrize("nothing", [None, 5, b"a = 1"])
def test_other_types_are_refused(nothing: Any) -> None:
    with pytest.raises(FilterError, match="is no text; write a condition, such as"):
        parse(nothing)


@pytest.mark.parametrize(("expression", "end"), [("a = 1 b #", 6), ("a LIKE 'x'", 2), ("a = 010", 5), ("a = 1", 5)])
def test_text_after_the_expression_is_ignored_as_in_rocketmq(expression: str, end: int) -> None:
    assert parse_beginning(expression)[1] == end


@pytest.mark.parametrize("expression", ["a #", "a NOT", "a IS b", "010"])
def test_wrong_expressions_are_refused_as_in_rocketmq(expression: str) -> None:
    with pytest.raises(FilterError):
        parse_beginning(expression)


def test_long_expressions_are_accepted_and_deep_ones_refused() -> None:
    many = parse(" OR ".join(f"a = {number} AND b IN ('x')" for number in range(2_000)))
    assert many.match(None, {"a": "1999", "b": "x"})
    assert not many.match(None, {"a": "2000", "b": "x"})
    assert parse("NOT " * 97 + "a = TRUE").match(None, {"a": "x"}) is True
    with pytest.raises(FilterError):
        parse("NOT " * 98 + "a = TRUE")


@given(SEEDS)
def test_any_tokens_give_a_filter_or_an_error(seed: int) -> None:
    expression = Expressions(Random(seed)).any()
    try:
        accept = parse(expression)
    except FilterError:
        return
    assert pickle.loads(pickle.dumps(accept)) == accept
    assert pickle.loads(pickle.dumps(accept)).condition == accept.condition
    assert hash(accept) == hash(parse(expression))
    assert parse_beginning(expression) == (accept.condition, len(expression))


@given(st.text(max_size=30))
def test_any_text_gives_a_filter_or_an_error(text: str) -> None:
    with suppress(FilterError):
        parse(text)


N = 32_000


@pytest.mark.parametrize(
    "expression",
    [
        "-" * N,
        "a = " + "--1 OR a = " * (N // 11) + "1",
        "(" * N,
        "(" * (N // 2) + "a" + ")" * (N // 2),
        "NOT " * (N // 4) + "a",
        "/*" * (N // 2),
        "--\n" * (N // 3) + "a",
        "--'" * (N // 3) + "\n",
        " OR ".join(["a = 1"] * (N // 9)),
        "a IN (" + ", ".join(["'x'"] * (N // 5)) + ")",
    ],
)
def test_parsing_takes_linear_time(expression: str) -> None:
    before = time.thread_time()
    with suppress(FilterError):
        parse(expression)
    assert time.thread_time() - before < 2
