import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_order_is_paid_or_cancelled_despite_kills() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "order_system.py", "--seconds", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = re.fullmatch(
        r"([\d,]+) orders, (\d+) shops killed: ([\d,]+) paid, ([\d,]+) cancelled, 0 left open, "
        r"0 messages too many or too few\n",
        done.stdout,
    )
    assert said, done.stdout
    orders, killed, paid, cancelled = (int(number.replace(",", "")) for number in said.groups())
    assert orders == paid + cancelled > 0
    assert killed >= 2
