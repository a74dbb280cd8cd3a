"""The layers of `pyspark_mq`: a module imports only from lower layers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyspark_mq

ROOT = Path(pyspark_mq.__file__).parent
FLOORS = (
    ("errors",),
    ("requirements",),
    ("offsets", "flights", "spark_session"),
    ("options", "stats"),
    ("planning", "sink"),
    ("source",),
    ("datasource", "browsing"),
    ("__init__",),
    ("console",),
    ("cli",),
    ("__main__",),
)


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if module.split(".")[0] in rooms)


def imported(path: Path) -> Iterator[str]:
    """Yield a file's imports of `pyspark_mq`, as "package.module", or "__init__" for its public names."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pyspark_mq":
            name = node.module.removeprefix("pyspark_mq").removeprefix(".")
            rooms = {room for rooms in FLOORS for room in rooms}
            yield from [name] if name else [each.name if each.name in rooms else "__init__" for each in node.names]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_import_only_from_lower_layers(path: Path) -> None:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    room = module.split(".")[0]
    assert not [other for other in imported(path) if other.split(".")[0] != room and floor(other) >= floor(module)]
