"""What the options of a query with `format("mq")` say. `tables` names them, `sink` is for writes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar, cast, get_args

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.durations import milliseconds_of
from pyspark_mq.offsets.limits import EARLIEST, LATEST, Limit, Named, end_of, says, start_of
from pyspark_mq.options.addresses import address_of, directory_for
from pyspark_mq.options.cluster import CLUSTER_NAMES
from pyspark_mq.options.subscription import Subscription
from pyspark_mq.options.tables import READ_OPTIONS, WRITE_OPTIONS, known_options, names_of
from pyspark_mq.shared_folders import why_not_shared
from store import FilterError, InvalidGroup, message_filter
from store.any_group import Subscription as Expression
from store.any_log import LogAddress, MessageFilter, Oversized
from store.files.consumer_offsets import check_group_name

T = TypeVar("T")

_DEFAULTS = {option.name: option.default for option in READ_OPTIONS if option.default is not None}
LEDGER_DIR = "ledger"
_WHOLE = re.compile(r"[0-9]{1,18}")
_BYTE_SIZE = re.compile(r"([0-9]{1,18})\s*([kmg]?)b?", re.IGNORECASE)
_LEAST_BATCH_SECONDS = 1.0
_MOST_SECONDS = 24 * 24 * 3600  # the kernel counts milliseconds of a wait in 31 bits
_MOST_BYTES = (1 << 63) - 1
_BYTE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class WhenLocked(Enum):
    """What a query does while another member of its group has queues of its own."""

    WAIT = "wait"
    TAKE_OVER = "takeOver"
    FAIL = "fail"


@dataclass(frozen=True)
class SourceOptions:
    """What the user asked for, parsed and checked.

    address: where the log is. start, end: None for the default, which differs between streaming and batch.
    consumer_group: to which the progress of a stream is told. orderly: what an orderly stream does while its queues are
    locked; None for one that locks none. expression: subExpression as it was given. message_filter: which messages to
    read.
    min_offsets_per_trigger: how many messages make a batch, unless the last one is max_trigger_delay_seconds ago.
    max_decompressed_message_size: bytes that a compressed body may become; None for the store's own bound. oversized:
    what a larger one is. hold_timeout_seconds: how long an idle micro-batch query waits in the driver. real_time:
    tasks stay open for batch_duration_seconds. real_time_partitions: how many tasks at most; None for the default.
    ledger_path: None for the default, see `ledger_directory`.
    """

    address: LogAddress
    subscription: Subscription
    start: Limit | None
    end: Limit | None
    consumer_group: str | None
    orderly: WhenLocked | None
    expression: Expression
    message_filter: MessageFilter
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_seconds: float
    min_partitions: int | None
    max_records_per_partition: int | None
    push_down_predicate: bool
    fail_on_data_loss: bool
    include_properties: bool
    check_crc: bool
    max_decompressed_message_size: int | None
    oversized: Oversized
    hold_timeout_seconds: float
    real_time: bool
    batch_duration_seconds: float
    real_time_partitions: int | None
    ledger_path: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """From Spark's options (names in any case). Raises `OptionError`."""
        _refuse_options_of_writes(options)
        given = known_options(options, READ_OPTIONS, CLUSTER_NAMES)

        def value(name: str, parse: Callable[[str, str], T]) -> T:
            return parse(name, given.get(name, _DEFAULTS[name]))

        def if_given(name: str, parse: Callable[[str, str], T]) -> T | None:
            return parse(name, given[name]) if name in given else None

        return cls(
            address=address_of(given),
            subscription=Subscription.parse(given.get("subscribe"), given.get("subscribePattern"), given.get("assign")),
            start=start_of(given),
            end=end_of(given),
            consumer_group=if_given("consumerGroup", _group),
            orderly=_orderly(given),
            expression=Expression(given.get("subExpression", "*"), given.get("expressionType", "TAG").upper()),
            message_filter=_message_filter(given.get("subExpression"), given.get("expressionType")),
            max_offsets_per_trigger=if_given("maxOffsetsPerTrigger", _positive),
            max_bytes_per_trigger=if_given("maxBytesPerTrigger", _bytes),
            min_offsets_per_trigger=if_given("minOffsetsPerTrigger", _positive),
            max_trigger_delay_seconds=value("maxTriggerDelay", _duration),
            min_partitions=if_given("minPartitions", _positive),
            max_records_per_partition=if_given("maxRecordsPerPartition", _positive),
            push_down_predicate=value("pushDownPredicate", _boolean),
            fail_on_data_loss=value("failOnDataLoss", _boolean),
            include_properties=value("includeProperties", _boolean),
            check_crc=value("checkCRC", _boolean),
            max_decompressed_message_size=if_given("maxDecompressedMessageSize", _bytes),
            oversized=value("oversized", _oversized),
            hold_timeout_seconds=value("holdTimeoutMs", _milliseconds) / 1000,
            real_time=value("realTime", _boolean),
            batch_duration_seconds=value("batchDuration", _duration),
            real_time_partitions=if_given("realTimePartitions", _positive),
            ledger_path=if_given("ledgerPath", shared_path),
        )

    def stream_start(self) -> Limit:
        """Where a new streaming query starts. Raises `OptionError` for an option of batch queries."""
        if self.end is not None:
            raise OptionError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch queries (spark.read); a "
                "streaming query has no end"
            )
        if self.push_down_predicate:
            raise OptionError(
                "pushDownPredicate is for batch queries (spark.read): Spark hands no conditions of a stream to sources "
                "in Python; use subExpression"
            )
        if self.real_time:
            self._refuse_limits()
            self.ledger_directory()
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most}); no batch is both"
            )
        return self.start or Named(LATEST)

    def ledger_directory(self) -> str:
        """Where real-time batches note what they read: beside the log, if nothing else is said.

        Raises `OptionError` where the log has no directory.
        """
        why = "realTime notes what it read, in files or on S3"
        return directory_for("ledgerPath", self.ledger_path, self.address, LEDGER_DIR, why)

    def _refuse_limits(self) -> None:
        limits = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
            "minPartitions": self.min_partitions,
            "maxRecordsPerPartition": self.max_records_per_partition,
        }
        for name, limit in limits.items():
            if limit is not None:
                raise OptionError(
                    f"{name} does not go with realTime: its batches end by time, not by size. Use batchDuration and "
                    "realTimePartitions, or leave realTime out"
                )

    def batch_limits(self) -> tuple[Limit, Limit]:
        """Where a batch query starts and ends. Raises `OptionError` for an option of streaming queries."""
        start, end = self.start or Named(EARLIEST), self.end or Named(LATEST)
        _refuse("startingOffsets", start, LATEST, "latest (-1): a batch query would read nothing")
        _refuse("endingOffsets", end, EARLIEST, "earliest (-2): a batch query would read nothing")
        limits = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
        }
        if self.orderly is not None:
            raise OptionError(
                "consumeMode=orderly is for streaming queries (spark.readStream); a batch query has an end"
            )
        if self.real_time:
            raise OptionError("realTime is for streaming queries (spark.readStream); a batch query reads what is there")
        for name, limit in limits.items():
            if limit is not None:
                raise OptionError(f"{name} is for streaming queries; bound a batch query with endingOffsets")
        return start, end


