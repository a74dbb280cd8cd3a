"""Apply each mutant to a copy of the tree and see its tests fail: `python -m tests.mutants [part of a name]`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SECONDS = 900  # a run that never ends counts as noticed, unless the machine is busy
NEVER_ENDED = "no end"
CUTS = "6000"  # the first failure ends the run


def verdict(mutant: Mutant, tree: Path) -> str:
    """Return the outcome; "" if a test noticed."""
    path = tree / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.before) != 1:
        return f"STALE: {mutant.file} has its text {text.count(mutant.before)} times"
    path.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree), "CUTS": CUTS}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests]
    try:
        ended = subprocess.run(
            command, cwd=tree, env=environment, timeout=SECONDS, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return NEVER_ENDED
    finally:
        path.write_text(text, "utf-8")
    return {0: "SURVIVED", 1: ""}.get(ended.returncode, f"no test ran: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")


def main(part: str) -> int:
    """Return the number of mutants that no test noticed."""
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", "target", "*_cache", "__pycache__"))
        for mutant in MUTANTS:
            if part in mutant.name:
                ended = verdict(mutant, tree)
                print(f"{ended or 'noticed':<10} {mutant.name}", flush=True)
                failures += ended not in ("", NEVER_ENDED)
    return failures


if __name__ == "__main__":
    sys.exit(bool(main(" ".join(sys.argv[1:]))))
