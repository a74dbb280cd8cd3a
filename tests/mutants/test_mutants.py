from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_no_mutant_is_stale(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    assert text.count(mutant.before) == 1
    compile(text.replace(mutant.before, mutant.after), mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)
