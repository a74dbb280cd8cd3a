"""Tests here are marked `rocketmq` and skipped, with the reason, where Java or Maven is missing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import seen
from tests.rocketmq.harness import LINES, RocketMQ, unavailable


@pytest.fixture(scope="session", params=LINES)
def rocketmq(request: pytest.FixtureRequest) -> RocketMQ:
    """RocketMQ's own code, once for each release line."""
    return _line(request.param)


@pytest.fixture(scope="session")
def rocketmq53() -> RocketMQ:
    return _line("5.3")


def _line(line: str) -> RocketMQ:
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    return RocketMQ(line)


@pytest.fixture
def compare(record_property: Callable[[str, object], None]) -> Callable[[seen.Queues, seen.Queues], None]:
    """`seen.assert_same`, noted for the summary: (ours, RocketMQ's)."""

    def compare_and_note(ours: seen.Queues, theirs: seen.Queues) -> None:
        seen.assert_same(ours, theirs)
        messages = sum(len(queue.rows) for queue in theirs.values())
        record_property("compared", f"{messages:,} messages in {len(theirs)} queues")

    return compare_and_note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each directory that was compared with what RocketMQ reads in it."""
    compared = [
        f"{report.nodeid.partition('::')[2]}: {value}"
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "compared"
    ]
    if compared:
        terminalreporter.section("equal to RocketMQ's reading in every field")
        for line in compared:
            terminalreporter.write_line(line)
