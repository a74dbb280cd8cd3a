"""The subscription of a query: the options `subscribe`, `subscribePattern` and `assign`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from pyspark_mq.errors import OptionError, SubscriptionError
from pyspark_mq.offsets.stream_offsets import queue_of
from store.format.strict_json import decode_unique
from store.format.topic_names import check_topic_name, is_internal_topic
from store.model.errors import InvalidTopic
from store.model.integers import counted
from store.model.log_protocol import Queue

_NAMED = 20  # topics listed in an error message
_COMPARED = 100  # most topics to compare for a suggestion: each takes 40 us, and a query may do it at every arrival
_CREATE = (
    "Create the topic first (pyspark-mq topic create; mqadmin updateTopic; for more queues: pyspark-mq topic alter), "
    "or use subscribePattern, which adds topics as they are created"
)


@dataclass(frozen=True)
class SubscribedQueues:
    """The parsed options `subscribe`, `subscribePattern` and `assign`. Exactly one field is not None."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[Queue, ...] | None = None

    @classmethod
    def parse(cls, subscribe: str | None, pattern: str | None, assign: str | None) -> SubscribedQueues:
        """Parse the three options. Raises `OptionError` unless exactly one is given and well formed."""
        given = {"subscribe": subscribe, "subscribePattern": pattern, "assign": assign}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            problem = f"{' and '.join(names)} exclude each other" if names else "No topic is subscribed"
            raise OptionError(
                f"{problem}. Set exactly one of subscribe (topics, separated by commas), subscribePattern (a regular "
                'expression) and assign (JSON such as {"orders": [0, 1]})'
            )
        if subscribe is not None:
            return cls(topics=_topics(subscribe))
        if pattern is not None:
            return cls(pattern=_pattern(pattern))
        return cls(assigned=_assigned(str(assign)))

    @property
    def lists(self) -> Callable[[str], bool] | None:
        """A filter of the topics that the log lists; None without a pattern."""
        return None if self.pattern is None else self._wants

    def select(self, topics: Mapping[str, Collection[Queue]], known: Collection[Queue] = ()) -> list[Queue]:
        """Return the subscribed queues, sorted.

        known: queues of the checkpoint, which a missing broker may hide in `topics`.
        """
        if self.assigned is not None:
            return [queue for queue in self.assigned if queue in known or queue in topics.get(queue.topic, ())]
        wanted = self.topics if self.topics is not None else filter(self._wants, topics)
        listed = [queue for topic in sorted(wanted) for queue in topics.get(topic, ())]
        both = {*listed}
        return sorted([*listed, *(queue for queue in known if queue not in both and self._wants(queue.topic))])

    def require(self, topics: Mapping[str, Collection[Queue]], known: Collection[Queue] = ()) -> None:
        """Raise `SubscriptionError` for a topic or queue that is neither in `topics` nor in `known`."""
        missing = [str(queue) for queue in self.assigned or () if queue not in {*topics.get(queue.topic, ()), *known}]
        named = {queue.topic for queue in known}
        absent = [topic for topic in self.topics or () if topic not in named and topic not in topics]
        if missing := missing + absent:
            existing = _some([f"{topic} ({counted(len(each), 'queue')})" for topic, each in sorted(topics.items())])
            advice = next(filter(None, map(_why_invalid, absent)), _CREATE)
            near = did_you_mean(self.names(), topics)
            raise SubscriptionError(
                f"The log has no {', '.join(missing)}; it has {existing or 'no topics'}. {near}{advice}"
            )

    def names(self) -> list[str]:
        if self.pattern is not None:
            return [self.pattern]
        return sorted({*(self.topics or ()), *(queue.topic for queue in self.assigned or ())})

    def doubt(self, topics: Collection[str]) -> str | None:
        """Return a warning if a pattern matches none of `topics`."""
        if self.pattern is None or any(map(self._wants, topics)):
            return None
        others = sorted(topic for topic in topics if not is_internal_topic(topic))
        return f"subscribePattern {self.pattern!r} matches no topic. There are {_some(others) or 'no topics yet'}"

    def _wants(self, topic: str) -> bool:
        if self.pattern is not None:
            # As in Spark's Kafka source, the pattern may match a part of the name, and no internal topic.
            return not is_internal_topic(topic) and re.search(self.pattern, topic) is not None
        return topic in (self.topics or ())


def did_you_mean(names: Sequence[str], topics: Collection[str]) -> str:
    """Return a suggestion of the most similar of `topics` for each unknown name, or ""."""
    few = topics if len(topics) <= _COMPARED else ()
    near = [found for name in names if name not in topics for found in get_close_matches(name, few, n=1)]
    return f"Did you mean {', '.join(near)}? " if near else ""


def _why_invalid(topic: str) -> str | None:
    try:
        check_topic_name(topic)
    except InvalidTopic as error:
        return f"No topic can have this name: {error}"
    return None


def _some(topics: Sequence[str]) -> str:
    return ", ".join(topics[:_NAMED]) + (f" and {len(topics) - _NAMED} more" if len(topics) > _NAMED else "")


def _topics(subscribe: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in subscribe.split(",")))
    if "" in topics:
        raise OptionError(f"subscribe takes topics separated by commas, not {subscribe!r}")
    return topics


def _pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise OptionError(f"subscribePattern {pattern!r:.80} is no regular expression: {error}") from error
    return pattern


def _assigned(assign: str) -> tuple[Queue, ...]:
    expected = f'assign takes JSON such as {{"orders": [0, 1]}}, not {assign!r:.80}'
    try:
        json_ = decode_unique(assign)
    except ValueError as error:
        raise OptionError(f"{expected}: {error}") from error
    if not isinstance(json_, dict) or not json_:
        raise OptionError(f"{expected}: it must be a JSON object with at least one topic")
    queues = set()
    for topic, ids in json_.items():
        if not isinstance(ids, list) or not ids:
            raise OptionError(f"{expected}: topic {topic!r} needs a list of queue numbers")
        for queue_id in ids:
            queue = queue_of(topic, str(queue_id)) if type(queue_id) in (int, str) else None
            if queue is None:
                raise OptionError(
                    f"{expected}: topic {topic!r} has {json.dumps(queue_id)}, which is not a queue number"
                )
            queues.add(queue)
    return tuple(sorted(queues))
