"""examples/notebooks: they run, and docs/gallery.md shows the picture with which each ends.

By default only the short ones run. NOTEBOOKS=all (`make notebooks`) runs all of them, which takes about five minutes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbclient
import pytest

from tests.examples.gallery_pictures import GALLERY, NOTEBOOKS, last_picture, notebook_in, picture_of

SHORT = ("inside-the-store", "quickstart")
RUN = [path for path in NOTEBOOKS if path.stem in SHORT or os.environ.get("NOTEBOOKS") == "all"]
MOST_BYTES = 300_000


def each_notebook(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@each_notebook(RUN)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = notebook_in(path)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert last_picture(notebook).startswith(b"\x89PNG")


@each_notebook(NOTEBOOKS)
def test_notebook_is_committed_with_its_outputs(path: Path) -> None:
    notebook = notebook_in(path)
    assert path.stat().st_size < MOST_BYTES
    assert notebook.cells[0].source.startswith("# ")
    assert "pip install" in notebook.cells[0].source
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert {output.output_type for output in outputs(notebook)} <= {"display_data", "execute_result", "stream"}


@each_notebook(NOTEBOOKS)
def test_gallery_shows_the_last_picture(path: Path) -> None:
    assert picture_of(path).read_bytes() == last_picture(notebook_in(path))


def test_gallery_names_every_notebook() -> None:
    text = GALLERY.read_text("utf-8")
    names = [path.stem for path in NOTEBOOKS]
    assert sorted(re.findall(r"images/gallery/([\w-]+)\.png", text)) == names
    assert sorted(re.findall(r"`examples/notebooks/([\w-]+)\.ipynb`", text)) == names
