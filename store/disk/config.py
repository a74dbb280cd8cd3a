"""`store.conf`: a Java properties file with the keys of RocketMQ's `broker.conf`."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from store.disk.atomic import read_file
from store.format.layout import CQ_ENTRY
from store.model.errors import ConfigError, StoreUnavailable, system_errors

FLUSH_DISK_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")


@dataclass(frozen=True)
class StoreConfig:
    """A store's settings, with RocketMQ's names and defaults (MessageStoreConfig, BrokerConfig).

    Sizes are bytes, times ms, `fileReservedTime` hours, ratios percent. The two file sizes, `maxHashSlotNum` and
    `maxIndexNum` only have an effect in new directories, except for an index that a broker wrote. `brokerIP1` (IPv4)
    and `listenPort` are part of each message id.

    Not in RocketMQ: `maxDecompressedMessageSize` limits a compressed body after decompression. `archive` is the
    archive's URL, `brokerName` the store's name in it (default: its directory's name). Retention keeps messages of
    `archiveTopics` until they are archived: names separated by commas, or "" for all except system topics.
    """

    mappedFileSizeCommitLog: int = 1 << 30
    mappedFileSizeConsumeQueue: int = 300_000 * CQ_ENTRY.itemsize
    maxMessageSize: int = 4 << 20
    maxDecompressedMessageSize: int = 64 << 20
    enabledAppendPropCRC: bool = False
    flushDiskType: str = "ASYNC_FLUSH"
    flushIntervalCommitLog: int = 500
    lockTimeoutMillis: int = 30_000
    maxTransferCountOnMessageInMemory: int = 32
    maxTransferBytesOnMessageInMemory: int = 256 << 10
    maxFilterMessageSize: int = 16_000
    fileReservedTime: int = 72
    deleteWhen: str = "04"
    deleteFileBatchMax: int = 10
    diskMaxUsedSpaceRatio: int = 75
    cleanFileForciblyEnable: bool = True
    diskSpaceCleanForciblyRatio: int = 85
    diskSpaceWarningLevelRatio: int = 90
    messageIndexEnable: bool = True
    tagIndexEnable: bool = False
    maxHashSlotNum: int = 5_000_000
    maxIndexNum: int = 20_000_000
    brokerIP1: str = "127.0.0.1"
    listenPort: int = 10_911
    brokerName: str = ""
    archive: str = ""
    archiveTopics: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if type(value) is not kind:
                raise ConfigError(f"{field.name}={value!r}: must be {_KINDS[kind][1]}")
            if isinstance(value, str) and value != value.strip():
                raise ConfigError(f"{field.name}={value!r}: remove the spaces around it, which the file would not keep")
        for name, minimum in _MINIMA.items():
            value, maximum = getattr(self, name), _MAXIMA.get(name, _MAX_INT)
            if value < minimum or value > maximum:
                raise ConfigError(f"{name}={value}: must lie between {minimum} and {maximum}")
        if self.flushDiskType not in FLUSH_DISK_TYPES:
            raise ConfigError(f"flushDiskType={self.flushDiskType}: must be one of {', '.join(FLUSH_DISK_TYPES)}")
        if not all(hour.isdecimal() and int(hour) < _HOURS for hour in self.deleteWhen.split(";")):
            raise ConfigError(f"deleteWhen={self.deleteWhen}: must be hours from 00 to 23, such as 04 or 04;16")
        try:
            ipaddress.IPv4Address(self.brokerIP1)
        except ValueError as error:
            raise ConfigError(f"brokerIP1={self.brokerIP1}: must be an IPv4 address such as 127.0.0.1") from error
        if self.mappedFileSizeConsumeQueue % CQ_ENTRY.itemsize:  # as RocketMQ's getter
            entries = -(-self.mappedFileSizeConsumeQueue // CQ_ENTRY.itemsize)
            object.__setattr__(self, "mappedFileSizeConsumeQueue", entries * CQ_ENTRY.itemsize)

    @cached_property
    def store_host(self) -> tuple[bytes, int]:
        """IPv4 bytes and port."""
        return ipaddress.IPv4Address(self.brokerIP1).packed, self.listenPort

    @property
    def delete_hours(self) -> set[int]:
        """Hours in local time."""
        return {int(hour) for hour in self.deleteWhen.split(";")}

    @property
    def sync_flush(self) -> bool:
        return self.flushDiskType == "SYNC_FLUSH"

    def with_file_sizes(self, commit_log: int | None, consume_queue: int | None) -> StoreConfig:
        """Return a copy with other file sizes. None keeps a size."""
        return replace(
            self,
            mappedFileSizeCommitLog=commit_log or self.mappedFileSizeCommitLog,
            mappedFileSizeConsumeQueue=consume_queue or self.mappedFileSizeConsumeQueue,
        )

    def text(self) -> str:
        return "".join(_line(field.name, getattr(self, field.name)) for field in fields(self))

    @staticmethod
    def load(path: str | os.PathLike[str], others: Collection[str] = ()) -> StoreConfig:
        """Read settings from a file. others: keys to ignore without a warning. Raises `ConfigError`."""
        values = read_settings(path, others)
        try:
            return StoreConfig(**values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def read_settings(path: str | os.PathLike[str], others: Collection[str] = ()) -> dict[str, Any]:
    """Read a `store.conf` or a RocketMQ `broker.conf`.

    Unknown keys are ignored with one warning, keys in `others` without. Raises `ConfigError` for a wrong value or a
    misspelt key.
    """
    values: dict[str, Any] = {}
    passed_over: list[str] = []
    for where, key, text in entries(Path(path)):
        if key in others:
            continue
        name = _OLD_SPELLINGS.get(key, key)
        if name not in _PARSERS:
            _refuse_misspelt(where, name)
            passed_over.append(name)
            continue
        values[name] = parsed(where, key, text, _PARSERS[name])
    if passed_over:
        warnings.warn(
            f"{path}: ignored, because this package has no such settings: {', '.join(passed_over)}", stacklevel=3
        )
    return values


def existing_settings(path: Path) -> dict[str, Any]:
    return read_settings(path) if settings_text(path) else {}


def settings_text(path: Path) -> bytes:
    """Return the content of a file, b"" if it is missing, or if a crash left it empty or full of zeros."""
    try:
        text = read_file(path, MAX_BYTES)
    except StoreUnavailable as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return b""
    return text if text.strip(b"\0 \t\r\n") else b""


def parsed(where: str, key: str, text: str, kind: type) -> Any:
    parse, name = _KINDS[kind]
    try:
        return parse(text.strip())
    except ValueError as error:
        hint = ". Write a comment on a line of its own" if "#" in text else ""
        raise ConfigError(f"{where}: {key}={text!r} is not {name}{hint}") from error


def entries(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield location (file and line), key and value."""
    import javaproperties  # imports HTTP, TLS, XML and email

    line = 1
    with system_errors(path), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{path}: more than {MAX_BYTES:,} bytes, which is too large for a file of settings. Name the right file"
        )
    try:
        for element in javaproperties.parse(data):
            where = f"{path}, line {line}"
            line += len(re.findall(_LINE_END, element.source))
            if isinstance(element, javaproperties.KeyValue):
                if not (element.key.isascii() and element.key.isprintable()):
                    raise ConfigError(
                        f"{where}: {element.key[:20]!r} is no key. Save the file as plain text, with one key=value "
                        "on each line"
                    )
                yield where, element.key, element.value
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"{path}, line {line}: {error}. Write each backslash twice") from error


