"""Frames that RocketMQ 5.3's own code encoded, and its request and response codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LINES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parents[2] / "golden/remoting/frames-5.3.jsonl").open()
]
CODES = LINES[0]
FRAMES = LINES[1:]


def name_of(line: dict[str, Any]) -> str:
    return f"{line['serialization']}-{line['code']}-{line['opaque']}"
