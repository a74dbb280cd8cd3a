"""The floor plan: packages know those below them, never those above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import store

ROOT = Path(store.__file__).parent
# From the ground up; modules that stand in `store/` itself are below all packages, or above them.
FLOORS = ("format", "files", "objects", "index", "log", "publish", "read", "archive", "upkeep", "delays", "broker")
GROUND = ("errors", "system_errors", "integers", "searching", "any_log")
BESIDE = {"any_group": "format"}  # it speaks of messages
ROOF = ("writer", "store_reader", "store_finder", "append", "message_store", "__init__")
# Kinds of logs and of groups, and the wire, made of all that is below.
ATTIC = ("local", "through", "restoring", "local_group", "remoting", "cluster")
CLIENT = "client"  # what users hold, made of kinds of logs and of groups; `store` itself offers it by name


def floor(module: str) -> int:
    """How high `store.<module>` lies."""
    name = module.split(".")[0]
    name = BESIDE.get(name, name)
    if name == CLIENT:
        return len(FLOORS) + 2
    if name in GROUND:
        return -1
    if name in ATTIC:
        return len(FLOORS) + 1
    return len(FLOORS) - 1 if name in ROOF else FLOORS.index(name) + (name == "broker")


def imported(path: Path) -> Iterator[str]:
    """What of `store` a file imports, as "package.module", or "__init__" for its public names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "store":
            yield node.module.removeprefix("store").removeprefix(".") or "__init__"


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_from_above(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    above = [
        other
        for other in imported(path)
        if floor(other) > floor(module) and not (module == "__init__" and f"store.{other}" in store._ABOVE.values())
    ]
    assert not above
