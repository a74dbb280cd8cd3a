"""Parsers of option values. Each takes the option's name and text, and raises `OptionError` with that name."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.limits import milliseconds_of
from store.disk.consumer_offsets import check_group_name
from store.model.errors import ConfigError, InvalidGroup
from store.objects.urls import local_path, why_not_shared, without_secrets

_WHOLE = re.compile(r"[0-9]{1,18}")
_BYTE_SIZE = re.compile(r"([0-9]{1,18})\s*([kmg]?)b?", re.IGNORECASE)
_LEAST_BATCH_SECONDS = 1.0
_MOST_SECONDS = 24 * 24 * 3600  # 24 days, because timeouts of system calls are 31 bits of milliseconds
_MOST_BYTES = (1 << 63) - 1
_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def one_of(*choices: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        for choice in choices:
            if text.strip().lower() == choice.lower():
                return choice
        raise OptionError(f"{name} takes {' or '.join(choices)}, got {_short(text)}")

    return read


def group(name: str, text: str) -> str:
    try:
        check_group_name(text)
    except InvalidGroup as error:
        raise OptionError(f"{name}: {error}") from error
    return text


def milliseconds(name: str, text: str) -> int:
    if not (_WHOLE.fullmatch(text.strip()) and int(text) <= 1000 * _MOST_SECONDS):
        raise OptionError(f"{name} takes a whole number of milliseconds, at most 24 days, got {_short(text)}")
    return int(text)


def positive(name: str, text: str) -> int:
    if not (_WHOLE.fullmatch(text.strip()) and int(text) > 0):
        raise OptionError(f"{name} takes a whole number above 0, got {_short(text)}")
    return int(text)


def byte_size(name: str, text: str) -> int:
    match = _BYTE_SIZE.fullmatch(text.strip())
    size = int(match[1]) * _BYTE_UNITS[match[2].lower()] if match else 0
    if not 0 < size <= _MOST_BYTES:
        raise OptionError(
            f"{name} takes a number of bytes above 0 and below 2^63, such as 1048576, 512k or 64m, got {_short(text)}"
        )
    return size


def duration(name: str, text: str) -> float:
    seconds = (milliseconds_of(text) or 0.0) / 1000
    if not _LEAST_BATCH_SECONDS <= seconds <= _MOST_SECONDS:
        raise OptionError(
            f"{name} takes a time from 1 second to 24 days, such as '30 seconds' or '5m', got {_short(text)}"
        )
    return seconds


def shared_path(name: str, text: str) -> str:
    """Parse an absolute directory or a URL that the driver and all executors see."""
    takes = f"{name} takes a directory that the driver and all executors see, or a URL"
    if text in ("", "file:", "file://"):
        raise OptionError(f"{takes}, not {text!r}")
    try:
        local = local_path(text)
    except ConfigError as error:
        raise OptionError(f"{takes}. {error}. Name a mounted directory by its path, such as /dbfs/...") from error
    if local is None and (why := why_not_shared(text)) is not None:
        raise OptionError(f"{takes}, not {without_secrets(text)!r}: {why}")
    return local or text


def boolean(name: str, text: str) -> bool:
    values = {"true": True, "false": False}
    if text.strip().lower() not in values:
        raise OptionError(f"{name} takes true or false, got {_short(text)}")
    return values[text.strip().lower()]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
