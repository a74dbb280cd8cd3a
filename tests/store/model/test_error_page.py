"""Compare the page of error messages, docs/reference/messages.md, with the messages in the code.

`python -m tests.store.model.test_error_page` writes the page.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "messages.md"
HEAD = """# Messages of errors
All messages of this project's errors, by class; `{name}` stands for a value. Catch the class; the message says what
happened, where, and what to do. An error that only adds a place to the message of another error is not listed. A row
without a place or advice is a part of a longer message, which has them.
"""
CLICK = {"UsageError", "BadParameter", "ClickException"}


def trees() -> dict[Path, ast.Module]:
    files = [path for package in ("store", "pyspark_mq") for path in sorted((ROOT / package).rglob("*.py"))]
    return {path: ast.parse(path.read_text("utf-8")) for path in files}


def error_classes(modules: Mapping[Path, ast.Module]) -> dict[str, str]:
    classes = [node for tree in modules.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    found = {"StoreError": ""}
    while more := [each for each in classes if each.name not in found and found.keys() & set(map(name_of, each.bases))]:
        found |= {each.name: ast.get_docstring(each) or "" for each in more}
    return {each.name: ast.get_docstring(each) or "" for each in classes if each.name in found}


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def constants(modules: Mapping[Path, ast.Module]) -> dict[str, str]:
    """Return the texts that modules name in capitals."""
    return {
        name_of(node.targets[0]): node.value.value
        for tree in modules.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if name_of(node.targets[0]).isupper()
    }


def messages(tree: ast.Module, classes: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the class and the message of each error that a module makes."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        named: dict[str, list[ast.expr]] = defaultdict(list)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                named[node.targets[0].id].append(node.value)
        for node in ast.walk(function.args):
            if isinstance(node, ast.arg):
                named.pop(node.arg, None)
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and name_of(node.func) in classes and node.args:
                for message in texts_of(node.args[0], named):
                    yield name_of(node.func), message


def texts_of(node: ast.expr, named: Mapping[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the texts that an expression can give, if it has text of its own. named: values of local variables."""
    if isinstance(node, ast.IfExp):
        yield from texts_of(node.body, named)
        yield from texts_of(node.orelse, named)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = ([str(each.value)] if isinstance(each, ast.Constant) else shown(each, named) for each in node.values)
        yield from map("".join, itertools.product(*parts))
    elif isinstance(node, ast.Name):
        for value in named.get(node.id, ()):
            yield from texts_of(value, {**named, node.id: []})  # a variable may be assigned from its own value


def shown(part: ast.expr, named: Mapping[str, list[ast.expr]]) -> list[str]:
    """Return the texts of a part of an f-string, or its placeholder."""
    assert isinstance(part, ast.FormattedValue)
    return list(dict.fromkeys(texts_of(part.value, named))) or [placeholder(part.value)]


def placeholder(value: ast.expr) -> str:
    text = re.sub(r"(?<!os)\.\w+\(\)(\[\d\])?$", "", ast.unparse(value))
    if text.startswith("len("):
        return "{length}"
    if text.endswith(".__name__"):
        return "{type}"
    names = re.findall(r"[A-Za-z]\w*", text)
    return "{" + (names[-1] if names else "value") + "}"


def in_full(message: str, texts: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: texts.get(found[1], found[0]), message)


def page() -> str:
    modules = trees()
    docs, public = error_classes(modules), constants(modules)
    by_class: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules.items():
        own = {name.lstrip("_"): text for name, text in constants({path: tree}).items()}
        for name, message in messages(tree, docs.keys() | CLICK):
            if re.search(r"\w", re.sub(r"\{\w+\}", "", message)):
                whole = in_full(message, public | own)
                by_class["UsageError" if name in CLICK else name].add(" ".join(whole.split()))
    parts = [HEAD]
    for name in (*docs, "UsageError"):
        if by_class[name]:
            about = " ".join(docs.get(name, "Of the command line: the given words cannot be carried out.").split())
            rows = [f"- `{message.replace('`', chr(39))}`" for message in sorted(by_class[name])]
            parts.append("\n".join([f"## {name}", about, "", *rows, ""]))
    return "\n".join(parts)


def test_page_has_every_message() -> None:
    assert page() == PAGE.read_text("utf-8"), "python -m tests.store.model.test_error_page writes the page"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
