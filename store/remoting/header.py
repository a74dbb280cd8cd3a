"""The header of a code: the texts of a command, checked and typed. `headers` declares them all.

    class GetRoute(Header, frozen=True):
        topic: str                              # required
        accept_standard_json_only: bool = False

A field is `acceptStandardJsonOnly` on the wire. Kinds are str, `Long` and bool; an optional field may also be None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from store.model.errors import RequestRefused

_UNREADABLE = 1  # SYSTEM_ERROR, as RocketMQ answers; the codes' own module is above the errors


class Header(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of one code."""

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> Self:
        """Read a command's fields; unknown ones are ignored. Raises `RequestRefused`."""
        try:
            return msgspec.convert(texts, cls, strict=False)
        except msgspec.ValidationError as error:
            required = (field.encode_name for field in msgspec.structs.fields(cls) if field.required)
            missing = next((name for name in required if name not in texts), None)
            what = f"a custom field is wrong: {error}" if missing is None else f"the custom field <{missing}> is null"
            raise RequestRefused(_UNREADABLE, what) from error

    def texts(self) -> dict[str, str]:
        """Return the fields of a command."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
