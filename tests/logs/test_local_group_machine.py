"""Compare members that join, leave and die with a model in memory: one owner per queue, and no commit lost.

GROUP_STEPS sets the steps of an example, 20 by default.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from store import MessageStore
from store.api.group_protocol import Subscription
from store.directory.directory_group import DirectoryGroup
from store.directory.directory_member import DirectoryMember
from store.model.log_protocol import Positions, Queue

STEPS = int(os.environ.get("GROUP_STEPS", "20"))
ALL = [Queue("t", number) for number in range(3)]
QUEUES = st.sets(st.sampled_from(ALL), min_size=1)
OFFSETS = st.integers(1, 50)


class Model:
    """A member's queues, its commits, and the resets that it has not fetched."""

    def __init__(self) -> None:
        self.has: set[Queue] = set()
        self.done: Positions = {}
        self.unseen: Positions = {}


class Groups(RuleBasedStateMachine):
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name)
        with MessageStore.open(path) as store:
            store.create_topic("t", len(ALL))
        self.group = DirectoryGroup(path, "g")
        self.there: dict[str, tuple[DirectoryMember, Model]] = {}
        self.offsets: Positions = {}  # start offsets for a new owner

    def teardown(self) -> None:
        for member, _ in self.there.values():
            member.leave()
        self.folder.cleanup()

    def give_up(self, model: Model, queues: set[Queue]) -> None:
        """Count the offsets committed for these queues, unless a reset followed."""
        for queue in queues & model.has:
            done = model.done.pop(queue, -1)
            if queue not in model.unseen and done > self.offsets.get(queue, -1):
                self.offsets[queue] = done
        model.has -= queues

    @rule(target=members)
    def join(self) -> str:
        member = self.group.join({"t": Subscription()})
        self.there[member.id] = member, Model()
        return member.id

    @rule(target=members, id_=consumes(members), dies=st.booleans())
    def leave(self, id_: str, dies: bool) -> object:
        member, model = self.there.pop(id_)
        self.give_up(model, set(ALL))
        if not dies:
            member.leave()
        del member
        gc.collect()
        return multiple()

    @rule(id_=members, queues=QUEUES)
    def lock(self, id_: str, queues: set[Queue]) -> None:
        member, model = self.there[id_]
        others = set().union(*(other.has for other_id, (_, other) in self.there.items() if other_id != id_))
        assert member.lock(queues) == queues - others
        model.has |= queues - others

    @rule(id_=members, queues=QUEUES)
    def unlock(self, id_: str, queues: set[Queue]) -> None:
        member, model = self.there[id_]
        member.unlock(queues)
        for queue in model.has:
            self.persisted(model, queue)
        self.give_up(model, queues)

    @rule(id_=members, positions=st.dictionaries(st.sampled_from(ALL), OFFSETS))
    def commit(self, id_: str, positions: Positions) -> None:
        member, model = self.there[id_]
        member.commit(positions)
        for queue in positions.keys() & model.has:
            model.done[queue] = max(positions[queue], model.done.get(queue, -1))

    @rule(id_=members)
    def persist(self, id_: str) -> None:
        member, model = self.there[id_]
        member.persist()
        for queue in model.has:
            self.persisted(model, queue)

    def persisted(self, model: Model, queue: Queue) -> None:
        if queue in model.done and queue not in model.unseen:
            self.offsets[queue] = max(model.done[queue], self.offsets.get(queue, -1))

    @rule(positions=st.dictionaries(st.sampled_from(ALL), OFFSETS, min_size=1))
    def reset(self, positions: Positions) -> None:
        self.group.create()
        self.group.reset(positions)
        self.offsets |= positions
        for _, model in self.there.values():
            model.unseen |= positions

    @rule(id_=members)
    def resets(self, id_: str) -> None:
        member, model = self.there[id_]
        assert member.resets() == model.unseen
        model.done |= {queue: offset for queue, offset in model.unseen.items() if queue in model.has}
        model.unseen = {}

    @invariant()
    def each_knows_its_offsets(self) -> None:
        self.group.create()
        assert self.group.committed(ALL) == self.offsets
        for member, model in self.there.values():
            assert member.committed(ALL) == self.offsets | model.done

    @invariant()
    def nobody_else_is_there(self) -> None:
        assert [info.id for info in self.group.members()] == sorted(self.there)
        assert {info.id: set(info.queues) for info in self.group.members()} == {
            id_: model.has for id_, (_, model) in self.there.items()
        }


Groups.TestCase.settings = settings(
    max_examples=10, stateful_step_count=STEPS, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestGroups = Groups.TestCase
