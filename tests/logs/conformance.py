"""Tests that every kind of log must pass.

Subclasses inherit them and provide the fixture `making`: an empty log with ways to change it from outside.
"""

from __future__ import annotations

from tests.logs.holding import HoldingTests
from tests.logs.reading import ReadingTests
from tests.logs.writing import WritingTests


class LogTests(ReadingTests, HoldingTests):
    """Tests for every kind of log."""


class WriterTests(LogTests, WritingTests):
    """Tests for logs that can also be written."""
