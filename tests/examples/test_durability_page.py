"""docs/durability.md names a test for each promise."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "durability.md"


def test_every_promise_names_a_test_that_exists() -> None:
    promises = PAGE.read_text("utf-8").partition("## Promises")[2].partition("## Not promised")[0]
    rows = [line.strip("| ").split(" | ") for line in promises.splitlines() if line.startswith("|")][2:]
    rows = [row for row in rows if not row[0].startswith("**")]
    assert len(rows) > 20
    for failure, *_, test in rows:
        named = re.fullmatch(r"`([a-z_/]+\.py)`", test)
        assert named, f"{failure}: {test} is no path of a test"
        assert (TESTS / named[1]).is_file(), f"{failure}: tests/{named[1]} does not exist"
