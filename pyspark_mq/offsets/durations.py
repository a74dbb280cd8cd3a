"""Lengths of time as options say them: "500ms", "30 seconds", "1.5h"; Spark's short names among them."""

import re

_LENGTH = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]+)", re.IGNORECASE)
_UNITS_MS = {
    name: milliseconds
    for names, milliseconds in (
        ("ms millisecond milliseconds", 1),
        ("s second seconds", 1000),
        ("m min minute minutes", 60_000),
        ("h hour hours", 3_600_000),
        ("d day days", 86_400_000),
    )
    for name in names.split()
}


def milliseconds_of(text: str) -> float | None:
    """None for what is no length of time."""
    length = _LENGTH.fullmatch(text.strip())
    unit = _UNITS_MS.get(length[2].lower()) if length else None
    return None if length is None or unit is None else float(length[1]) * unit
