"""The guarantees at each moment of a run, and checks of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from store import MessageStore

T = TypeVar("T")
COLUMNS = ("queueOffset", "body", "tags", "keys", "physicalOffset", "storeTimestamp")


@dataclass(frozen=True)
class Sent:
    """A message as put, with its offsets once the put returned."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None

    def placed(self, queue_id: int | None, queue_offset: int | None, physical_offset: int | None) -> Sent:
        return replace(self, queue_id=queue_id, queue_offset=queue_offset, physical_offset=physical_offset)


@dataclass
class Steps(Generic[T]):
    """Successive values: (number of changes when the replacement began, number when it returned, value)."""

    first: T
    steps: list[tuple[int, int, T]] = field(default_factory=list)

    def possible(self, cut: int) -> list[T]:
        """Return the values allowed after `cut` changes: the last one that returned, and any begun since."""
        values = [(done, value) for begun, done, value in self.steps if begun <= cut]
        answered = [number for number, (done, _) in enumerate(values) if done <= cut]
        return [value for _, value in values[answered[-1] :]] if answered else [self.first, *(v for _, v in values)]


@dataclass
class History:
    """The changes of a store over the machine's lives.

    sent: messages in log order. may, must: (changes, messages): from this number of changes on, at most, or at least,
    so many messages are on the device. wholes: ranges of `sent`, end exclusive, that exist completely or not at all.
    gone: log offsets below which retention may have deleted, with the number of changes. refused: bodies whose put
    raised an error; they may exist anywhere or nowhere. never: bodies that must not exist.
    """

    sent: list[Sent] = field(default_factory=list)
    may: list[tuple[int, int]] = field(default_factory=list)
    must: list[tuple[int, int]] = field(default_factory=list)
    gone: list[tuple[int, int]] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    never: set[bytes] = field(default_factory=set)
    wholes: list[tuple[int, int]] = field(default_factory=list)
    topics: dict[str, Steps[int]] = field(default_factory=lambda: defaultdict(lambda: Steps(0)))
    groups: dict[tuple[str, int], Steps[int | None]] = field(default_factory=lambda: defaultdict(lambda: Steps(None)))

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the queue's next message."""
        offsets = (each.queue_offset for each in self.sent if (each.topic, each.queue_id) == (topic, queue_id))
        return max((offset + 1 for offset in offsets if offset is not None), default=0)

    def check(self, found: list[Sent], cut: int) -> int:
        """Check all messages of a store after `cut` changes; return the end of their range in `sent`.

        They must be a range of the log without holes that begins where retention did and includes all guaranteed
        messages.
        """
        numbers = {each.body: number for number, each in enumerate(self.sent)}
        self.check_each(found)
        found = [each for each in _in_order(found) if each.body not in self.refused]
        must, may, gone = (_last(steps, cut) for steps in (self.must, self.may, self.gone))
        first = numbers[found[0].body] if found else must
        end = first + len(found)
        assert [numbers[each.body] for each in found] == list(range(first, end)), "messages are missing or out of order"
        lost = [each for each in self.sent[:first] if (each.physical_offset or 0) >= gone]
        assert not lost, f"{len(lost)} messages are missing at the head, the first is {lost[0]}"
        assert must <= end, f"{end} messages are left of {must} guaranteed ones"
        assert end <= may, f"{end} messages were found, but {may} were put"
        torn = [whole for whole in self.wholes if whole[0] < end < whole[1]]
        assert not torn, f"the log ends at message {end}, within the append {torn[0]}"
        return end

    def check_each(self, found: list[Sent]) -> None:
        """Check that each message equals the one put. `everything` has checked that offsets are dense."""
        sent = {each.body: each for each in self.sent}
        for here in found:
            assert here.body not in self.never
            if here.body in self.refused:
                continue
            put = sent[here.body]
            if put.queue_offset is None:
                put = put.placed(here.queue_id, here.queue_offset, here.physical_offset)
            assert here == put, f"{here} differs from the message put: {put}"

    def refuse(self, answered: int) -> None:
        """Record that the puts after the first `answered` messages failed."""
        self.refused.update(each.body for each in self.sent[answered:])
        del self.sent[answered:]
        self.wholes = [whole for whole in self.wholes if whole[1] <= answered]

    def check_names(self, store: MessageStore, cut: int) -> None:
        topics = store.topics()
        for topic, steps in self.topics.items():
            assert topics.get(topic, 0) >= min(steps.possible(cut)), f"topic {topic}"
        for (topic, queue_id), offsets in self.groups.items():
            found, end = None, 0
            if topic in topics:
                found, end = store.consumer_offset("g", topic, queue_id), store.max_offset(topic, queue_id)
            # If messages that the group read are lost, its offset is at the end of the remaining ones.
            possible = {None if offset is None else min(offset, end) for offset in offsets.possible(cut)}
            assert found in possible, f"offset of the group in {topic}, queue {queue_id}"

    def goes_on(self, store: MessageStore, found: list[Sent], end: int, cut: int) -> History:
        """Return the history of the next life, which begins with the messages found."""
        first = end - sum(1 for each in found if each.body not in self.refused)
        sent = self.sent[:first] + _in_order(found)
        groups = {(topic, queue): Steps(store.consumer_offset("g", topic, queue)) for topic, queue in self.groups}
        return History(
            sent,
            [(0, len(sent))],
            [(0, _last(self.must, cut))],
            [(0, _last(self.gone, cut))],
            set(),
            self.never,
            [],
            defaultdict(lambda: Steps(0), {name: Steps(min(s.possible(cut))) for name, s in self.topics.items()}),
            defaultdict(lambda: Steps(None), groups),
        )


def _in_order(messages: list[Sent]) -> list[Sent]:
    return sorted(messages, key=lambda each: each.physical_offset or 0)


def _last(steps: list[tuple[int, int]], cut: int) -> int:
    return max((value for since, value in steps if since <= cut), default=0)


def everything(store: MessageStore) -> list[Sent]:
    """Return all messages of a store; check that offsets are dense and times ascend in each queue."""
    found = []
    for topic, queues in store.topics().items():
        for queue_id in range(queues):
            minimum, maximum = store.offsets(topic, queue_id)
            rows: list[dict[str, Any]] = []
            for batch in store.scan(topic, queue_id, minimum, maximum, columns=COLUMNS):
                rows += batch.to_pylist()
            assert [row["queueOffset"] for row in rows] == list(range(minimum, maximum))
            times = [row["storeTimestamp"] for row in rows]
            assert times == sorted(times)
            found += [
                Sent(
                    topic,
                    row["body"],
                    row["tags"],
                    tuple((row["keys"] or "").split()),
                    queue_id,
                    row["queueOffset"],
                    row["physicalOffset"],
                )
                for row in rows
            ]
    return found
