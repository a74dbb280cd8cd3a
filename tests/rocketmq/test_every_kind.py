"""Every kind of message on every RocketMQ line, compared with its client's and admin tool's view.

A cell is a kind on a line, after a kill or a clean stop, in the directory as left or after this store opened it for
writing. `known` lists the cells that differ, and why.
"""

from __future__ import annotations

import fnmatch
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from store import MessageStore, StoreConfig
from store.append.locks import DELIVERY_BYTE, ByteLock
from store.format.layout import LOCK_FILE
from store.format.topic_names import is_internal_topic
from store.upkeep.findings import Finding
from store.upkeep.verify import verify
from tests import seen
from tests.rocketmq.conftest import line_of
from tests.rocketmq.harness import HarnessError, Json, chosen_lines
from tests.rocketmq.mixes import INDEX, SMALL_FILES

pytestmark = pytest.mark.rocketmq


@dataclass(frozen=True)
class Kind:
    """A kind of message: the oldest line that has it, and patterns of its topics and queues."""

    name: str
    topics: tuple[str, ...]
    since: str = "4.3"
    is_about_deleting: bool = False  # in a separate directory: a deletion can remove other queues too

    def has(self, topic: str) -> bool:
        return any(fnmatch.fnmatchcase(topic, pattern) for pattern in self.topics)


ODD_NAMES = ("2013", "-", "%", "|", "_", "Odd", "odd", "a-%_|topic", "null", "x" * 127)
KINDS = (
    Kind("single", ("single",)),
    Kind("batch", ("batch",)),
    Kind("compressed", ("compressed",)),
    Kind("delayed", ("delayed", "SCHEDULE_TOPIC_XXXX")),
    Kind("timed", ("timed", "rmq_sys_wheel_timer"), since="5.1"),
    Kind("transactional", ("transactional", "RMQ_SYS_TRANS_*", "TRANS_CHECK_MAX_TIME_TOPIC")),
    Kind("retried", ("retried", "%RETRY%retrying")),
    Kind("dead", ("dead", "%RETRY%dying", "%DLQ%dying")),
    Kind("popped", ("popped", "%RETRY%popping*", "rmq_sys_REVIVE_LOG_*"), since="5.1"),
    Kind("ordered", ("ordered",)),
    Kind("light", ("light", "%LMQ%one", "%LMQ%two"), since="4.9"),
    Kind("grown", ("grown",)),
    Kind("shrunk", ("shrunk",)),
    Kind("deleted", ("deleted",), is_about_deleting=True),
    Kind("recreated", ("recreated",), is_about_deleting=True),
    Kind("twenty", ("twenty",)),
    Kind("odd", ODD_NAMES),
)
LIGHT_TOPICS = ("%LMQ%one", "%LMQ%two")
ENDINGS = ("killed", "stopped")
STATES = ("as left", "opened")
BROKER = {
    **SMALL_FILES,
    **INDEX,
    "messageDelayLevel": "1s 1s 1s 1s 1s 2h",
    "enableLmq": True,
    "enableMultiDispatch": True,
}
NO_CHECKS = {"transactionCheckInterval": "3600000", "reviveInterval": "200"}
CHECKS_ONCE = {"transactionCheckInterval": "1000", "transactionTimeOut": "100", "transactionCheckMax": "1"}


def known(test: str, line: str, ending: str, state: str, kind: str) -> str | None:
    """Return why a cell differs from RocketMQ's, or None if it is equal."""
    return None


