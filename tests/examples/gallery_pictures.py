"""python -m tests.examples.gallery_pictures: copy the last picture of each notebook to the gallery of the docs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
GALLERY = ROOT / "docs" / "gallery.md"


def notebook_in(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def last_picture(notebook: Any) -> bytes:
    """Return the PNG that the last cell shows."""
    shown = [output.get("data", {}) for output in notebook.cells[-1].outputs]
    (picture,) = [each["image/png"] for each in shown if "image/png" in each]
    return base64.b64decode(picture)


def picture_of(path: Path) -> Path:
    """Return the gallery's file for the picture of the notebook at `path`."""
    return GALLERY.parent / "images" / "gallery" / f"{path.stem}.png"


def main() -> None:
    for path in NOTEBOOKS:
        picture_of(path).write_bytes(last_picture(notebook_in(path)))


if __name__ == "__main__":
    main()
