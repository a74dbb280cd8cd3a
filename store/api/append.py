"""`Append`: what is to be seen all at once, put together before it is appended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy.typing as npt

from store.api.writer import Writer
from store.format.message import Message
from store.format.record_copies import Places, RecordCopies
from store.format.records import set_field
from store.model.errors import StoreClosed
from store.publish.appender import Condition, Piece
from store.publish.placing import AppendResult
from store.publish.putting import RecordMaker, sendable


class Append:
    """Messages of any topics on their way into one store, for one publication: readers see all of them or none.

    Made by `MessageStore.begin`, for one thread. Over with `publish`, also if that raises, and with `abandon`: from
    then on, as when the store is closed, verbs raise `StoreClosed`.
    """

    def __init__(self, path: Path, records: RecordMaker, writer: Writer) -> None:
        self.path = path
        self._records = records
        self._writer = writer
        self._parts: list[Iterable[Piece]] | None = []

    def add(self, topic: str, table: Any) -> None:
        """Add a table of messages, as `MessageStore.append_table` takes it, behind what was added before.

        It is only referred to, and read when it is published, some 16 MiB at a time: one that lies in a mapped file
        takes no memory, nor does a stream of batches (`pyarrow.RecordBatchReader`).

        Raises `UnknownTopic`, `InvalidTopic`, and `InvalidColumns` for names and types of columns.
        """
        self._open_parts().append(self._records.of_table(topic, table))

    def add_messages(self, messages: Iterable[Message], fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add messages, of any topics, behind what was added before. Raises as `put` where one is refused.

        fields: of the records' headers, what a producer elsewhere says of its messages: the name of a field of
        RECORD_HEADER to a value for each.
        """
        parts, listed = self._open_parts(), sendable(messages)
        if listed:
            parts.append([_saying(fields, self._records.of_messages(listed))])

    def choose(self, messages: Sequence[Message]) -> list[int]:
        """The queues that `add_messages` would put these into, which it would not refuse. Raises as that does."""
        self._open_parts()
        return self._records.choose(sendable(messages))

    def add_own(self, messages: Sequence[Message], fields: Mapping[str, npt.ArrayLike] | None = None) -> None:
        """Add messages as a broker puts its own: into any topic, with any properties; each names its queue. fields: as
        of `add_messages`.
        """
        self._open_parts().append([_saying(fields, self._records.of_own(messages))])

    def add_copies(self, copies: RecordCopies, places: Places) -> None:
        """Add stored messages again (see `MessageStore.copies`), where a broker would put them: also into topics of its
        own, and with properties that nobody else may put. Raises `MessageRefused` where those become too large.
        """
        self._open_parts().append(list(self._records.of_copies(copies, places)))

    @overload
    def publish(self, *, flush: bool = ...) -> AppendResult: ...

    @overload
    def publish(self, *, flush: bool = ..., unless: Condition | None = ...) -> AppendResult | None: ...

    def publish(self, *, flush: bool = False, unless: Condition | None = None) -> AppendResult | None:
        """Append all that was added, in that order; when this returns, every reader sees it. Where the messages went.

        flush: it is on the device then, and after a crash of the machine all of it is there or nothing.
        unless: called without arguments once it is this one's turn to append and before anything is written, so that
        nobody appends between what it sees and what it decides; it may use the reading verbs of the store. Where it
        is true nothing is appended, and the answer is None.

        Others who append wait meanwhile, for gigabytes some seconds; it takes some 40 bytes of memory a message.

        Raises what `put` raises, `InvalidColumns` for what stands in a table, and what a stream or `unless` raises.
        Whatever is raised, readers see nothing of it.
        """
        parts, self._parts = self._open_parts(), None
        return self._writer.append(chain.from_iterable(parts), flush=flush, unless=unless)

    def abandon(self) -> None:
        """Forget what was added. Does nothing the second time, nor after `publish`."""
        self._parts = None

    def _open_parts(self) -> list[Iterable[Piece]]:
        self._writer.must_be_open()
        if self._parts is None:
            raise StoreClosed(
                f"{self.path}: this append was published or abandoned; make a new one with MessageStore.begin()"
            )
        return self._parts


def _saying(fields: Mapping[str, npt.ArrayLike] | None, records: Piece) -> Piece:
    for name, values in (fields or {}).items():
        set_field(records, name, values)
    return records
