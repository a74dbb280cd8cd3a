from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.queues import Queues
from tests.filled import Filled


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    made = Filled(tmp_path_factory.mktemp("queues") / "mq", {"orders": 1, "orders-eu": 1, "t-1": 1, "%RETRY%group": 1})
    with made.store:
        yield made


def warned(filled: Filled, caplog: pytest.LogCaptureFixture, **options: str) -> list[str]:
    parsed = SourceOptions.parse({"path": filled.path, **options})
    with caplog.at_level(logging.WARNING, "pyspark_mq"), parsed.address.open() as log:
        queues = Queues(log, parsed)
        assert queues.bounds_of_all() == queues.bounds_of_all()
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("payments.*", "There are orders, orders-eu, t-1"),
        (".*RETRY.*", "There are orders, orders-eu, t-1"),
        ("orders.*", ""),
        ("-eu", ""),
    ],
)
def test_pattern_without_a_match_is_warned_of(
    filled: Filled, caplog: pytest.LogCaptureFixture, pattern: str, hint: str
) -> None:
    expected = [f"subscribePattern {pattern!r} matches no topic. {hint}"] if hint else []
    assert warned(filled, caplog, subscribePattern=pattern) == expected


def test_expression_that_is_never_true_is_warned_of(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    options = {"subscribe": "orders", "expressionType": "SQL92"}
    assert warned(filled, caplog, **options, subExpression="a = 'x' AND b = 5") == []
    assert [text[:50] for text in warned(filled, caplog, **options, subExpression="a = 'x' AND a = 'y'")] == [
        "subExpression \"a = 'x' AND a = 'y'\" can match no m"
    ]
