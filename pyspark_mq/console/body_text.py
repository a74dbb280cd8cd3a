"""Conversion of message bodies for display: JSON, text or hexadecimal digits."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple, get_args

BodyForm = Literal["json", "text", "hex"]
FORMS_OF_BODY: tuple[BodyForm, ...] = get_args(BodyForm)
SHOWN_BYTES = 256 << 10
PREVIEW_CHARACTERS = 160
_HEX_WIDTH = 16


class ShownBody(NamedTuple):
    """A converted body. note: why the body is cut or not in the requested form; "" otherwise."""

    form: BodyForm
    text: str
    note: str = ""


def shown_body(body: bytes, form: BodyForm | None = None) -> ShownBody:
    """Return a body as text. form: by default the first that fits: JSON, text, hex."""
    cut = body[:SHOWN_BYTES]
    note = f"Only the first {SHOWN_BYTES >> 10} KiB are shown; the download has all." if len(cut) < len(body) else ""
    if form == "hex":
        return ShownBody("hex", hex_dump(cut), note)
    text = as_text(cut, is_cut=len(cut) < len(body))
    if text is None:
        asked = "" if form is None else "The body is not UTF-8. "
        return ShownBody("hex", hex_dump(cut), asked + note)
    if form != "text" and not note:
        pretty = as_json(text)
        if pretty is not None:
            return ShownBody("json", pretty)
    asked = "The body is not JSON. " if form == "json" else ""
    return ShownBody("text", text, asked + note)


def preview(body: bytes) -> str:
    cut = body[: 4 * PREVIEW_CHARACTERS]
    text = as_text(cut, is_cut=len(cut) < len(body))
    if text is None:
        return f"{body[:24].hex(' ')}{' …' if len(body) > 24 else ''}"
    line = " ".join(text[:PREVIEW_CHARACTERS].split())
    return f"{line} …" if len(text) > PREVIEW_CHARACTERS else line


def as_text(body: bytes, *, is_cut: bool = False) -> str | None:
    """Return UTF-8 as text, None for other bytes. is_cut: the last character may be incomplete."""
    for missing in range(4 if is_cut else 1):
        try:
            return body[: len(body) - missing].decode()
        except UnicodeDecodeError:
            continue
    return None


def as_json(text: str) -> str | None:
    """Indent a JSON object or array. Return None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def hex_dump(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _HEX_WIDTH):
        row = body[at : at + _HEX_WIDTH]
        ascii_ = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_WIDTH - 1}}  {ascii_}")
    return "\n".join(lines)
