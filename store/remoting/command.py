"""`Command`: one request or answer of RocketMQ's protocol, encoded and decoded (RemotingCommand).

    frame     int length of the rest | int serialization (high byte) and header length | header | body
    JSON      {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,...}
    ROCKETMQ  short code | byte language | short version | int opaque | int flag | int n, remark | int n, fields;
              a field is short n, name | int n, value

Each end chooses the serialization of each command.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from store.format import strict_json
from store.format.strict_json import Int
from store.model.codes import VERSION, CommandFlag, Language, Serialization
from store.model.errors import BadFrame

Bytes = bytes | bytearray | memoryview
T = TypeVar("T")

MAX_FRAME_BYTES: Final = 16 << 20  # RocketMQ's com.rocketmq.remoting.frameMaxLength
MAX_HEADER_BYTES: Final = 1 << 20  # 32,767 bytes of properties are 200 KB if each becomes \u0001
LENGTH: Final = struct.Struct(">i")
_HEADER_MARK = struct.Struct(">i")
_HEADER_LENGTH_BITS = 24
_FIXED = struct.Struct(">hbhii")  # code, language, version, opaque, flag
_NAME_LENGTH = struct.Struct(">h")
_MAX_FIELDS = 256  # small ones take twenty times as much memory as in a header; no code has half as many
_SHORT_MAX = (1 << 15) - 1


@dataclass(slots=True)
class Command:
    """A request or an answer.

    code: a `RequestCode`; in an answer, a `ResponseCode`.
    fields: those of the code's header.
    remark: an error message.
    opaque: a number that is the same in a request and its answer.
    flag: `CommandFlag`.
    frame_bytes: the size of the received frame.
    """

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: Bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: int = Language.PYTHON
    version: int = VERSION
    serialization: Serialization = Serialization.JSON
    frame_bytes: int = field(default=0, compare=False)

    @property
    def is_response(self) -> bool:
        return bool(self.flag & CommandFlag.RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & CommandFlag.ONEWAY)


def encode(command: Command) -> bytes:
    """Encode a command as a frame.

    Raises `BadFrame` if the frame is too large, or if its header has no space for the code.
    """
    return b"".join((encode_head(command, len(command.body)), command.body))


def encode_head(command: Command, body_bytes: int) -> bytes:
    """Return the part of a frame before a body of this length. Raises as `encode`."""
    header = _to_json(command) if command.serialization is Serialization.JSON else _to_binary(command)
    length = _HEADER_MARK.size + len(header) + body_bytes
    if len(header) > MAX_HEADER_BYTES or length > MAX_FRAME_BYTES - LENGTH.size:
        raise BadFrame(
            f"command {command.code}: the header has {len(header):,} bytes (at most {MAX_HEADER_BYTES:,}), "
            f"and header and body have {LENGTH.size + length:,} (at most {MAX_FRAME_BYTES:,}). Send fewer or "
            "smaller messages per call"
        )
    return LENGTH.pack(length) + _HEADER_MARK.pack(command.serialization << _HEADER_LENGTH_BITS | len(header)) + header


def decode(frame: Bytes) -> Command:
    """Decode a frame without its length field. Raises `BadFrame`."""
    if len(frame) < _HEADER_MARK.size:
        raise _wrong(f"only {len(frame)} bytes")
    (mark,) = _HEADER_MARK.unpack_from(frame)
    kind, length = mark >> _HEADER_LENGTH_BITS & 0xFF, mark & (1 << _HEADER_LENGTH_BITS) - 1
    end = _HEADER_MARK.size + length
    if length > MAX_HEADER_BYTES or end > len(frame):
        raise _wrong(f"a header of {length:,} bytes in a command of {len(frame):,}; at most {MAX_HEADER_BYTES:,}")
    header, body = bytes(frame[_HEADER_MARK.size : end]), bytes(frame[end:])
    if kind == Serialization.JSON:
        command = _of_json(header, body)
    elif kind == Serialization.ROCKETMQ:
        command = _of_binary(header, body)
    else:
        raise _wrong(f"a header of kind {kind}; 0 is JSON, 1 RocketMQ's own")
    command.frame_bytes = len(frame)
    return command


# --- JSON ----------------------------------------------------------------------------------------------

_JSON = Serialization.JSON.name
_NAMES = {int(language): language.name for language in Language}


def _to_json(command: Command) -> bytes:
    header: dict[str, object] = {"code": command.code}
    if command.fields:
        header["extFields"] = dict(command.fields)
    header |= {"flag": command.flag, "language": _NAMES[command.language], "opaque": command.opaque}
    if command.remark is not None:
        header["remark"] = command.remark
    header |= {"serializeTypeCurrentRPC": _JSON, "version": command.version}
    return strict_json.encode(header)


class _JsonHeader(msgspec.Struct, rename="camel"):
    code: Int = 0
    ext_fields: dict[str, str | int | bool | None] | None = None  # some clients write numbers
    flag: Int = 0
    language: Any = None
    opaque: Int = 0
    remark: str | None = None
    version: Int = 0


def _of_json(header: bytes, body: bytes) -> Command:
    found = parse_json(header, _JsonHeader)
    _check_fields(len(found.ext_fields or ()))
    fields = {
        name: value if isinstance(value, str) else str(value).lower()
        for name, value in (found.ext_fields or {}).items()
        if value is not None
    }
    return Command(
        found.code,
        fields,
        body,
        found.remark or None,
        found.opaque,
        found.flag,
        _LANGUAGES.get(str(found.language), Language.OTHER),
        found.version,
    )


def parse_json(data: bytes, kind: type[T], *, strict: bool = True) -> T:
    """Parse JSON of the protocol. Raises `BadFrame`. strict: see `strict_json.decode`."""
    try:
        return strict_json.decode(data, kind, strict=strict)
    except ValueError as error:
        raise BadFrame(f"{data[:40]!r}... is no JSON of RocketMQ's protocol: {error}") from error


_LANGUAGES: dict[object, int] = {language.name: language for language in Language}


# --- RocketMQ's own -------------------------------------------------------------------------------------


def _to_binary(command: Command) -> bytes:
    if not 0 <= command.code <= _SHORT_MAX:
        raise BadFrame(
            f"command {command.code}: this code does not fit RocketMQ's binary header, which has codes up to "
            f"{_SHORT_MAX}; use JSON"
        )
    fixed = _FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag)
    remark = (command.remark or "").encode("utf-8", "replace")
    fields = b"".join(_field(name, value) for name, value in command.fields.items())
    return b"".join((fixed, LENGTH.pack(len(remark)), remark, LENGTH.pack(len(fields)), fields))


def _field(name: str, value: str) -> bytes:
    key, data = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
    if len(key) > _SHORT_MAX:
        raise BadFrame(f"field {name[:40]}...: a name of {len(key):,} bytes is too long, at most {_SHORT_MAX:,} fit")
    return _NAME_LENGTH.pack(len(key)) + key + LENGTH.pack(len(data)) + data


def _of_binary(header: bytes, body: bytes) -> Command:
    if len(header) < _FIXED.size:
        raise _wrong(f"a header of only {len(header)} bytes")
    code, language, version, opaque, flag = _FIXED.unpack_from(header)
    try:
        remark, at = _sized(header, _FIXED.size, LENGTH)
        encoded, end = _sized(header, at, LENGTH)
        fields, at = {}, 0
        while at < len(encoded):
            name, at = _sized(encoded, at, _NAME_LENGTH)
            value, at = _sized(encoded, at, LENGTH)
            fields[name.decode()] = value.decode()
            _check_fields(len(fields))
        if end != len(header):
            raise _wrong(f"{len(header) - end} bytes behind a header's fields")
        known = language if language in _LANGUAGES.values() else Language.OTHER
        words = remark.decode() or None
    except UnicodeDecodeError as error:
        raise _wrong(f"the header is not UTF-8: {error}") from error
    return Command(code, fields, body, words, opaque, flag, known, version, Serialization.ROCKETMQ)


def _sized(data: bytes, at: int, length: struct.Struct) -> tuple[bytes, int]:
    """Return the bytes that follow a length at `at`, and the position after them."""
    begin = at + length.size
    size = length.unpack_from(data, at)[0] if begin <= len(data) else -1
    if not 0 <= size <= len(data) - begin:
        raise _wrong(f"{size} bytes announced at {at} of a header, {len(data)} are there")
    return data[begin : begin + size], begin + size


def _check_fields(count: int) -> None:
    if count > _MAX_FIELDS:
        raise _wrong(f"a header of {count:,} fields; at most {_MAX_FIELDS}")


def _wrong(what: str) -> BadFrame:
    return BadFrame(f"no command of RocketMQ's protocol: {what}")


class Frames:
    """Cuts the bytes of one connection into frames, and keeps the bytes of an unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def add(self, data: Bytes) -> None:
        self._buffer += data

    def next(self, max_bytes: int = MAX_FRAME_BYTES) -> bytes | None:
        """Return the next frame without its length field, None if it is not complete. Raises `BadFrame` for an invalid
        length, even if the frame is not complete.
        """
        buffer = self._buffer
        if len(buffer) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(buffer)
        if not 0 < length <= max_bytes - LENGTH.size:
            raise BadFrame(
                f"a command of {length:,} bytes; at most {max_bytes:,} are accepted here. The other side may "
                f"speak another protocol than RocketMQ's: its bytes begin with {bytes(buffer[:16])!r}"
            )
        end = LENGTH.size + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            frame = bytes(view[LENGTH.size : end])
        del buffer[:end]
        return frame

    def feed(self, data: Bytes) -> list[bytes]:
        """Return the frames that `data` completes. Raises as `next`."""
        self.add(data)
        return list(iter(self.next, None))