def cells(test: str) -> list[ParameterSet]:
    found = []
    for line, kind, ending, state in product(chosen_lines(), KINDS, ENDINGS, STATES):
        if line >= kind.since:
            reason = known(test, line, ending, state, kind.name)
            marks = [pytest.mark.xdist_group("deleting" if kind.is_about_deleting else "others")]
            marks += [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            name = f"{line}-{kind.name}-{ending}-{state}"
            found.append(pytest.param(line, ending, state, kind, marks=marks, id=name))
    return found


@dataclass
class Ended:
    """A directory, and RocketMQ's client's and admin tool's view of it."""

    line: str
    directory: Path
    lines: list[Json] = field(repr=False)

    @cached_property
    def bounds(self) -> dict[seen.QueueName, tuple[int, int]]:
        return {
            (line["topic"], line["queueId"]): (line["min"], line["max"])
            for line in self.lines
            if line["kind"] == "queue"
        }

    @cached_property
    def queues(self) -> seen.Queues:
        return seen.by_rocketmq(self.lines)

    @cached_property
    def with_key(self) -> dict[tuple[str, str], set[int]]:
        found: dict[tuple[str, str], set[int]] = {}
        for queue in self.queues.values():
            for row in queue.rows:
                for key in (row["properties"].get("UNIQ_KEY"), *(row["keys"] or "").split()):
                    found.setdefault((row["topic"], key), set()).add(row["physicalOffset"])
        return found

    @cached_property
    def findings(self) -> list[Finding]:
        return verify(self.directory, config=StoreConfig(**INDEX)).findings

    def answers(self, kind: str) -> list[Json]:
        return [line for line in self.lines if line["kind"] == kind]


class Run:
    """A line's directories by ending and state, either of the kinds about deletion or of the others."""

    def __init__(self, line: str, is_about_deleting: bool, folder: Path) -> None:
        self._line, self._folder = line, folder
        self._ended: dict[tuple[str, str], Ended] = {}
        rocketmq = line_of(line)
        live = folder / "live"
        kinds = [kind.name for kind in KINDS if line >= kind.since and kind.is_about_deleting == is_about_deleting]
        first = [*kinds, *(["transactional", "single"] if is_about_deleting else [])]
        then = ["single"] if is_about_deleting else ["single", "batch"]
        for ending, asked, config in zip(ENDINGS, (first, then), (NO_CHECKS, CHECKS_ONCE), strict=True):
            with rocketmq.broker(live, BROKER, topic="first", brokerConfig=config) as broker:
                broker.ask("produce", kinds=asked)
                assert next(broker) == {"kind": "done"}
                broker.ask("look", topics=LIGHT_TOPICS if "light" in kinds else ())
                lines = list(iter(broker.__next__, {"kind": "done"}))
                if ending == "killed":
                    broker.kill()
                else:
                    broker.ask("stop")
                    assert next(broker) == {"kind": "stopped"}
            directory = shutil.copytree(live, folder / ending)
            self._ended[ending, "as left"] = Ended(line, directory, lines)

    def ended(self, ending: str, state: str) -> Ended:
        if (ending, state) not in self._ended:
            as_left = self._ended[ending, "as left"]
            directory = self._folder / f"{ending}-{state}"
            shutil.copytree(as_left.directory, directory, dirs_exist_ok=True)
            turn = ByteLock(directory / LOCK_FILE, DELIVERY_BYTE)
            # Prevents this store from repeating a delivery that the broker made just before its kill.
            assert turn.take()
            MessageStore.open(directory, config=StoreConfig(**INDEX)).close()
            turn.close()
            self._ended[ending, state] = Ended(self._line, directory, as_left.lines)
        return self._ended[ending, state]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Run | HarnessError]:
    """Return a function of line and `is_about_deleting`; each run is made when first requested."""

    def make(line: str, is_about_deleting: bool) -> Run | HarnessError:
        try:
            return Run(line, is_about_deleting, tmp_path_factory.mktemp(f"every-kind-{line}-"))
        except HarnessError as error:
            return error

    return cache(make)


@pytest.fixture
def run(runs: Callable[[str, bool], Run | HarnessError], line: str, kind: Kind) -> Run:
    run = runs(line, kind.is_about_deleting)
    if isinstance(run, HarnessError):
        raise run
    return run


@pytest.fixture
def ended(run: Run, ending: str, state: str) -> Ended:
    return run.ended(ending, state)


@pytest.fixture
def as_left(run: Run, ending: str) -> Ended:
    return run.ended(ending, "as left")


@pytest.fixture
def store(ended: Ended) -> Iterator[MessageStore]:
    with MessageStore.open(ended.directory, read_only=True, config=StoreConfig(**INDEX)) as store:
        yield store


CELL = ("line", "ending", "state", "kind")


def directories(test: str) -> list[ParameterSet]:
    return [cell for cell in cells(test) if str(cell.id).split("-")[1] in ("single", "deleted")]


@pytest.mark.parametrize(CELL, cells("messages"))
def test_messages_equal_rocketmqs(kind: Kind, ended: Ended, store: MessageStore) -> None:
    bounds = {name: bound for name, bound in ended.bounds.items() if kind.has(name[0])}
    assert kind.name == "deleted" or any(maximum for _, maximum in bounds.values())
    assert {name: store.offsets(*name) for name in bounds} == bounds
    theirs = {name: queue for name, queue in ended.queues.items() if name in bounds}
    assert all(len(queue.rows) == queue.maximum - queue.minimum for queue in theirs.values())
    seen.assert_same(seen.by_scan(store, bounds), theirs)
    seen.assert_same(seen.by_get_message(store, bounds), theirs)


