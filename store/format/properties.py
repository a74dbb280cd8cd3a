"""RocketMQ's property strings: `name 0x01 value 0x02`, repeated (MessageDecoder)."""

from __future__ import annotations

from collections.abc import Mapping

from store.format.layout import (
    MAX_PROPERTIES_BYTES,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CRC,
    PROPERTY_SEPARATOR,
    SECTOR_BYTES,
)
from store.model.errors import MessageRefused, PutStatus

_NAME_VALUE = chr(NAME_VALUE_SEPARATOR)
_PROPERTY = chr(PROPERTY_SEPARATOR)
LIKE_A_LOST_SECTOR = "\0" * SECTOR_BYTES


def encode_properties(properties: Mapping[str, str], behind: bytes = b"") -> bytes:
    """The property string, UTF-8, and `behind` it what does not come from the user.

    Raises `MessageRefused` for what is no text, for a separator inside a name or a value (it could not be read back),
    for an empty name, for a lone surrogate, for zeros that look like a lost sector, and for more than 32,767 bytes.
    Empty values are left out: RocketMQ's parser drops them.
    """
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"property {name!r}={value!r}: names and values must be texts; write {str(value)!r}, or leave it out",
            )
        both = name + value
        if not name or _NAME_VALUE in both or _PROPERTY in both:
            raise MessageRefused(
                PutStatus.MESSAGE_ILLEGAL,
                f"property {name!r}={value!r}: a name must not be empty, and neither part may contain "
                "the separators \\x01 or \\x02",
            )
        if LIKE_A_LOST_SECTOR in name or LIKE_A_LOST_SECTOR in value:
            raise too_many_zeros(f"property {name!r:.40}")
    return join_properties(properties, behind)


def join_properties(properties: Mapping[str, str], behind: bytes = b"") -> bytes:
    """`encode_properties` of what was read: only what is too large by now is refused, and what has no UTF-8 form."""
    text = "".join(f"{name}{_NAME_VALUE}{value}{_PROPERTY}" for name, value in properties.items() if value)
    try:
        encoded = text.encode() + behind
    except UnicodeEncodeError as error:
        raise MessageRefused(PutStatus.MESSAGE_ILLEGAL, f"properties {text!r} have no UTF-8 form: {error}") from error
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise properties_too_large(len(encoded))
    return encoded


def too_many_zeros(what: str) -> MessageRefused:
    """The refusal of zeros that a recovery would take for what a crash of the machine lost, and end the log there."""
    return MessageRefused(
        PutStatus.MESSAGE_ILLEGAL,
        f"{what}: {SECTOR_BYTES} zeros in a row look like a sector that the device lost; put such values into the body",
    )


def properties_too_large(length: int) -> MessageRefused:
    """The refusal of `length` bytes of properties."""
    return MessageRefused(
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        f"{length} bytes of properties (tags and keys included), at most {MAX_PROPERTIES_BYTES}; "
        "put large values into the body",
    )


def decode_properties(encoded: bytes) -> dict[str, str]:
    """Name to value, as `MessageDecoder.string2messageProperties` reads it.

    A missing last separator is tolerated, pieces without a name or a value are passed over, the last one of
    a name wins. The checksum that a record may end with is none of them.
    """
    properties: dict[str, str] = {}
    for piece in encoded.decode("utf-8", "replace").split(_PROPERTY):
        name, _, value = piece.partition(_NAME_VALUE)
        if name and value:
            properties[name] = value
    properties.pop(PROPERTY_CRC, None)
    return properties
