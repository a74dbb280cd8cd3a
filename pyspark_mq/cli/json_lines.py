"""Messages as lines of JSON, for `tail --json` and `send --json`. If printed lines are sent, the messages are equal.

    {"queueId": 0, "queueOffset": 17, "msgId": "7F00...", "tags": "paid", "keys": "o-17", "body": "text",
     "bornTimestamp": "2013-01-31T06:00:00.123+00:00", "storeTimestamp": ..., "flag": 0, "shardingKey": null,
     "properties": {"region": "eu"}}

A body that is not UTF-8 is in `bodyBase64`. If a body does not decompress, `bodyError` has the reason. `properties` has
the properties that have no field of their own.
"""

import base64
import binascii
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple

import pyarrow as pa

from pyspark_mq.browsing import Row
from pyspark_mq.cli.terminal import CONTROLS, visible_body
from store.format.arrays import blobs
from store.format.columns import TIMESTAMP
from store.format.layout import PROPERTY_KEYS, PROPERTY_SHARDING_KEY, PROPERTY_TAGS
from store.model.integers import LONG_MAX

_SHOWN = (
    "queueId",
    "queueOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "flag",
    "properties",
)
_BODY, _BODY_BASE64, _BODY_ERROR, _SHARDING_KEY = "body", "bodyBase64", "bodyError", "shardingKey"
_GIVEN_BY_STORE = frozenset(("topic", "queueOffset", "msgId", "storeTimestamp", _BODY_ERROR))
_WITH_FIELD = frozenset((PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_SHARDING_KEY))
_SENT: dict[str, pa.DataType] = {
    "tags": pa.string(),
    "keys": pa.string(),
    "queueId": pa.int64(),
    _SHARDING_KEY: pa.string(),
    "flag": pa.int64(),
    "bornTimestamp": TIMESTAMP,
    "properties": pa.map_(pa.string(), pa.string()),
}


class PrintFormat(NamedTuple):
    """A format of printed messages. columns: the names from `store.COLUMNS` that `line` needs."""

    columns: tuple[str, ...]
    line: Callable[[Row], bytes]


def body_line(row: Row) -> bytes:
    return bytes(row[_BODY])


def _shown_body(row: Row) -> tuple[str, str]:
    if row[_BODY] is None:
        return _BODY_ERROR, str(row[_BODY_ERROR])
    try:
        return _BODY, row[_BODY].decode()
    except UnicodeDecodeError:
        return _BODY_BASE64, base64.b64encode(row[_BODY]).decode()


def json_line(row: Row) -> bytes:
    shown = dict(_shown_body(row) if name == _BODY else (name, row[name]) for name in _SHOWN)
    properties = dict(row["properties"] or ())
    shown[_SHARDING_KEY] = properties.get(PROPERTY_SHARDING_KEY)
    shown["properties"] = {name: value for name, value in properties.items() if name not in _WITH_FIELD}
    text = json.dumps(shown, ensure_ascii=False, default=datetime.isoformat)
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


BODIES = PrintFormat((_BODY, _BODY_ERROR, "queueId", "queueOffset"), body_line)
VISIBLE_BODIES = PrintFormat(BODIES.columns, lambda row: visible_body(row[_BODY]))
JSON = PrintFormat((*_SHOWN, _BODY_ERROR), json_line)


def printed_as(as_json: bool) -> PrintFormat:
    """Return the format of printed messages. On a terminal, control characters in bodies are escaped."""
    if as_json:
        return JSON
    return VISIBLE_BODIES if sys.stdout.isatty() else BODIES


def json_object(line: bytes) -> dict[str, Any]:
    """Parse a line with a JSON object. Raises `ValueError`."""
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"the line is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the line is a JSON {type(found).__name__}, not an object")
    return found


def message(line: bytes) -> Row:
    """Parse a line to the columns of a message. Ignores fields that the store assigns. Raises `ValueError`."""
    given = json_object(line)
    row = {name: value for name, value in given.items() if name in _SENT and value is not None}
    for name in given.keys() - _SENT.keys() - _GIVEN_BY_STORE - {_BODY, _BODY_BASE64}:
        near = get_close_matches(name, (*_SENT, _BODY, _BODY_BASE64), n=1)
        raise ValueError(
            f"unknown field {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else "; put it into 'properties', or send without --json")
        )
    if (_BODY in given) == (_BODY_BASE64 in given):
        raise ValueError("give exactly one of the fields 'body' and 'bodyBase64'")
    row[_BODY] = _body(given)
    for name in ("tags", "keys", _SHARDING_KEY):
        _need(name, row.get(name, ""), str, "a text")
    for name in ("queueId", "flag"):
        if abs(_need(name, row.get(name, 0), int, "a whole number")) > LONG_MAX:
            raise ValueError(f"{name!r} is {json.dumps(row[name])[:40]}, not a whole number of 64 bits")
    properties = _need("properties", row.get("properties", {}), dict, "an object of texts")
    for name, value in properties.items():
        _need(name, value, str, "a text", "properties: ")
        must_be_text("properties", name)
    if "bornTimestamp" in row:
        row["bornTimestamp"] = _time(row["bornTimestamp"])
    return row


def message_table(rows: list[Row]) -> pa.Table:
    """Return rows of `message` as a table for `append_table`. A column that no row has is left out."""
    otherwise = {"flag": 0, "bornTimestamp": datetime.now(UTC)}  # these columns may have no nulls
    columns = {_BODY: blobs([row[_BODY] for row in rows])}
    for name, kind in _SENT.items():
        if any(name in row for row in rows):
            columns[name] = pa.array([row.get(name, otherwise.get(name)) for row in rows], kind)
    return pa.table(columns)


def _body(given: dict[str, Any]) -> bytes:
    if _BODY in given:
        return str(_need(_BODY, given[_BODY], str, "a text; give bytes in 'bodyBase64'")).encode()
    try:
        return base64.b64decode(_need(_BODY_BASE64, given[_BODY_BASE64], str, "a text"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"'bodyBase64' is no base64: {error}") from error


def _time(value: object) -> datetime:
    found = datetime.fromisoformat(_need("bornTimestamp", value, str, "a text such as 2013-01-31T06:00:00+00:00"))
    try:
        return found.astimezone(UTC)  # a time without a zone is local
    except OverflowError as error:
        raise ValueError("'bornTimestamp' is outside of the years 1 to 9999") from error


def _need(name: str, value: Any, kind: type, wanted: str, where: str = "") -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where}{name!r} is {json.dumps(value)[:40]}, not {wanted}")
    if isinstance(value, str):
        must_be_text(f"{where}{name}", value)
    return value


def must_be_text(name: str, value: str) -> None:
    """Raise `ValueError` for text that UTF-8 cannot encode: half of a surrogate pair."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has {ascii(value)[:40]}, which UTF-8 cannot encode") from error
