"""Consumer groups and their committed offsets, in RocketMQ's files (ConsumerOffsetManager and others).

    consumerOffset.json     {"offsetTable": {"topic@group": {queue id: next queue offset}}}
    subscriptionGroup.json  {"subscriptionGroupTable": {group: settings}}
    delayOffset.json        {"offsetTable": {delay level: next queue offset in SCHEDULE_TOPIC_XXXX}}

Every call reads the files again, because other processes write them. Writes keep unknown keys. Acquire the store lock
before a call that writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from store.disk.admin_files import next_version, number, offset_table, read_json, read_table, table, write_json
from store.format.layout import (
    CONSUMER_OFFSETS_FILE,
    CONSUMERS_DIR,
    DELAY_OFFSETS_FILE,
    GROUP_SEPARATOR,
    GROUPS_FILE,
    MAX_GROUP_CHARACTERS,
    MAX_QUEUES,
    TOPIC_CHARACTERS,
    TRANSACTIONS_GROUP,
)
from store.model.errors import InvalidGroup, OffsetOutOfRange
from store.model.integers import INT_MAX, integer
from store.model.log_protocol import Positions, Queue

_OFFSETS = "offsetTable"
_GROUPS = "subscriptionGroupTable"
_INSTANCES_DIR = "offsets"  # a group's folders, one for each broadcasting member


def check_group_name(group: str) -> None:
    """Raise `InvalidGroup` for a name that RocketMQ's Validators.checkGroup rejects."""
    if not isinstance(group, str) or not re.fullmatch(TOPIC_CHARACTERS, group):
        raise InvalidGroup(f"group {group!r}: only letters, digits, '%', '|', '_' and '-' are allowed")
    if len(group) > MAX_GROUP_CHARACTERS:
        raise InvalidGroup(
            f"group {group[:20]!r}...: the name has {len(group)} characters, and at most {MAX_GROUP_CHARACTERS} are "
            "allowed"
        )


def check_may_commit(group: str) -> None:
    """Raise `InvalidGroup` for a bad name, and for the transactions group: a commit could hide open transactions."""
    check_group_name(group)
    if group == TRANSACTIONS_GROUP:
        raise InvalidGroup(
            f"group {group}: this group is the store's own, and its offsets say which transactions ended. Use "
            "another name"
        )


def delay_offsets(root: Path) -> dict[int, int]:
    """Return the next queue offset to deliver by delay level (from 1; the level's queue id is level - 1)."""
    path = root / DELAY_OFFSETS_FILE
    return offset_table(path, _OFFSETS, read_json(path).get(_OFFSETS))


class GroupConfigs:
    """RocketMQ's SubscriptionGroupConfig of each group."""

    def __init__(self, root: Path) -> None:
        self._path = root / GROUPS_FILE

    def of(self, group: str) -> dict[str, Any] | None:
        return self.all().get(group)

    def all(self) -> dict[str, dict[str, Any]]:
        return read_table(self._path, _GROUPS)

    def retries(self, group: str) -> tuple[int, int]:
        """Return a group's maximum number of retries, and its number of retry queues (at least 1)."""
        settings, standard = self.of(group) or {}, _new_group(group)

        def count(name: str, maximum: int) -> int:
            value = standard[name] if settings.get(name) is None else settings[name]
            return 0 if type(value) is int and value < 0 else number(self._path, f"{name} of {group}", value, maximum)

        return count("retryMaxTimes", INT_MAX), max(1, count("retryQueueNums", MAX_QUEUES))

    def create(self, group: str) -> None:
        """Add a missing group, with RocketMQ's default settings. Raises `InvalidGroup`."""
        check_group_name(group)
        content = read_json(self._path)
        groups = table(self._path, content, _GROUPS)
        if group not in groups:
            groups[group] = _new_group(group)
            next_version(self._path, content)
            write_json(self._path, content)

    def configure(self, group: str, settings: Mapping[str, Any]) -> None:
        self.create(group)
        content = read_json(self._path)
        groups = table(self._path, content, _GROUPS)
        groups[group] = {**groups[group], **settings, "groupName": group}
        next_version(self._path, content)
        write_json(self._path, content)

    def delete(self, group: str) -> None:
        content = read_json(self._path)
        if table(self._path, content, _GROUPS).pop(group, None) is not None:
            next_version(self._path, content)
            write_json(self._path, content)