def _refuse_options_of_writes(options: Mapping[str, str]) -> None:
    writing = {name.lower(): name for name in names_of(WRITE_OPTIONS) if name not in names_of(READ_OPTIONS)}
    for name in options:
        if name.lower() in writing:
            raise OptionError(f"{writing[name.lower()]} is for writing; name the topics to read with subscribe")


def _message_filter(expression: str | None, expression_type: str | None) -> MessageFilter:
    if expression is None and expression_type is not None:
        raise OptionError(f"expressionType={expression_type} needs subExpression, the condition or the tags")
    try:
        return message_filter(expression, expression_type or _DEFAULTS["expressionType"])
    except FilterError as error:
        raise OptionError(f"subExpression: {str(error).removeprefix('subExpression ')}") from error


def _orderly(given: Mapping[str, str]) -> WhenLocked | None:
    mode = _choice("consumeMode", given.get("consumeMode", _DEFAULTS["consumeMode"]), ("concurrently", "orderly"))
    when_locked = _choice("whenLocked", given.get("whenLocked", _DEFAULTS["whenLocked"]), [w.value for w in WhenLocked])
    if mode != "orderly":
        if "whenLocked" in given:
            raise OptionError("whenLocked goes with consumeMode=orderly: no other stream locks queues")
        return None
    if "consumerGroup" not in given:
        raise OptionError("consumeMode=orderly needs consumerGroup: its members keep out of each other's queues")
    for name in ("minPartitions", "maxRecordsPerPartition"):
        if name in given:
            raise OptionError(
                f"{name} splits queues over partitions, which consumeMode=orderly never does; leave it out"
            )
    return WhenLocked(when_locked)


