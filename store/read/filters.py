"""Tag expressions: `paid || shipped`, over ConsumeQueue entries (hashes) and over Arrow columns (strings).

RocketMQ's broker compares hashes only and lets the client compare the strings; here both happen in the reader.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store.any_log import Bools, Int64s, MessageFilter
from store.errors import FilterError
from store.format.arrays import arrow, texts
from store.format.java_hash import java_hash_code

_BLANKS = "".join(map(chr, range(ord(" ") + 1)))  # what Java's String.trim takes away
_SQL = re.compile(r"[<>=]|&&|^['\"]|['\"]$|^not\s|\s(and|or|not|in|is|between|like)\b", re.IGNORECASE)


@dataclass(frozen=True)
class TagFilter:
    """Keeps messages whose tag is one of `tags`; `None` keeps all (RocketMQ's `FilterAPI.buildSubscriptionData`)."""

    tags: tuple[str, ...] | None

    @staticmethod
    def parse(expression: str | None) -> TagFilter:
        """`None`, "" and "*" keep all; else tags between `||`, blanks around them and empty ones dropped.

        Raises `FilterError` for an expression without a tag, such as "||", and for one that can only be a mistake:
        "a,b", "a|b", SQL92. A broker may have tags that look like that: `TagFilter(("a,b",))` means them.
        """
        if expression is None:
            return TagFilter(None)
        if not isinstance(expression, str):
            raise FilterError(f"subExpression {expression!r} is no text; write tags as 'paid || shipped'")
        if expression.strip(_BLANKS) in ("", "*"):
            return TagFilter(None)
        tags = tuple(tag for part in expression.split("||") if (tag := part.strip(_BLANKS)))
        if not tags:
            raise FilterError(
                f"subExpression {expression!r} names no tag; write tags as 'paid || shipped', or '*' for all"
            )
        for tag in tags:
            if (mistake := _mistake(tag)) is not None:
                raise FilterError(f"subExpression {expression!r}: {mistake}")
        return TagFilter(tags)

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.tags is None else ("tags",)

    @property
    def tags_codes(self) -> frozenset[int] | None:
        return None if self.tags is None else frozenset(map(java_hash_code, self.tags))

    def match_codes(self, tags_codes: Int64s) -> Bools:
        """Mask, shape of `tags_codes`: True where the queue entry may match (hashes can collide)."""
        codes = self.tags_codes
        if codes is None:
            return np.ones(len(tags_codes), np.bool_)
        # Delivery times and addresses of queue extensions are no hashes: there the tag itself decides.
        matches: Bools = np.isin(tags_codes, list(codes))
        matches |= tags_codes != tags_codes.astype(np.int32)
        return matches

    def match_batch(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Mask, one a row: True where the tag itself matches; without a tag nothing matches."""
        if self.tags is None:
            return arrow(np.ones(len(batch), np.bool_))
        return pc.is_in(batch["tags"], texts(self.tags))

    def match(self, tag: str | None, properties: Mapping[str, str]) -> bool:
        """Whether one message's tag matches."""
        return self.tags is None or tag in self.tags


EVERYTHING: MessageFilter = TagFilter(None)


def _mistake(tag: str) -> str | None:
    """What was probably meant by a part of an expression that is hardly a tag."""
    if tag == "*":
        return "'*' means all messages, and stands alone"
    for separator in "|,;":
        if separator in tag:
            return f"{separator!r} stands in {tag!r}; tags are separated by '||', as in 'paid || shipped'"
    if _SQL.search(tag):
        return (
            f"{tag!r} looks like a condition; SQL92 is not supported, only tags, such as 'paid || shipped'. "
            "In Spark, filter the rows with where()"
        )
    return None
