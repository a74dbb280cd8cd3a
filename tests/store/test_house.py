"""The floor plan of `store`: a room imports from rooms below it, never from one above or from the package itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import store

ROOT = Path(store.__file__).parent
SPARK = ROOT.parent / "pyspark_mq"
# From the ground up. The last one is `store/__init__.py`, the names for users.
FLOORS = (
    *(
        "model",
        "format",
        "disk",
        "objects",
        "append",
        "read",
        "archive",
        "upkeep",
        "delays",
        "api",
    ),
    *("broker", "directory", "remoting", "cluster", "client", "__init__"),
)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "store":
            rooms = node.module.split(".")[1:]
            yield from rooms[:1] or [name.name if name.name in FLOORS else "__init__" for name in node.names]


def test_architecture_page_lists_the_floors() -> None:
    page = (ROOT.parent / "docs" / "internals" / "architecture.md").read_text("utf-8")
    assert (
        tuple(re.findall(r"^\| `(\w+)/` \|", page.partition("`pyspark_mq/` has floors")[0], re.MULTILINE))
        == FLOORS[:-1]
    )


def test_diagram_of_a_messages_way_is_right() -> None:
    """Each module of the picture exists, and each solid arrow from a module of `store` is an import."""
    page = (ROOT.parent / "docs" / "internals" / "architecture.md").read_text("utf-8")
    picture = page.partition("flowchart TB\n")[2].partition("```")[0]
    modules = dict(re.findall(r"(\w+)\[([\w/]+)\]", picture))
    paths = {
        node: next(path for path in (ROOT / f"{name}.py", SPARK / f"{name}.py") if path.exists())
        for node, name in modules.items()
    }
    arrows = [pair for line in picture.splitlines() for pair in arrows_of(line)]
    assert [
        arrow for arrow in arrows if f"from store.{dotted(modules[arrow[1]])} import" not in text(paths, arrow[0])
    ] == []
    assert len(arrows) > 10


def arrows_of(line: str) -> Iterator[tuple[str, str]]:
    nodes = re.split(r"(-->|-\.->)", re.sub(r"\[[^]]*\]| ", "", line))
    for left, arrow, right in zip(nodes[0::2], nodes[1::2], nodes[2::2], strict=False):
        if arrow == "-->":
            yield left, right


def dotted(name: str) -> str:
    return name.replace("/", ".")


def text(paths: dict[str, Path], node: str) -> str:
    return paths[node].read_text("utf-8")


def test_every_module_is_in_a_room() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__"}
    assert {path.parent.name for path in ROOT.glob("*/*.py")} == set(FLOORS[:-1])


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_imported_from_above(path: Path) -> None:
    floor = FLOORS.index(path.relative_to(ROOT).with_suffix("").parts[0])
    assert [room for room in imported(path) if FLOORS.index(room) > floor] == []
