import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_balances_are_right_despite_kills() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "orderly_ledger.py", "--seconds", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(r"([\d,]+) orders, (\d+) keepers killed, 50 accounts, 0 balances wrong\n", done.stdout)
    assert said, done.stdout
    assert int(said[2]) >= 1
