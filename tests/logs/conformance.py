"""Tests that every kind of log must pass.

Subclasses provide the fixture `making`: an empty log, and ways to change it from outside.
"""

from __future__ import annotations

from tests.logs.holding import HoldingTests
from tests.logs.reading import ReadingTests
from tests.logs.writing import WritingTests


class LogTests(ReadingTests, HoldingTests): ...


class WriterTests(LogTests, WritingTests): ...
