from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.limits import (
    EARLIEST,
    LATEST,
    EarliestOrLatest,
    StartOrEnd,
    end_of,
    require_order,
    says,
    start_of,
)
from pyspark_mq.options.log_address import CLUSTER_NAMES, address_of, broker_timeout, when_broker_missing
from pyspark_mq.options.subscription import SubscribedQueues
from pyspark_mq.options.tables import READ_OPTIONS, WRITE_OPTIONS, GivenOptions, known_options, names_of
from pyspark_mq.options.values import boolean, byte_size, duration, group, milliseconds, one_of, positive, shared_path
from store import FilterError, message_filter
from store.api.group_protocol import Subscription as Expression
from store.model.log_protocol import LogAddress, MessageFilter, Unreadable

LEDGER_DIR = "ledger"


class WhenLocked(Enum):
    """The values of the option `whenLocked`: what to do if another query owns the queues."""

    WAIT = "wait"
    TAKE_OVER = "takeOver"
    FAIL = "fail"


@dataclass(frozen=True)
class SourceOptions:
    """Parsed and checked options of a query: `tables` explains them. None means that an option is not given.

    orderly: the option `whenLocked` of an orderly query; None for any other query.
    expression: the option `subExpression` as given.
    max_decompressed_message_size: bytes.
    ledger_path: see `ledger_directory`.
    """

    address: LogAddress
    subscription: SubscribedQueues
    start: StartOrEnd | None
    end: StartOrEnd | None
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
    fail_on_data_loss: bool
    include_properties: bool
    check_crc: bool
    max_decompressed_message_size: int | None
    unreadable: Unreadable
    hold_timeout_seconds: float
    real_time: bool
    batch_duration_seconds: float
    real_time_partitions: int | None
    ledger_path: str | None
    broker_timeout_seconds: float
    skips_missing_brokers: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse Spark's options, with names in upper or lower case."""
        _refuse_options_of_writes(options)
        given = known_options(options, READ_OPTIONS, CLUSTER_NAMES)
        if "maxTriggerDelay" in given and "minOffsetsPerTrigger" not in given:
            raise OptionError(
                "maxTriggerDelay works only with minOffsetsPerTrigger: without it, a batch does not wait for more "
                "messages. Remove maxTriggerDelay, or set minOffsetsPerTrigger"
            )
        return cls(
            address=address_of(given),
            subscription=SubscribedQueues.parse(
                given.get("subscribe"), given.get("subscribePattern"), given.get("assign")
            ),
            start=start_of(given),
            end=end_of(given),
            consumer_group=given.if_given("consumerGroup", group),
            orderly=_orderly(given),
            expression=Expression(given.get("subExpression", "*"), given.text("expressionType").upper()),
            message_filter=_message_filter(given),
            max_offsets_per_trigger=given.if_given("maxOffsetsPerTrigger", positive),
            max_bytes_per_trigger=given.if_given("maxBytesPerTrigger", byte_size),
            min_offsets_per_trigger=given.if_given("minOffsetsPerTrigger", positive),
            max_trigger_delay_seconds=given.value("maxTriggerDelay", duration),
            min_partitions=given.if_given("minPartitions", positive),
            max_records_per_partition=given.if_given("maxRecordsPerPartition", positive),
            fail_on_data_loss=given.value("failOnDataLoss", boolean),
            include_properties=given.value("includeProperties", boolean),
            check_crc=given.value("checkCRC", boolean),
            max_decompressed_message_size=given.if_given("maxDecompressedMessageSize", byte_size),
            unreadable=cast(Unreadable, given.value("unreadable", one_of("error", "null"))),
            hold_timeout_seconds=given.value("holdTimeoutMs", milliseconds) / 1000,
            real_time=given.value("realTime", boolean),
            batch_duration_seconds=given.value("batchDuration", duration),
            real_time_partitions=given.if_given("realTimePartitions", positive),
            ledger_path=given.if_given("ledgerPath", shared_path),
            broker_timeout_seconds=broker_timeout(given),
            skips_missing_brokers=when_broker_missing(given, "wait", "skip") == "skip",
        )

    def stream_start(self) -> StartOrEnd:
        """Return where a new streaming query starts. Refuses options that a stream cannot have."""
        if self.end is not None:
            raise OptionError(
                "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch queries (spark.read). A "
                "streaming query has no end, so remove them"
            )
        if self.real_time:
            self._refuse_limits()
            self.ledger_directory()
        least, most = self.min_offsets_per_trigger, self.max_offsets_per_trigger
        if least is not None and most is not None and least > most:
            raise OptionError(
                f"minOffsetsPerTrigger ({least}) is above maxOffsetsPerTrigger ({most}). Lower the first, or raise "
                "the second"
            )
        return self.start or EarliestOrLatest(LATEST)

    def ledger_directory(self) -> str:
        """Return the option `ledgerPath`, by default a folder in the log's directory.

        Raises `OptionError` if there is neither.
        """
        if self.ledger_path is not None:
            return self.ledger_path
        if self.address.directory is None:
            raise OptionError(
                f"realTime records what each task read in files, and {self.address} has no directory for them. Set "
                "ledgerPath to a directory or an s3:// URL that the driver and all executors see"
            )
        return os.path.join(self.address.directory, LEDGER_DIR)

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
                    f"{name} does not work with realTime: its batches end by time, not by size. Use batchDuration "
                    "and realTimePartitions, or remove realTime"
                )

    def batch_limits(self) -> tuple[StartOrEnd, StartOrEnd]:
        """Return the start and the end of a batch query. Refuses options that it cannot have."""
        start, end = self.start or EarliestOrLatest(EARLIEST), self.end or EarliestOrLatest(LATEST)
        _refuse("startingOffsets", start, LATEST, "latest (-1)")
        _refuse("endingOffsets", end, EARLIEST, "earliest (-2)")
        require_order(start, end)
        limits = {
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
            "maxBytesPerTrigger": self.max_bytes_per_trigger,
            "minOffsetsPerTrigger": self.min_offsets_per_trigger,
        }
        if self.orderly is not None:
            raise OptionError(
                "consumeMode=orderly is for streaming queries (spark.readStream). Remove it from this batch query"
            )
        if self.real_time:
            raise OptionError("realTime is for streaming queries (spark.readStream). Remove it from this batch query")
        for name, limit in limits.items():
            if limit is not None:
                raise OptionError(f"{name} is for streaming queries. Bound a batch query with endingOffsets")
        return start, end


