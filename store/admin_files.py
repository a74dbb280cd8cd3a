"""RocketMQ's `config/*.json`: read in every state a broker leaves them in, written with its `.bak` habit."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from store.atomic import write_file
from store.errors import CorruptStore

_VERSION = "dataVersion"
# A string, or an integer key as fastjson writes it, without quotes: {0:5}
_STRING_OR_BARE_KEY = re.compile(r'("(?:[^"\\]|\\.)*")|(\d+)(?=\s*:)')


def read_json(path: Path) -> dict[str, Any]:
    """One of RocketMQ's config files, or its `.bak` when it is missing or empty; {} when there is neither.

    Raises `CorruptStore` when both cannot be parsed.
    """
    backup = _backup(path)
    failure: ValueError | None = None
    for candidate in (path, backup):
        try:
            text = candidate.read_text("utf-8")
            if text.strip():
                content: dict[str, Any] = json.loads(_quote_keys(text))
                return content
        except FileNotFoundError:
            continue
        except ValueError as error:
            failure = failure or error
    if failure is not None:
        raise CorruptStore(
            f"{path}: not JSON ({failure}), and no usable {backup.name}; restore it from a copy"
        ) from failure
    return {}


def _quote_keys(text: str) -> str:
    return _STRING_OR_BARE_KEY.sub(lambda found: found[1] or f'"{found[2]}"', text)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write as RocketMQ does: the old file becomes `.bak`, the new one is complete when it appears."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent="\t", sort_keys=True)
    write_file(path, text.encode("utf-8"), backup=_backup(path))


def _backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def next_version(content: dict[str, Any]) -> None:
    """Count a change in the content's `dataVersion`, as RocketMQ does at each."""
    version = content.setdefault(_VERSION, {"counter": 0, "stateVersion": 0})
    version["counter"] = int(version.get("counter", 0)) + 1
    version["timestamp"] = int(time.time() * 1000)
