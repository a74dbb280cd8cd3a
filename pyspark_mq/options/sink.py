from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pyspark_mq.errors import OptionError
from pyspark_mq.options.log_address import CLUSTER_NAMES, ONCE_ON_A_CLUSTER, address_of, when_broker_missing
from pyspark_mq.options.tables import READ_OPTIONS, WRITE_OPTIONS, known_options, names_of
from pyspark_mq.options.values import group, one_of, shared_path
from store.archive.archive_log import ArchiveAddress
from store.cluster.address import ClusterAddress
from store.format.topic_names import TOPICS_OF_NOTES, check_topic_name
from store.model.errors import InvalidTopic
from store.model.log_protocol import LogAddress

_NAMES = names_of(WRITE_OPTIONS)
STAGING_FOLDER = "staging"  # in the store's directory, unless stagingPath is given
COMMITS_FOLDER = "commits"
_CHECKPOINT = "checkpointLocation"
_SPARKS_OWN = (_CHECKPOINT, "queryName")  # Spark passes these on to a streaming sink


class Guarantee(Enum):
    """The values of the option `delivery`, see `docs/sink.md`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True)
class WriteOptions:
    """Parsed and checked options of a write.

    topic: of all rows; None if each row has its own.
    producer_group: names a write in `foreachBatch`; None for an independent write.
    checkpoint: as given; None if Spark does not report it.
    """

    address: LogAddress
    topic: str | None
    guarantee: Guarantee
    given_staging_path: str | None
    producer_group: str | None
    checkpoint: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        """Parse Spark's options, with names in upper or lower case. Raises `ReadOnlyStore` for an archive."""
        for name in options:
            _refuse_options_of_queries(name)
        given = known_options(options, WRITE_OPTIONS, (*_SPARKS_OWN, *CLUSTER_NAMES))
        guarantee = Guarantee(given.value("delivery", one_of(*(each.value for each in Guarantee))))
        if guarantee is Guarantee.EXACTLY_ONCE and "nameServer" in given:
            raise OptionError(ONCE_ON_A_CLUSTER)
        if guarantee is Guarantee.AT_LEAST_ONCE:
            for name in ("stagingPath", "producerGroup"):
                if name in given:
                    raise OptionError(
                        f"{name} is for delivery=exactly-once, and delivery is at-least-once. Remove {name}, or set "
                        "delivery to exactly-once"
                    )
        address = address_of(given)
        if isinstance(address, ClusterAddress):
            address = replace(address, fails_over=when_broker_missing(given, "wait", "failOver") == "failOver")
        if isinstance(address, ArchiveAddress):
            address.open_writer()  # raises an error now, before tasks run
        return cls(
            address=address,
            topic=given.if_given("topic", _topic),
            guarantee=guarantee,
            given_staging_path=given.if_given("stagingPath", shared_path),
            producer_group=given.if_given("producerGroup", group),
            checkpoint=given.get(_CHECKPOINT),
        )

    @property
    def staging_path(self) -> str:
        return self.given_staging_path or str(self._store / STAGING_FOLDER)

    @property
    def commits_path(self) -> Path:
        return self._store / COMMITS_FOLDER

    @property
    def _store(self) -> Path:
        assert self.address.directory is not None  # `parse` refuses exactly-once without a directory
        return Path(self.address.directory)

    def for_stream(self) -> WriteOptions:
        """Return these options for a streaming write. Refuses options of batch writes."""
        if self.producer_group is not None:
            raise OptionError(
                "producerGroup is for df.write in foreachBatch. A streaming write knows its query by the checkpoint, "
                "so remove producerGroup"
            )
        return self


def is_for_writing(options: Mapping[str, str]) -> bool:
    """Return whether a view is for INSERT INTO: it has an option of writes, and no subscription."""
    names = {name.lower() for name in options}
    own = {name.lower() for name in _NAMES[1:]}
    return bool(names & own) and not names & {"subscribe", "subscribepattern", "assign"}


def _refuse_options_of_queries(name: str) -> None:
    reading = {other.lower(): other for other in names_of(READ_OPTIONS) if other not in _NAMES}
    if name.lower() in reading:
        hint = "name the topic in the option topic" if name.lower().startswith(("subscribe", "assign")) else "remove it"
        known = ", ".join(_NAMES)
        raise OptionError(f"The option {reading[name.lower()]} is for reading: {hint}. Options of a write: {known}")


def _topic(name: str, text: str) -> str:
    try:
        check_topic_name(text)
    except InvalidTopic as error:
        raise OptionError(
            f"The option {name}: {error}. To write several topics, remove the option and add a column topic"
        ) from error
    if text in TOPICS_OF_NOTES:
        raise OptionError(f"The option {name}: {text} is an internal topic of the store. Choose another topic")
    return text
