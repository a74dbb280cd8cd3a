"""`ServedFilters`: the filters of pulls, parsed once."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import NamedTuple

from store.api.group_protocol import EVERYTHING
from store.format.layout import MAX_PROPERTIES_BYTES
from store.model.codes import ResponseCode
from store.model.errors import FilterError, RequestRefused
from store.model.log_protocol import MessageFilter
from store.read.filters import TagFilter, message_filter

_MAX_EXPRESSION = MAX_PROPERTIES_BYTES  # characters
_MAX_TAGS = 1000  # in an expression: each pull compares them all
_MAX_CHARACTERS = 1 << 20  # of all filters; one takes up to 60 times as many bytes
_SHORT = 256  # parsed in a few ms


class _Key(NamedTuple):
    expression: str
    expression_type: str


class ServedFilters:
    """The filters in use, and recent ones. Thread-safe.

    A new filter replaces one that no held pull uses. If held pulls use all of them, a new filter is refused.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant, because a finalizer may run while it is held
        self._recent: OrderedDict[_Key, MessageFilter] = OrderedDict()
        self._characters = 0

    def quick(self, expression: str, expression_type: str) -> MessageFilter | None:
        """Return a filter that is known or short, None if a worker must parse it. Raises as `parse`."""
        with self._lock:
            key = _Key(expression, expression_type)
            if (known := self._recent.get(key)) is not None:
                self._recent.move_to_end(key)
                return known
        return self.parse(expression, expression_type) if len(expression) <= _SHORT else None

    def parse(self, expression: str, expression_type: str) -> MessageFilter:
        """Parse a filter, and keep it. Raises `FilterError`, and `RequestRefused` if there are too many filters."""
        if len(expression) > _MAX_EXPRESSION:
            raise FilterError(f"an expression of {len(expression):,} characters; at most {_MAX_EXPRESSION:,}")
        found = _parsed(expression, expression_type)
        with self._lock:
            self._characters += len(expression)
            weakref.finalize(found, self._forget, len(expression))
            self._recent[_Key(expression, expression_type)] = found
            while self._characters > _MAX_CHARACTERS and self._recent:
                self._recent.popitem(last=False)
            if self._characters > _MAX_CHARACTERS:
                raise RequestRefused(ResponseCode.SYSTEM_BUSY, "pulls with long filters are held already; try later")
        return found

    def _forget(self, characters: int) -> None:
        with self._lock:
            self._characters -= characters


def _parsed(expression: str, expression_type: str) -> MessageFilter:
    if expression_type.upper() != "TAG" or expression == EVERYTHING:
        return message_filter(expression, expression_type)
    # As in RocketMQ's broker, any text between "||" is a tag.
    tags = tuple(tag for part in expression.split("||") if (tag := part.strip()))
    if len(tags) > _MAX_TAGS:
        raise FilterError(f"{len(tags):,} tags; at most {_MAX_TAGS:,}: subscribe to all, or by an SQL92 expression")
    return TagFilter(tags)
