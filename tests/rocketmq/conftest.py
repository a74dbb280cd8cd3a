"""Tests here are marked `rocketmq` and skipped, with the reason, where Java or Maven is missing."""

from __future__ import annotations

import pytest

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
