"""`store.conf`: RocketMQ's own key names, `key=value` lines."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from store.errors import ConfigError
from store.layout import CQ_ENTRY

FLUSH_DISK_TYPES = ("ASYNC_FLUSH", "SYNC_FLUSH")


@dataclass(frozen=True)
class StoreConfig:
    """Settings of a store, with RocketMQ's names and defaults (MessageStoreConfig, BrokerConfig).

    Sizes are bytes, times ms, `fileReservedTime` hours, ratios percent. The two file sizes, `maxHashSlotNum` and
    `maxIndexNum` count for a new directory only; an existing one says them itself, but for those of an index that a
    broker wrote. `brokerIP1` (IPv4) and `listenPort` make up the store host, and
    with it message ids.
    """

    mappedFileSizeCommitLog: int = 1 << 30
    mappedFileSizeConsumeQueue: int = 300_000 * CQ_ENTRY.itemsize
    maxMessageSize: int = 4 << 20
    flushDiskType: str = "ASYNC_FLUSH"
    flushIntervalCommitLog: int = 500
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
    maxHashSlotNum: int = 5_000_000
    maxIndexNum: int = 20_000_000
    brokerIP1: str = "127.0.0.1"
    listenPort: int = 10_911

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a value that cannot work."""
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
        if self.mappedFileSizeConsumeQueue % CQ_ENTRY.itemsize:  # RocketMQ's getter rounds up likewise
            entries = -(-self.mappedFileSizeConsumeQueue // CQ_ENTRY.itemsize)
            object.__setattr__(self, "mappedFileSizeConsumeQueue", entries * CQ_ENTRY.itemsize)

    @cached_property
    def store_host(self) -> tuple[bytes, int]:
        """IPv4 bytes and port of the host that records name as their store."""
        return ipaddress.IPv4Address(self.brokerIP1).packed, self.listenPort

    @property
    def delete_hours(self) -> set[int]:
        """The hours of the day (local time) at which old segments are deleted."""
        return {int(hour) for hour in self.deleteWhen.split(";")}

    @property
    def sync_flush(self) -> bool:
        """Whether an append reaches the device before it is acknowledged."""
        return self.flushDiskType == "SYNC_FLUSH"

    def with_sizes_of(self, made: StoreConfig) -> StoreConfig:
        """This configuration with the file sizes of the one that the files were made with."""
        index = replace(self, maxHashSlotNum=made.maxHashSlotNum, maxIndexNum=made.maxIndexNum)
        return index.with_file_sizes(made.mappedFileSizeCommitLog, made.mappedFileSizeConsumeQueue)

    def with_file_sizes(self, commit_log: int | None, consume_queue: int | None) -> StoreConfig:
        """This configuration with the sizes that existing files have; None keeps one."""
        return replace(
            self,
            mappedFileSizeCommitLog=commit_log or self.mappedFileSizeCommitLog,
            mappedFileSizeConsumeQueue=consume_queue or self.mappedFileSizeConsumeQueue,
        )

    def text(self) -> str:
        """The configuration as a `store.conf`."""
        return "".join(f"{field.name}={_text(getattr(self, field.name))}\n" for field in fields(self))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> StoreConfig:
        """Read a `store.conf`. Raises `ConfigError` naming file, line and the nearest known key."""
        values: dict[str, Any] = {}
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text ({error}); write it anew, or delete it") from error
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            key, separator, value = (part.strip() for part in text.partition("="))
            where = f"{path}, line {number}"
            if not separator:
                raise ConfigError(f"{where}: {text!r} is not key=value")
            if key not in _PARSERS:
                near = get_close_matches(key, _PARSERS, 1)
                raise ConfigError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
            parse, kind = _PARSERS[key]
            try:
                values[key] = parse(value)
            except ValueError as error:
                raise ConfigError(f"{where}: {key}={value!r} is not {kind}") from error
        return StoreConfig(**values)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


_HOURS = 24
_MAX_INT = (1 << 31) - 1  # RocketMQ's file sizes and positions are Java ints
_MINIMA = {
    "mappedFileSizeCommitLog": 256,
    "mappedFileSizeConsumeQueue": CQ_ENTRY.itemsize,
    "maxMessageSize": 1,
    "flushIntervalCommitLog": 1,
    "maxTransferCountOnMessageInMemory": 1,
    "maxTransferBytesOnMessageInMemory": 1,
    "maxFilterMessageSize": CQ_ENTRY.itemsize,
    "fileReservedTime": 0,
    "deleteFileBatchMax": 1,
    "diskMaxUsedSpaceRatio": 10,
    "diskSpaceCleanForciblyRatio": 30,
    "diskSpaceWarningLevelRatio": 35,
    "maxHashSlotNum": 1,
    "maxIndexNum": 2,  # the first one is never used
    "listenPort": 0,
}
# At the low end as in RocketMQ, which caps them at 95, 85 and 90; here 100 switches one off.
_MAXIMA = {name: 100 for name in _MINIMA if name.endswith("Ratio")}
_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_boolean, "true or false"),
    int: (int, "a number"),
    str: (str, "text"),
}
_PARSERS = {field.name: _KINDS[type(field.default)] for field in fields(StoreConfig)}
