"""Templates with autoescape always on, and how they write numbers and times."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NONE = "-"


def environment(**globals_: object) -> Environment:
    """Return the environment of the console's templates. Every value is escaped, whatever the file is called."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(number=number, size=size, rate=rate, stamp=stamp, safe_part=Markup, ago=from_milliseconds)
    del found.filters["safe"]
    found.globals.update(globals_)
    return found


def number(value: int | None) -> str:
    """Write a whole number with commas."""
    return _NONE if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Write a number per second."""
    if value is None:
        return _NONE
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def size(value: float | None) -> str:
    """Write bytes with a unit."""
    if value is None:
        return _NONE
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError(value)


def stamp(value: datetime | None) -> Markup:
    """Write a UTC time; the date is a part of its own, which narrow pages hide."""
    if value is None or value.year == 1:
        return Markup(_NONE)
    at = value.astimezone(UTC)
    iso, clock = at.isoformat(timespec="milliseconds"), f"{at:%H:%M:%S}.{at.microsecond // 1000:03}"
    return Markup('<time datetime="{}"><span class="wide">{:%Y-%m-%d} </span>{}</time>').format(iso, at, clock)


def from_milliseconds(value: float | None) -> datetime | None:
    """Return ms since 1970 as a time."""
    return None if value is None else datetime.fromtimestamp(value / 1000, UTC)
