"""Strict JSON with msgspec: text that is not JSON of the expected type raises `ValueError`.

So do NaN and infinity, integers of more than 4,300 digits, lone surrogates, encodings other than UTF-8, and too deep
nesting.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar, overload

import msgspec

from store.model.integers import INT_MAX, LONG_MAX

T = TypeVar("T")
Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
Int = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
# A string, complete or cut off, or an unquoted integer key with the "{" or "," before it. Takes linear time.
_STRING_OR_BARE_KEY = re.compile(rb'("(?:[^"\\]|\\.)*+"?)|([{,]\s*)(-?[0-9]{1,19})(?=\s*:)')


@overload
def decode(data: bytes | str) -> Any: ...


@overload
def decode(data: bytes | str, kind: type[T], *, strict: bool = ...) -> T: ...


def decode(data: bytes | str, kind: Any = Any, *, strict: bool = True) -> Any:
    """Parse JSON. kind: for example a dataclass or a `msgspec.Struct`. strict: if False, a number may be a text."""
    try:
        return msgspec.json.decode(data, type=kind, strict=strict)
    except RecursionError:
        raise ValueError("nested too deep") from None


@overload
def decode_fastjson(data: bytes) -> Any: ...


@overload
def decode_fastjson(data: bytes, kind: type[T]) -> T: ...


def decode_fastjson(data: bytes, kind: Any = Any) -> Any:
    """Parse JSON of RocketMQ's fastjson, which writes integer keys without quotes, as in {0:5}."""
    try:
        return decode(data, kind)
    except msgspec.ValidationError:
        raise
    except ValueError:
        return decode(_STRING_OR_BARE_KEY.sub(_quoted, data), kind)


def decode_unique(text: str) -> Any:
    """Parse JSON. Also raises `ValueError` for a duplicate name in one object."""
    try:
        return json.loads(text, object_pairs_hook=_unique_names)
    except RecursionError:
        raise ValueError("nested too deep") from None


def encode(content: object) -> bytes:
    """Return JSON without spaces. A lone surrogate becomes "?"."""
    try:
        return msgspec.json.encode(content)
    except UnicodeEncodeError:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def encode_sorted(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content, order="sorted"))


def _quoted(found: re.Match[bytes]) -> bytes:
    return found[1] or b'%b"%b"' % (found[2], found[3])


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return found