@pytest.mark.parametrize(CELL, cells("entries"))
def test_queue_entries_equal_rocketmqs(kind: Kind, ended: Ended, as_left: Ended, store: MessageStore) -> None:
    """Compare the tags codes of queue entries, which no client shows, with those that the broker left."""
    with MessageStore.open(as_left.directory, read_only=True, config=StoreConfig(**INDEX)) as before:
        for name in filter(lambda name: kind.has(name[0]), seen.queues_of(before)):
            bounds = before.offsets(*name)
            assert store.tags_codes(*name, *bounds).tolist() == before.tags_codes(*name, *bounds).tolist(), name


@pytest.mark.parametrize(CELL, cells("keys"))
def test_lookups_by_key_equal_rocketmqs(kind: Kind, ended: Ended, state: str, store: MessageStore) -> None:
    """Two exceptions: RocketMQ also finds a recreated topic's deleted messages, and opening for writing adds keys from
    before a kill that RocketMQ's index lacks."""
    answers = [line for line in ended.answers("query") if kind.has(line["topic"])]
    ours, theirs = {}, {}
    for line in answers:
        asked = line["topic"], line["key"]
        ours[asked] = {message.physical_offset for message in store.query(*asked, line["max"])}
        theirs[asked] = set(line["physicalOffsets"])
        if kind.name == "recreated":
            theirs[asked] &= ended.with_key.get(asked, set())
        if state == "opened":
            theirs[asked] |= ended.with_key.get(asked, set())
    assert ours == theirs


@pytest.mark.parametrize(CELL, cells("ids"))
def test_lookups_by_id_equal_rocketmqs(kind: Kind, ended: Ended, store: MessageStore) -> None:
    by_broker = {line["offsetMsgId"] for line in ended.answers("message")}
    for line in ended.answers("id"):
        if not kind.has(line["asked"]):
            continue
        if line["id"] in by_broker:
            assert store.message_by_id(line["id"]).physical_offset == line["physicalOffset"], line
        else:
            found = [message.physical_offset for message in store.query(line["asked"], line["id"])]
            assert line["physicalOffset"] in found, line


@pytest.mark.parametrize(CELL, cells("times"))
def test_lookups_by_time_equal_rocketmqs(kind: Kind, ended: Ended, store: MessageStore) -> None:
    for line in ended.answers("time"):
        name = line["topic"], line["queueId"]
        if not kind.has(line["topic"]):
            continue
        ours = store.offset_by_time(*name, line["time"])
        if ended.line >= "5":
            assert ours == line["offset"], line
        else:  # RocketMQ 4 returns the nearest message, this store the first that is not older
            times = [row["storeTimestamp"] for row in ended.queues[name].rows]
            stored = dict(enumerate(times, ended.bounds[name][0]))
            assert abs(stored[line["offset"]] - line["time"]) == min(abs(at - line["time"]) for at in stored.values())
            assert ours == min(
                (at for at, time in stored.items() if time >= line["time"]), default=ended.bounds[name][1]
            )


@pytest.mark.parametrize(CELL, cells("verify"))
def test_verify_finds_no_damage_in_a_queue(kind: Kind, ended: Ended) -> None:
    """Exception: a busy broker may leave some queues of a deleted topic, so that the others are reported as missing."""
    is_left_in_part = kind.name == "deleted" and any(ended.directory.glob("consumequeue/deleted/*/*"))
    found = [finding for finding in ended.findings if kind.has(topic_of(finding))]
    assert [finding for finding in found if not (is_left_in_part and "have no entry" in finding.what)] == []


@pytest.mark.parametrize(CELL, directories("whole"))
def test_verify_finds_no_other_damage(kind: Kind, ended: Ended) -> None:
    assert [finding for finding in ended.findings if not any(one.has(topic_of(finding)) for one in KINDS)] == []


def topic_of(finding: Finding) -> str:
    return finding.where.removeprefix("topic ").partition(", queue")[0]


@pytest.mark.parametrize(CELL, directories("topics"))
def test_topics_equal_rocketmqs(kind: Kind, ended: Ended, as_left: Ended, store: MessageStore) -> None:
    """Other topics have no messages. Exceptions: removed queues, and deleted topics whose queues the broker rebuilt
    after a kill."""
    (told,) = ended.answers("topics")
    ours = store.topics()
    assert told["topics"].get("shrunk", 2) == 2
    assert {**told["topics"], "shrunk": 6} == {"shrunk": 6} | {topic: ours[topic] for topic in told["topics"]}
    hidden = {name for name in seen.queues_of(store) if store.max_offset(*name)} - ended.bounds.keys()
    made_anew = {"deleted"} if any(as_left.directory.glob("consumequeue/deleted/*/*")) else set()
    assert {topic for topic, queue_id in hidden if not is_internal_topic(topic)} <= {"shrunk"} | made_anew
