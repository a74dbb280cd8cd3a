"""What every kind of log has to do, whatever it is made of: a class of tests for each subclass to inherit.

A subclass gives the fixture `making`: an empty log, and what others do to it.
"""

from __future__ import annotations

from tests.logs.holding import HoldingTests
from tests.logs.reading import ReadingTests
from tests.logs.writing import WritingTests


class LogTests(ReadingTests, HoldingTests):
    """Of any."""


class WriterTests(LogTests, WritingTests):
    """Of kinds of logs that can be written, too."""
