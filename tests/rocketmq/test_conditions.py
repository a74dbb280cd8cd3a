"""Compare SQL92 filters with RocketMQ's filter module, for random expressions and messages."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from store import FilterError
from store.read.conditions import names_of
from store.read.evaluation import evaluate
from store.read.sql92 import parse_beginning
from store.read.sql_filter import SqlFilter
from tests.expressions import Expressions, property_sets
from tests.rocketmq.harness import RocketMQ

pytestmark = pytest.mark.rocketmq

EXPRESSIONS = int(os.environ.get("SQL_EXPRESSIONS", "400"))
SETS = 100


def ours(expression: str, sets: list[dict[str, str]]) -> str | None:
    """Return a letter for each set, as the harness writes them; None for a refused expression."""
    try:
        condition, _ = parse_beginning(expression)
    except FilterError:
        return None
    values = {
        name: pa.array([properties.get(name) for properties in sets], pa.string()) for name in names_of(condition)
    }
    true, null, error = evaluate(condition, values, len(sets))
    one_by_one = SqlFilter(expression, condition)
    assert true.tolist() == [one_by_one.match(None, properties) for properties in sets], expression
    return "".join(np.select([true, null, error], ["T", "N", "E"], "F"))


@pytest.mark.parametrize("seed", [int(seed) for seed in os.environ.get("SQL_SEEDS", "1").split()])
def test_conditions_have_rocketmqs_results(
    rocketmq: RocketMQ, seed: int, record_property: Callable[[str, object], None]
) -> None:
    random = Random(seed)
    generator = Expressions(random, parts=rocketmq.line >= "5")
    expressions = [generator.any() for _ in range(EXPRESSIONS)]
    sets = property_sets(random, SETS)
    answers = rocketmq.conditions(expressions, sets)
    different = []
    for expression, answer in zip(expressions, answers, strict=True):
        mine, theirs = ours(expression, sets), answer.get("results")
        if mine != theirs:
            rows = [row for row in range(SETS) if mine and theirs and mine[row] != theirs[row]][:3]
            examples = [(mine[row], theirs[row], sets[row]) for row in rows if mine and theirs]
            different.append(f"{expression!r}: {mine} and {answer}; {examples}")
    refused = sum("refused" in answer for answer in answers)
    assert not different, f"{len(different)} of {len(expressions)}:\n" + "\n".join(different[:5])
    assert EXPRESSIONS / 20 < refused < EXPRESSIONS / 2
    letters = "".join(answer.get("results", "") for answer in answers)
    assert all(letters.count(letter) > len(letters) / 50 for letter in "TFNE")
    record_property("compared", f"{len(expressions):,} expressions, {refused:,} of them refused, x {SETS} sets")
