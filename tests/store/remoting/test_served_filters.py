from __future__ import annotations

import pytest

from store.model.codes import ResponseCode
from store.model.errors import FilterError, RequestRefused
from store.remoting.served_filters import ServedFilters
from tests.store.remoting.broker import Broker


def expression(number: int, length: int = 30_000) -> str:
    return f"{number:0{length}}"


def test_short_filter_is_parsed_at_once() -> None:
    filters = ServedFilters()
    short = filters.quick("a || b", "TAG")
    assert short is not None
    assert filters.quick("a || b", "TAG") is short


def test_long_filter_needs_a_worker_once() -> None:
    filters = ServedFilters()
    assert filters.quick(expression(1), "TAG") is None
    long = filters.parse(expression(1), "TAG")
    assert filters.quick(expression(1), "TAG") is long


def test_unused_filters_are_dropped() -> None:
    filters = ServedFilters()
    for number in range(200):
        filters.parse(expression(number), "TAG")
    assert filters._characters <= 1 << 20
    assert filters.quick(expression(199), "TAG") is not None
    assert filters.quick(expression(0), "TAG") is None


def test_used_filters_are_not_dropped() -> None:
    filters = ServedFilters()
    used = [filters.parse(expression(number), "TAG") for number in range((1 << 20) // 30_000)]
    with pytest.raises(RequestRefused, match="are held already"):
        filters.parse(expression(100), "TAG")
    used.clear()
    filters.parse(expression(100), "TAG")


@pytest.mark.parametrize("words", ["x" * 40_000, "||".join(map(str, range(1001)))])
def test_too_long_filter_is_refused(words: str) -> None:
    with pytest.raises(FilterError, match="at most"):
        ServedFilters().parse(words, "TAG")


def test_pull_with_a_long_filter(broker: Broker) -> None:
    broker.send(b"body", properties=f"TAGS\1{expression(7, 300)}\2")
    assert broker.pull(0, tags=expression(7, 300)).result().code == ResponseCode.SUCCESS
    held = broker.pull(1, tags=expression(8, 300), seconds=60)
    broker.send(b"body", properties=f"TAGS\1{expression(8, 300)}\2")
    assert held.result().code == ResponseCode.SUCCESS
    assert broker.pull(0, tags="x" * 40_000).result().code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
