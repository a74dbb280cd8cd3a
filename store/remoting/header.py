"""What a code's header has, from the texts of a command and back: the mechanism; `headers` declares them all.

    class GetRoute(Header):
        topic: str                              # required
        accept_standard_json_only: bool = False

A field is `acceptStandardJsonOnly` on the wire. Kinds are str, int (64 bits), bool; with None as default, optional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

from store.errors import RequestRefused
from store.integers import LONG_MAX

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_UNREADABLE = 1  # SYSTEM_ERROR, as RocketMQ answers; this room's codes are above the errors


_Parse = Callable[[str, str], Any]


@dataclass_transform(frozen_default=True)
class Header:
    """The fields of one code. Subclasses are frozen dataclasses."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Names on the wire that do not follow from the field's own."""

    _plan: ClassVar[list[tuple[str, str, _Parse, bool]]]

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)
        cls._plan = _plan_of(cls)

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Read from a command's fields; others than these are passed over. Raises `RequestRefused`."""
        values: dict[str, Any] = {}
        for name, wire, parse, is_required in cls._plan:
            text = texts.get(wire)
            if text is not None:
                values[name] = parse(wire, text)
            elif is_required:
                raise RequestRefused(_UNREADABLE, f"the custom field <{wire}> is null")
        return cls(**values)

    def texts(self) -> dict[str, str]:
        """As a command's fields."""
        values = ((wire, getattr(self, name)) for name, wire, *_ in self._plan)
        return {wire: _text(value) for wire, value in values if value is not None}


def _plan_of(header: type[Header]) -> list[tuple[str, str, _Parse, bool]]:
    """Of each field: its name, that on the wire, how it is read, whether it must be there."""
    kinds = get_type_hints(header)
    return [
        (
            field.name,
            header.aliases.get(field.name) or _camel_case(field.name),
            _PARSERS[str(kinds[field.name]).removesuffix(" | None").removeprefix("<class '").removesuffix("'>")],
            field.default is MISSING,
        )
        for field in fields(header)  # type: ignore[arg-type]
    ]


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _integer(name: str, text: str) -> int:
    number = int(text) if _INTEGER.fullmatch(text) else LONG_MAX + 1
    if not -LONG_MAX - 1 <= number <= LONG_MAX:
        raise RequestRefused(_UNREADABLE, f"the custom field <{name}> is {text[:40]!r}, no number of 64 bits")
    return number


def _boolean(name: str, text: str) -> bool:
    return text.lower() == "true"  # as Java's parseBoolean


_PARSERS: Mapping[str, _Parse] = {"str": lambda name, text: text, "int": _integer, "bool": _boolean}
