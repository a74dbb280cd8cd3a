"""`Command`: one request or answer of RocketMQ's protocol, to bytes and back (RemotingCommand).

    frame    int length of what follows | int serialization (high byte) and header length | header | body
    JSON     {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":1,...}
    ROCKETMQ short code | byte language | short version | int opaque | int flag | int n, remark | int n, fields;
             a field is short n, name | int n, value

Both ends may write either; an answer need not be written as its request was.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final, NoReturn

from store.errors import BadFrame
from store.integers import INT_MAX
from store.remoting.codes import VERSION, CommandFlag, Language, Serialization

Bytes = bytes | bytearray | memoryview

MAX_FRAME_BYTES: Final = 16 << 20  # its length field included; RocketMQ's com.rocketmq.remoting.frameMaxLength
MAX_HEADER_BYTES: Final = 1 << 20  # 32,767 bytes of properties are 200 KB where each becomes \u0001
LENGTH: Final = struct.Struct(">i")
_HEADER_MARK = struct.Struct(">i")
_HEADER_LENGTH_BITS = 24
_FIXED = struct.Struct(">hbhii")  # code, language, version, opaque, flag
_NAME_LENGTH = struct.Struct(">h")
_SHORT_MAX = (1 << 15) - 1


@dataclass(slots=True)
class Command:
    """A request, or the answer to one.

    code: a `RequestCode`, or in an answer a `ResponseCode`. fields: of the header that belongs to the code, as texts.
    remark: what an answer says in words. opaque: what an answer has of its request. flag: `CommandFlag`.
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

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & CommandFlag.RESPONSE)

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & CommandFlag.ONEWAY)


def encode(command: Command) -> bytes:
    """The frame of a command. Raises `BadFrame` for one that is too large, or has a code that its header cannot."""
    return b"".join((encode_head(command, len(command.body)), command.body))


def encode_head(command: Command, body_bytes: int) -> bytes:
    """What stands in a frame before a body of that length, which need not be the command's own. Raises as `encode`."""
    header = _to_json(command) if command.serialization is Serialization.JSON else _to_binary(command)
    length = _HEADER_MARK.size + len(header) + body_bytes
    if len(header) > MAX_HEADER_BYTES or length > MAX_FRAME_BYTES - LENGTH.size:
        raise BadFrame(
            f"command {command.code}: a header of {len(header):,} bytes and a body of {body_bytes:,}; a frame has at "
            f"most {MAX_FRAME_BYTES:,}, its header {MAX_HEADER_BYTES:,}: send less at once"
        )
    return LENGTH.pack(length) + _HEADER_MARK.pack(command.serialization << _HEADER_LENGTH_BITS | len(header)) + header


def decode(frame: Bytes) -> Command:
    """The command of a frame, without its length. Raises `BadFrame`."""
    if len(frame) < _HEADER_MARK.size:
        raise _wrong(f"only {len(frame)} bytes")
    (mark,) = _HEADER_MARK.unpack_from(frame)
    kind, length = mark >> _HEADER_LENGTH_BITS & 0xFF, mark & (1 << _HEADER_LENGTH_BITS) - 1
    end = _HEADER_MARK.size + length
    if length > MAX_HEADER_BYTES or end > len(frame):
        raise _wrong(f"a header of {length:,} bytes in a frame of {len(frame):,}; at most {MAX_HEADER_BYTES:,}")
    header, body = bytes(frame[_HEADER_MARK.size : end]), bytes(frame[end:])
    if kind == Serialization.JSON:
        return _of_json(header, body)
    if kind == Serialization.ROCKETMQ:
        return _of_binary(header, body)
    raise _wrong(f"a header of kind {kind}; 0 is JSON, 1 RocketMQ's own")


# --- JSON ----------------------------------------------------------------------------------------------