def _refuse_options_of_writes(options: Mapping[str, str]) -> None:
    writing = {name.lower(): name for name in names_of(WRITE_OPTIONS) if name not in names_of(READ_OPTIONS)}
    for name in options:
        if name.lower() in writing:
            raise OptionError(
                f"The option {writing[name.lower()]} is for writing. To read topics, name them in subscribe"
            )


def _message_filter(given: GivenOptions) -> MessageFilter:
    expression, kind = given.get("subExpression"), given.text("expressionType")
    if expression is None and "expressionType" in given:
        raise OptionError(
            f"expressionType={kind} is given without subExpression. Set subExpression to the {kind} expression, or "
            "remove expressionType"
        )
    try:
        return message_filter(expression, kind)
    except FilterError as error:
        raise OptionError(f"subExpression: {str(error).removeprefix('subExpression ')}") from error


def _orderly(given: GivenOptions) -> WhenLocked | None:
    mode = given.value("consumeMode", one_of("concurrently", "orderly"))
    when_locked = given.value("whenLocked", one_of(*(each.value for each in WhenLocked)))
    if mode != "orderly":
        if "whenLocked" in given:
            raise OptionError(
                "whenLocked works only with consumeMode=orderly, which locks queues. Remove it, or set "
                "consumeMode=orderly"
            )
        return None
    if "consumerGroup" not in given:
        raise OptionError(
            "consumeMode=orderly needs consumerGroup: the members of a group lock its queues. Set consumerGroup"
        )
    for name in ("minPartitions", "maxRecordsPerPartition"):
        if name in given:
            raise OptionError(
                f"{name} splits queues over partitions, and consumeMode=orderly never splits a queue. Remove {name}"
            )
    return WhenLocked(when_locked)


def _refuse(name: str, limit: StartOrEnd, offset: int, value: str) -> None:
    of_queue = says(limit, offset)
    if of_queue is not None:
        raise OptionError(f"{name} cannot be {value}{of_queue}: a batch query would read no messages")