class ConsumerOffsets:
    def __init__(self, root: Path) -> None:
        self.settings = GroupConfigs(root)
        self._offsets = root / CONSUMER_OFFSETS_FILE

    @staticmethod
    def of_instance(root: Path, group: str, instance: str) -> ConsumerOffsets:
        return ConsumerOffsets(root / CONSUMERS_DIR / group / _INSTANCES_DIR / instance)

    @staticmethod
    def of_instances(root: Path, group: str = "*") -> Iterator[ConsumerOffsets]:
        for folder in sorted((root / CONSUMERS_DIR).glob(f"{group}/{_INSTANCES_DIR}/*")):
            yield ConsumerOffsets(folder)

    def offsets(self, group: str, topic: str) -> dict[int, int]:
        return self._committed(read_json(self._offsets), _key(topic, group))

    def all_offsets(self) -> dict[str, dict[int, int]]:
        """Return the offsets by "{topic}@{group}"."""
        found = read_table(self._offsets, _OFFSETS)
        return {key: self._known(key, value) for key, value in found.items()}

    def all_positions(self) -> dict[str, Positions]:
        found: dict[str, Positions] = {group: {} for group in self.names()}
        for key, offsets in self.all_offsets().items():
            topic, separator, group = key.partition(GROUP_SEPARATOR)
            if separator:
                found.setdefault(group, {}).update({Queue(topic, queue_id): at for queue_id, at in offsets.items()})
        return found

    def positions(self, group: str, topics: Iterable[str]) -> Positions:
        content = read_json(self._offsets)
        return {
            Queue(topic, queue_id): offset
            for topic in set(topics)
            for queue_id, offset in self._committed(content, _key(topic, group)).items()
        }

    def of_groups(self, wanted: Iterable[tuple[str, Queue]]) -> dict[tuple[str, Queue], int]:
        content = read_json(self._offsets)
        found: dict[tuple[str, Queue], int] = {}
        for key, each in groupby(sorted(wanted), lambda one: _key(one[1].topic, one[0])):
            offsets = self._committed(content, key)
            found |= {(group, queue): offsets[queue.queue_id] for group, queue in each if queue.queue_id in offsets}
        return found

    def commit_positions(self, group: str, positions: Positions) -> None:
        """Commit a group's offsets. As in RocketMQ, a commit may go backwards.

        Raises `InvalidGroup`, `OffsetOutOfRange`.
        """
        check_may_commit(group)
        for queue, offset in positions.items():
            if integer(f"offset of queue {queue.queue_id}", offset) < 0:
                raise OffsetOutOfRange(
                    f"group {group}, {queue.topic}, queue {queue.queue_id}: {offset} is no offset. Offsets begin at 0"
                )
        self.set_positions(group, positions)

    def set_positions(self, group: str, positions: Positions) -> None:
        """Set offsets without checking the group's name, because a broker accepts any name."""
        self.set_of_groups({(group, queue): offset for queue, offset in positions.items()})

    def set_of_groups(self, positions: Mapping[tuple[str, Queue], int]) -> None:
        content = read_json(self._offsets)
        by_key: dict[str, dict[int, int]] = {}
        for (group, queue), offset in positions.items():
            by_key.setdefault(_key(queue.topic, group), {})[queue.queue_id] = int(offset)
        for key, offsets in by_key.items():
            merged = self._committed(content, key) | offsets
            content[_OFFSETS][key] = {str(queue_id): offset for queue_id, offset in sorted(merged.items())}
        next_version(self._offsets, content)
        write_json(self._offsets, content)

    def names(self) -> list[str]:
        """Return the groups that have settings or offsets, sorted."""
        committed = (key.partition(GROUP_SEPARATOR)[2] for key in read_table(self._offsets, _OFFSETS))
        return sorted({*self.settings.all(), *filter(None, committed)})

    def delete(self, group: str, *, with_offsets: bool) -> None:
        self.settings.delete(group)
        if not with_offsets:
            return
        content = read_json(self._offsets)
        before = table(self._offsets, content, _OFFSETS)
        after = {key: said for key, said in before.items() if key.partition(GROUP_SEPARATOR)[2] != group}
        if after != before:
            content[_OFFSETS] = after
            next_version(self._offsets, content)
            write_json(self._offsets, content)

    def _committed(self, content: dict[str, Any], key: str) -> dict[int, int]:
        return self._known(key, table(self._offsets, content, _OFFSETS).get(key))

    def _known(self, key: str, found: object) -> dict[int, int]:
        """Parse offsets without queue -1 and offset -1, which a broker stores but treats as missing."""
        if isinstance(found, dict):
            found = {queue: offset for queue, offset in found.items() if queue != "-1" and offset != -1}
        return offset_table(self._offsets, key, found)


def _key(topic: str, group: str) -> str:
    return f"{topic}{GROUP_SEPARATOR}{group}"


def _new_group(group: str) -> dict[str, Any]:
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