def _to_json(command: Command) -> bytes:
    header: dict[str, object] = {"code": command.code}
    if command.fields:
        header["extFields"] = dict(command.fields)
    header |= {"flag": command.flag, "language": Language(command.language).name, "opaque": command.opaque}
    if command.remark is not None:
        header["remark"] = command.remark
    header |= {"serializeTypeCurrentRPC": Serialization.JSON.name, "version": command.version}
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _of_json(header: bytes, body: bytes) -> Command:
    content = parse_object(header)
    fields = content.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise _wrong(f"extFields is {fields!r:.40}, not an object")
    remark = content.get("remark")
    if remark is not None and not isinstance(remark, str):
        raise _wrong(f"remark is {remark!r:.40}, not a text")
    return Command(
        code=_int_of(content, "code"),
        fields={} if fields is None else {name: _text_of(name, at) for name, at in fields.items() if at is not None},
        body=body,
        remark=remark or None,
        opaque=_int_of(content, "opaque"),
        flag=_int_of(content, "flag"),
        language=_LANGUAGES.get(str(content.get("language")), Language.OTHER),
        version=_int_of(content, "version"),
    )


def parse_object(data: bytes) -> dict[str, Any]:
    """An object of JSON, however it came here. Raises `BadFrame`: also for one that is nested too deep, and for
    numbers and texts that no such message has."""
    try:
        found = json.loads(data, parse_constant=_no_number, parse_float=_finite)
        if rb"\u" in data:
            json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair could not be written anywhere
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"{data[:40]!r}... is no JSON of RocketMQ's protocol: {error}") from error
    if not isinstance(found, dict):
        raise _wrong(f"{data[:40]!r} is JSON, but no object")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _no_number(text)


_LANGUAGES: dict[object, int] = {language.name: language for language in Language}


def _int_of(content: dict[str, Any], name: str) -> int:
    found = content.get(name, 0)
    if type(found) is not int or not -INT_MAX - 1 <= found <= INT_MAX:
        raise _wrong(f"{name} is {found!r:.40}, not a number of 32 bits")
    return found


def _text_of(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):  # some clients do not write texts
        return str(value).lower()
    raise _wrong(f"field {name:.40} is {value!r:.40}, not a text")


# --- RocketMQ's own -------------------------------------------------------------------------------------


def _to_binary(command: Command) -> bytes:
    if not 0 <= command.code <= _SHORT_MAX:
        raise BadFrame(f"command {command.code}: RocketMQ's binary header has codes up to {_SHORT_MAX}; use JSON")
    fixed = _FIXED.pack(command.code, command.language, command.version, command.opaque, command.flag)
    remark = (command.remark or "").encode("utf-8", "replace")
    fields = b"".join(_field(name, value) for name, value in command.fields.items())
    return b"".join((fixed, LENGTH.pack(len(remark)), remark, LENGTH.pack(len(fields)), fields))


def _field(name: str, value: str) -> bytes:
    key, data = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
    if len(key) > _SHORT_MAX:
        raise BadFrame(f"field {name[:40]}...: a name of {len(key):,} bytes, at most {_SHORT_MAX:,}")
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
        if end != len(header):
            raise _wrong(f"{len(header) - end} bytes behind a header's fields")
        known = language if language in _LANGUAGES.values() else Language.OTHER
        words = remark.decode() or None
    except UnicodeDecodeError as error:
        raise BadFrame(f"a header that is no UTF-8: {error}") from error
    return Command(code, fields, body, words, opaque, flag, known, version, Serialization.ROCKETMQ)


def _sized(data: bytes, at: int, length: struct.Struct) -> tuple[bytes, int]:
    """The bytes behind their length, which stands at `at`, and where they end."""
    begin = at + length.size
    size = length.unpack_from(data, at)[0] if begin <= len(data) else -1
    if not 0 <= size <= len(data) - begin:
        raise _wrong(f"{size} bytes announced at {at} of a header, {len(data)} are there")
    return data[begin : begin + size], begin + size


def _wrong(what: str) -> BadFrame:
    return BadFrame(f"no command of RocketMQ's protocol: {what}")
