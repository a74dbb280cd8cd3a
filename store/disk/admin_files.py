"""RocketMQ's `config/*.json` files, each with its backup `{name}.bak`.

A value of the wrong type raises `CorruptStore`. null counts as missing.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

from store.disk.atomic import make_directory, read_file, write_file
from store.format.strict_json import decode_fastjson, encode, encode_sorted
from store.model.errors import CorruptStore
from store.model.integers import INT_MAX, LONG_MAX

MAX_BYTES = 256 << 20  # a million queues' offsets take 20 MB

_VERSION = "dataVersion"
_MOMENT_SECONDS = 1.0
_SHOWN = 40  # characters


def read_json(path: Path) -> dict[str, Any]:
    """Read a config file, or its `.bak` if the file is missing, empty or damaged.

    Returns {} if both are missing or empty. Warns if the file was lost or damaged, because the `.bak` may lack its
    latest change. Raises `CorruptStore` if one of the two is not JSON and the other cannot replace it.
    """
    backup = _backup(path)
    failure: ValueError | None = None
    is_there = False
    for candidate in (path, backup):
        try:
            text = read_file(candidate, MAX_BYTES)
            if text.strip():
                content = decode_fastjson(text, dict[str, Any])
                if is_there or failure:
                    _warn(path, failure, f"its backup {backup.name} is used, which is older")
                elif candidate is backup and _is_gone(path):
                    _warn(path, None, f"its backup {backup.name} is used, which may be older", "missing")
                return content
            is_there = is_there or candidate is path
        except FileNotFoundError:
            continue
        except ValueError as error:
            failure = failure or error
    if failure is not None:
        raise CorruptStore(
            f"{path}: not JSON ({failure}), and {backup.name} cannot be used instead. Restore one of them from a copy, "
            "or correct its JSON"
        ) from failure
    if is_there:
        _warn(path, None, f"it has no backup {backup.name}, so it counts as empty")
    return {}


def _is_gone(path: Path) -> bool:
    """Return whether a file is missing for longer than `write_file` needs between its two renames."""
    try:
        return time.time() - _backup(path).stat().st_ctime > _MOMENT_SECONDS and not path.exists()
    except FileNotFoundError:  # deleted concurrently
        return False


def _warn(path: Path, failure: Exception | None, then: str, what: str = "empty, perhaps after a crash") -> None:
    what = f"not JSON ({failure})" if failure else what
    warnings.warn(f"{path}: {what}; {then}. Restore the file from a copy, or add the missing settings", stacklevel=3)


def table(path: Path, content: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return a table of a config file, added to `content` if it is missing."""
    if content.get(name) is None:
        content[name] = {}
    found = content[name]
    if not isinstance(found, dict):
        raise _misshapen(path, name, found, "an object")
    for key, value in found.items():
        if not isinstance(value, dict):
            raise _misshapen(path, f"{name}[{key!r}]", value, "an object")
    return found


def read_table(path: Path, name: str) -> dict[str, dict[str, Any]]:
    return table(path, read_json(path), name)


def number(path: Path, key: str, value: object, maximum: int = INT_MAX) -> int:
    found = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value
    if type(found) is not int or not 0 <= found <= maximum:
        raise _misshapen(path, key, value, f"a number from 0 to {maximum}")
    return found


def offset_table(path: Path, key: str, found: object) -> dict[int, int]:
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _misshapen(path, key, found, "an object")
    return {
        number(path, f"a key of {key}", name): number(path, f"{key}[{name!r}]", value, LONG_MAX)
        for name, value in found.items()
    }


def _misshapen(path: Path, key: str, found: object, wanted: str) -> CorruptStore:
    kind = "an object" if isinstance(found, dict) else "a list" if isinstance(found, list) else ""
    text = kind or encode(found).decode()[:_SHOWN]
    return CorruptStore(f"{path}: {key} is {text}, not {wanted}. Correct the file, or restore it from a copy")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a config file atomically, and keep the old one as `.bak`, as RocketMQ does.

    The first version is also written to `.bak`, so that `read_json` notices if the file is lost.
    """
    make_directory(path.parent)
    text, backup = encode_sorted(content), _backup(path)
    if not backup.exists():
        write_file(backup, text)
    write_file(path, text, backup=backup)


def _backup(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def next_version(path: Path, content: dict[str, Any]) -> None:
    version = content.get(_VERSION)
    if version is None:
        version = content[_VERSION] = {"stateVersion": 0}
    if not isinstance(version, dict):
        raise _misshapen(path, _VERSION, version, "an object")
    version["counter"] = 1 + number(path, f"{_VERSION}['counter']", version.get("counter") or 0, LONG_MAX)
    version["timestamp"] = int(time.time() * 1000)
