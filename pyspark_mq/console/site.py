"""Shared parts of a console's pages: the log, templates that escape all values, forms."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pyspark_mq.console.guard import ConsoleKeys
from pyspark_mq.console.messages import queue_named
from pyspark_mq.console.sampler import Sampler
from store import InvalidArgument, ReadOnlyStore
from store.model.log_protocol import Log, LogAddress, Queue

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NONE = "-"
_LAYOUT = "\n\t"
_FORM_BYTES = 1 << 16
_OFFSET_DIGITS = 18


Parameters = Mapping[str, str]


class Site:
    def __init__(self, address: LogAddress, keys: ConsoleKeys, *, interval: float, allow_changes: bool) -> None:
        self.address = address
        self.keys = keys
        self.sampler = Sampler(address, interval)
        self._allow_changes = allow_changes
        self._templates = environment(address=str(address), csrf=keys.csrf, allow_changes=allow_changes)

    @property
    def log(self) -> Log:
        """The log. The object changes when another process takes over the directory."""
        return self.sampler.log

    def part(self, name: str, **values: Any) -> str:
        return self._templates.get_template(name).render(values)

    def page(self, name: str, status: int = 200, **values: Any) -> Response:
        values.setdefault("failure", self.sampler.failure)
        return HTMLResponse(self.part(name, **values), status)

    def where(self, parameters: Parameters) -> tuple[Queue, int]:
        """Return the message that a URL or a form names. Raises `InvalidArgument`, `UnknownTopic`, `UnknownQueue`."""
        queue = queue_named(self.log, parameters.get("topic", ""), parameters.get("queue", ""))
        offset = parameters.get("offset", "")
        if not offset.isdecimal() or len(offset) > _OFFSET_DIGITS:
            raise InvalidArgument(f"Offset {offset!r:.40} is not a whole number of at most {_OFFSET_DIGITS} digits")
        return queue, int(offset)

    async def own_form(self, request: Request, *, changes: bool = True) -> dict[str, str]:
        """Return the fields of a form that a page of this console sent.

        changes: whether the form changes the store. Raises `Forbidden` for a form of another site, `ReadOnlyStore` for
        a change in a read-only console, and `HTTPException` for a form over 64 KiB.
        """
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _FORM_BYTES:
                raise HTTPException(413, "The form is too large")
        form = dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))
        self.keys.must_be_own_form(request, form)
        if changes and not self._allow_changes:
            raise ReadOnlyStore("This console is read-only. To allow changes, start it with --allow-changes")
        return form


def redirect(path: str, **parameters: str) -> Response:
    return RedirectResponse(f"{path}?{urlencode(parameters)}" if parameters else path, status_code=303)


def environment(**globals_: object) -> Environment:
    """Return a template environment that escapes values and makes control characters visible."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(number=number, size=size, rate=rate, stamp=stamp, safe_part=Markup, ago=from_milliseconds)
    del found.filters["safe"]
    found.globals.update(globals_)
    return found


def visible(value: object) -> object:
    """Escape control characters of a text, including those that change its direction."""
    if type(value) is not str:  # the parts of markup were escaped before
        return value
    return "".join(
        each if each in _LAYOUT or unicodedata.category(each)[0] != "C" else ascii(each)[1:-1] for each in value
    )


def number(value: int | None) -> str:
    return _NONE if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def size(value: float | None) -> str:
    if value is None:
        return _NONE
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(value)


def stamp(value: datetime | None) -> Markup:
    """Format a UTC time as HTML. The date is a separate element, which narrow pages hide."""
    if value is None or value.year == 1:
        return Markup(_NONE)
    at = value.astimezone(UTC)
    iso, clock = at.isoformat(timespec="milliseconds"), f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"
    return Markup('<time datetime="{}"><span class="wide">{:%Y-%m-%d} </span>{}</time>').format(iso, at, clock)


def from_milliseconds(value: float | None) -> datetime | None:
    return None if value is None else datetime.fromtimestamp(value / 1000, UTC)