def _choice(name: str, text: str, choices: Iterable[str]) -> str:
    """One of `choices`, which may be given in other case."""
    for choice in choices:
        if text.strip().lower() == choice.lower():
            return choice
    raise OptionError(f"{name} takes {' or '.join(choices)}, got {text!r}")


def _group(name: str, text: str) -> str:
    try:
        check_group_name(text)
    except InvalidGroup as error:
        raise OptionError(f"{name}: {error}") from error
    return text


def _milliseconds(name: str, text: str) -> int:
    if not (_WHOLE.fullmatch(text.strip()) and int(text) <= 1000 * _MOST_SECONDS):
        raise OptionError(f"{name} takes a whole number, 0 or more, of at most 24 days, got {_short(text)}")
    return int(text)


def _positive(name: str, text: str) -> int:
    if not (_WHOLE.fullmatch(text.strip()) and int(text) > 0):
        raise OptionError(f"{name} takes a whole number above 0, got {_short(text)}")
    return int(text)


def _bytes(name: str, text: str) -> int:
    match = _BYTE_SIZE.fullmatch(text.strip())
    size = int(match[1]) * _BYTE_UNITS[match[2].lower()] if match else 0
    if not 0 < size <= _MOST_BYTES:
        raise OptionError(f"{name} takes bytes above 0, such as 1048576, 512k or 64m, got {_short(text)}")
    return size


def _duration(name: str, text: str) -> float:
    seconds = (milliseconds_of(text) or 0.0) / 1000
    if not _LEAST_BATCH_SECONDS <= seconds <= _MOST_SECONDS:
        raise OptionError(
            f"{name} takes a time from 1 second to 24 days, such as '30 seconds' or '5m', got {_short(text)}"
        )
    return seconds


def shared_path(name: str, text: str) -> str:
    """What the driver and all executors see: a directory, absolute, or a URL. Raises `OptionError`."""
    local = text.removeprefix("file://").removeprefix("file:")
    if not local:
        raise OptionError(f"{name} takes a directory that the driver and all executors see, or a URL, got {text!r}")
    if "://" not in local:
        return os.path.abspath(local)
    if (why := why_not_shared(text)) is not None:
        raise OptionError(f"{name} takes a directory that the driver and all executors see, or a URL, but {why}")
    return text


def _boolean(name: str, text: str) -> bool:
    values = {"true": True, "false": False}
    if text.strip().lower() not in values:
        raise OptionError(f"{name} takes true or false, got {text!r}")
    return values[text.strip().lower()]


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _oversized(name: str, text: str) -> Oversized:
    return cast(Oversized, _choice(name, text, get_args(Oversized)))


def _refuse(name: str, limit: Limit, offset: int, why: str) -> None:
    where = says(limit, offset)
    if where is not None:
        raise OptionError(f"{name} cannot be {why}{where}")
