"""The tree of errors is the one that is drawn, and nothing that is raised on purpose stands outside it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from types import ModuleType

import pyspark_mq
import pyspark_mq.errors
import store
import store.model.errors
from store import StoreError

LINE = re.compile(r"^ {4}(?P<indent>[ │├└─]*)(?P<name>[\w.]+)(?: {2,}\S|$)")


def drawn(module: ModuleType) -> dict[str, str | None]:
    """Class name to that of the class above it, as the docstring of `module` draws them."""
    above: dict[str, str | None] = {}
    path: list[str] = []
    for line in (module.__doc__ or "").splitlines():
        if found := LINE.match(line):
            name = found["name"].rpartition(".")[2]
            del path[len(found["indent"]) // 4 :]
            above[name] = path[-1] if path else None
            path.append(name)
    return above


def defined(module: ModuleType) -> dict[str, str | None]:
    """The same of the classes themselves, those that `module` defines."""
    own = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module.__name__]
    return {
        kind.__name__: next((base.__name__ for base in kind.__bases__ if issubclass(base, StoreError)), None)
        for kind in own
        if issubclass(kind, Exception)
    }


def test_the_drawing_is_true() -> None:
    assert drawn(store.model.errors) == defined(store.model.errors)
    assert drawn(pyspark_mq.errors) == {"StoreError": None, **defined(pyspark_mq.errors)}


def test_no_error_stands_outside_the_tree() -> None:
    outside = set()
    for package in (store, pyspark_mq):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            outside |= {
                f"{kind.__module__}.{name}"
                for name, kind in inspect.getmembers(module, inspect.isclass)
                if issubclass(kind, Exception)
                and kind.__module__.partition(".")[0] == package.__name__
                and kind.__module__ not in ("store.model.errors", "pyspark_mq.errors")
                and not issubclass(kind, Warning)
                and not name.startswith("_")  # caught where it is raised
            }
    assert outside == set()


def test_every_error_of_the_store_is_public() -> None:
    assert set(defined(store.model.errors)) <= set(store.__all__)
