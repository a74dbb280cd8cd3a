from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from store import ObjectsUnavailable
from store.objects.any_objects import Objects, objects_at


@pytest.fixture(params=["directory", "memory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "memory":
        return objects_at(f"memory://{uuid4().hex}/x", {})
    return objects_at(
        f"{request.getfixturevalue('bucket')}/x" if request.param == "s3" else str(tmp_path / "new" / "x"), {}
    )


def test_objects_are_written_read_and_deleted(objects: Objects) -> None:
    for content in (b"old", b"content"):
        objects.write("a/b/c", content)
    assert objects.read_all("a/b/c") == b"content"
    assert objects.size("a/b/c") == 7
    assert [objects.read("a/b/c", *cut) for cut in ((2, 4), (2, 99), (7, 9))] == [b"nt", b"ntent", b""]
    objects.delete("a/b/c")
    objects.delete("a/b/c")
    for missing in (objects.read_all, objects.size, lambda path: objects.read(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            missing("a/b/c")
    assert objects.mark("a/b/c") is None


def test_folder_exists_while_it_has_objects(objects: Objects) -> None:
    assert objects.names("") == {}
    for path in ("a/b/2", "a/1", "3"):
        objects.write(path, b"")
    assert list(objects.names("a")) == ["1", "b"]
    assert objects.names("")["a"] is None
    assert isinstance(objects.names("")["3"], float)
    objects.delete("a/b/2")
    assert list(objects.names("a")) == ["1"]
    objects.delete_all("a")
    objects.delete_all("a")
    assert list(objects.names("")) == ["3"]


def test_object_is_created_once(objects: Objects) -> None:
    assert objects.create("a/b", b"first")
    assert not objects.create("a/b", b"second")
    assert objects.read_all("a/b") == b"first"


def test_local_file_becomes_an_object(objects: Objects) -> None:
    with objects.writing("a/b") as path:
        path.write_bytes(b"content")
    assert objects.read_all("a/b") == b"content"
    with objects.reading("a/b") as path:
        assert path.read_bytes() == b"content"


def test_local_file_is_dropped_after_an_error(objects: Objects) -> None:
    with pytest.raises(RuntimeError), objects.writing("a/b"):
        raise RuntimeError
    assert objects.names("") == {}


def test_each_write_changes_the_mark(tmp_path: Path) -> None:
    objects, marks = objects_at(str(tmp_path), {}), set()
    assert objects.mark("a/b") is None
    for number in range(50):
        objects.write("a/b", b"%02d" % number)
        marks.add(objects.mark("a/b"))
        assert objects.mark("a/b") in marks
    assert len(marks) == 50


def test_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    objects = objects_at(str(tmp_path / "file"), {})
    for verb in (lambda: objects.write("a", b""), lambda: objects.create("a", b""), lambda: objects.read_all("a")):
        with pytest.raises(ObjectsUnavailable, match=r"file/a: (Not a directory|File exists)"):
            verb()


def _written(objects: Objects) -> None:
    with objects.writing("a/pipe") as path:
        path.write_bytes(b"x")


def _read(objects: Objects) -> None:
    with objects.reading("a/pipe") as path:
        path.read_bytes()


@pytest.mark.parametrize(
    "act",
    [
        lambda objects: objects.read("a/pipe", 0, 1),
        lambda objects: objects.read_all("a/pipe"),
        lambda objects: objects.size("a/pipe"),
        lambda objects: objects.mark("a/pipe"),
        _read,
        _written,
    ],
)
def test_pipe_in_place_of_an_object_is_refused(tmp_path: Path, act: Callable[[Objects], object]) -> None:
    """Opening a pipe would block forever."""
    objects = objects_at(str(tmp_path), {})
    objects.write("a/b", b"")
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(ObjectsUnavailable, match=r"a/pipe: a pipe or a device, where a file belongs"):
        act(objects)
    objects.write("a/pipe", b"whole")
    assert objects.read_all("a/pipe") == b"whole"