def _refuse_misspelt(where: str, key: str) -> None:
    ours = {name.lower(): name for name in _PARSERS}
    near = get_close_matches(key.lower(), ours, 1, _NEAR)
    if near and key not in _ROCKETMQS_NEIGHBOURS:
        raise ConfigError(f"{where}: unknown key {key!r}; did you mean {ours[near[0]]!r}?")


def with_settings(text: bytes, values: Mapping[str, object]) -> bytes:
    """Return the text of a file with changed or added settings. All other lines keep their bytes."""
    import javaproperties

    kept = [element for element in javaproperties.parse(text) if getattr(element, "key", None) not in values]
    sources = [element.source for element in kept]
    if kept and isinstance(kept[-1], javaproperties.KeyValue) and not sources[-1].endswith(("\r", "\n")):
        sources[-1] = _line(kept[-1].key, kept[-1].value)  # a trailing backslash would continue it
    elif kept and not sources[-1].endswith(("\r", "\n")):
        sources[-1] += "\n"
    return "".join([*sources, *(_line(name, value) for name, value in values.items())]).encode("latin-1")


def _line(name: str, value: object) -> str:
    import javaproperties

    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{javaproperties.join_key_value(name, text)}\n"


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _integer(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]+", text):
        raise ValueError(text)
    return int(text)


# These settings identify a store's archive.
REMEMBERED = ("brokerName", "archive", "archiveTopics")
# Existing files fix these settings.
SIZES = ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
_OLD_SPELLINGS = {name.replace("mapped", "maped"): name for name in SIZES[:2]}  # RocketMQ's before 4.9
# Similarity (0 to 1) of a misspelt key. Of RocketMQ's other 500 keys only _ROCKETMQS_NEIGHBOURS reach it.
_NEAR = 0.9
_ROCKETMQS_NEIGHBOURS = {"haListenPort", "mappedFileSizeConsumeQueueExt"}
MAX_BYTES = 1 << 20
_LINE_END = r"\r\n|\r|\n"
_HOURS = 24
_MAX_INT = (1 << 31) - 1  # RocketMQ's sizes and positions are Java ints
_MINIMA = {
    "mappedFileSizeCommitLog": 256,
    "mappedFileSizeConsumeQueue": CQ_ENTRY.itemsize,
    "maxMessageSize": 1,
    "maxDecompressedMessageSize": 1,
    "flushIntervalCommitLog": 1,
    "lockTimeoutMillis": 0,
    "maxTransferCountOnMessageInMemory": 1,
    "maxTransferBytesOnMessageInMemory": 1,
    "maxFilterMessageSize": CQ_ENTRY.itemsize,
    "fileReservedTime": 0,
    "deleteFileBatchMax": 1,
    "diskMaxUsedSpaceRatio": 10,
    "diskSpaceCleanForciblyRatio": 30,
    "diskSpaceWarningLevelRatio": 35,
    "maxHashSlotNum": 1,
    "maxIndexNum": 2,  # the first entry is never used
    "listenPort": 0,
}
# RocketMQ's maxima are 95, 85 and 90; here 100 switches a limit off.
_MAXIMA = {name: 100 for name in _MINIMA if name.endswith("Ratio")} | {"listenPort": 65_535}
_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_boolean, "true or false"),
    int: (_integer, "a number"),
    str: (str, "text"),
}
_PARSERS = {field.name: type(field.default) for field in fields(StoreConfig)}
