"""Filters: tag expressions such as `paid || shipped`, and `message_filter` for any expression.

In RocketMQ, the broker compares tag hashes, and the client tags. A reader here does both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from store.format.arrays import arrow, pc, texts
from store.format.hashes import java_hash_code
from store.model.errors import FilterError
from store.model.log_protocol import Bools, Int64s, MessageFilter

_BLANKS = "".join(map(chr, range(ord(" ") + 1)))  # Java's String.trim removes these
_SQL = re.compile(r"[<>=]|&&|^['\"]|['\"]$|^not\s|\s(and|or|not|in|is|between|like)\b", re.IGNORECASE)


@dataclass(frozen=True)
class TagFilter:
    """Keeps messages whose tag is one of `tags`; None keeps all (FilterAPI)."""

    tags: tuple[str, ...] | None

    @staticmethod
    def parse(expression: str | None) -> TagFilter:
        """Parse tags separated by `||`. None, "" and "*" keep all messages. Blanks and empty tags are dropped.

        Raises `FilterError` for an expression without a tag, such as "||", and for likely mistakes: "a,b", "a|b",
        SQL92, text that UTF-8 cannot encode. `TagFilter(("a,b",))` selects such a tag.
        """
        if expression is None:
            return TagFilter(None)
        if not isinstance(expression, str):
            raise FilterError(f"subExpression {expression!r} is no text; write tags as 'paid || shipped'")
        if expression in ("", "*"):
            return TagFilter(None)
        tags = tuple(tag for part in expression.split("||") if (tag := part.strip(_BLANKS)))
        if not tags:
            raise FilterError(
                f"subExpression {expression!r} names no tag; write tags as 'paid || shipped', or '*' for all"
            )
        try:
            expression.encode()
        except UnicodeEncodeError:  # a lone surrogate, as from a command-line argument
            raise FilterError(
                f"subExpression {expression!r} is not valid UTF-8. On a command line, check the terminal's encoding"
            ) from None
        for tag in tags:
            if (mistake := _mistake(tag)) is not None:
                raise FilterError(f"subExpression {expression!r}: {mistake}")
        return TagFilter(tags)

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.tags is None else ("tags",)

    @cached_property
    def tags_codes(self) -> frozenset[int] | None:
        return None if self.tags is None else frozenset(map(java_hash_code, self.tags))

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """Return a mask of the entries that may match. A match is not certain, because hashes can collide."""
        codes = self.tags_codes
        if codes is None:
            return np.ones(len(tags_codes), np.bool_)
        # Delivery times and addresses of queue extensions are not hashes: `match_batch` decides.
        matches: Bools = np.isin(tags_codes, list(codes))
        matches |= tags_codes != tags_codes.astype(np.int32)
        return matches

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each row's tag matches. A message without a tag does not."""
        if self.tags is None:
            return arrow(np.ones(len(batch), np.bool_))
        return pc.is_in(batch["tags"], texts(self.tags))

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        return self.tags is None or tag in self.tags


EVERYTHING: MessageFilter = TagFilter(None)

EXPRESSION_TYPES = ("TAG", "SQL92")
"""RocketMQ's ExpressionType."""


def message_filter(expression: str | None, expression_type: str = "TAG") -> MessageFilter:
    """Return the filter for tags such as "paid || shipped", or for a SQL92 condition on properties.

    expression_type: one of `EXPRESSION_TYPES`, in any case. Raises `FilterError` for a wrong type or expression.
    """
    known = str(expression_type).upper()
    if known == "TAG":
        return TagFilter.parse(expression)
    if known == "SQL92":
        from store.read.sql92 import parse  # imports a parser package, which tag filters do not need

        return parse(expression)
    raise FilterError(f"expressionType {expression_type!r}: give {' or '.join(EXPRESSION_TYPES)}")


def filter_of(tags: str | MessageFilter | None) -> MessageFilter:
    """Parse a tag expression; return a filter unchanged. Raises `FilterError`."""
    return tags if isinstance(tags, MessageFilter) else TagFilter.parse(tags)


def _mistake(tag: str) -> str | None:
    if tag == "*":
        return "'*' means all messages, so give it alone"
    for separator in "|,;":
        if separator in tag:
            return f"{separator!r} stands in {tag!r}; tags are separated by '||', as in 'paid || shipped'"
    if _SQL.search(tag):
        return (
            f"{tag!r} looks like a condition. For a condition on properties, such as TAGS = 'paid' AND amount > 10, "
            "set expressionType=SQL92 (on the command line: --sql). Write tags as 'paid || shipped'"
        )
    return None
