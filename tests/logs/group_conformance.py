"""Tests that every kind of consumer group must pass.

Subclasses provide the fixture `making`: a group of a log with topic "t" of four queues.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import pytest

from store import GroupConflict, OffsetOutOfRange, StoreClosed, UnknownGroup, UnknownTopic
from store.api.group_protocol import Group, MemberInfo, MessageModel, Subscription, Subscriptions
from store.model.log_protocol import Queue
from tests.members import RemoteMember
from tests.waiting import PATIENCE, until

ALL = [Queue("t", number) for number in range(4)]
Q0, Q1, Q2, Q3 = ALL
EVERYTHING = {"t": Subscription()}
BROADCASTING = MessageModel.BROADCASTING


class Making(Protocol):
    group: Group

    def another(self, name: str) -> Group: ...

    def in_process(self, subscriptions: Subscriptions, **options: Any) -> AbstractContextManager[RemoteMember]:
        """Run a member in its own process, killed at the end of the block."""


class GroupTests:
    """ALL: the queues of topic "t", as the log names them."""

    ALL = Q0, Q1, Q2, Q3 = ALL

    @pytest.fixture
    def group(self, making: Making) -> Group:
        return making.group

    @pytest.fixture
    def joined(self) -> Iterator[ExitStack]:
        with ExitStack() as stack:
            yield stack

    def test_members_see_others_join_and_leave(self, group: Group) -> None:
        with group.join(EVERYTHING) as one:
            assert one.members() == [one.id]
            assert not one.wait(0)
            with group.join(EVERYTHING) as other:
                assert [one.wait(PATIENCE), one.wait(0), other.wait(0)] == [True, False, False]
                assert one.members() == other.members() == sorted([one.id, other.id])
            assert one.wait(PATIENCE)
            assert one.members() == [one.id]
        assert group.members() == []

    def test_groups_do_not_affect_each_other(self, making: Making) -> None:
        with making.group.join(EVERYTHING) as one, making.another("h").join(EVERYTHING) as other:
            assert (one.members(), other.members()) == ([one.id], [other.id])
            assert one.lock(self.ALL) == other.lock(self.ALL) == set(self.ALL)
            one.commit({self.Q0: 7})
            one.persist()
            assert other.committed(self.ALL) == {}
            assert not one.wait(0)

    def test_group_describes_its_members(self, group: Group) -> None:
        wanted = {"t": Subscription("a > 1", "SQL92"), "u": Subscription("A || B")}
        with group.join(wanted, orderly=True, instance="x.1") as one:
            one.lock([self.Q3, self.Q1])
            (info,) = group.members()
            assert info == MemberInfo(
                one.id, wanted, MessageModel.CLUSTERING, True, (self.Q1, self.Q3), info.silent_seconds
            )
            assert one.id.endswith("@x.1")
            assert 0 <= info.silent_seconds < PATIENCE

    def test_killed_member_loses_its_place_and_queues(self, making: Making, group: Group) -> None:
        with group.join(EVERYTHING) as one, making.in_process(EVERYTHING) as other:
            assert one.wait(PATIENCE)
            assert one.members() == sorted([one.id, other.id])
            assert other.call("lock", self.ALL) == set(self.ALL)
            assert one.wait(PATIENCE)
            assert one.lock(self.ALL) == set()
            other.kill()
            assert one.wait(PATIENCE)
            assert one.members() == [one.id]
            assert one.lock(self.ALL) == set(self.ALL)

    def test_group_survives_when_all_members_are_killed(self, making: Making, group: Group) -> None:
        with making.in_process(EVERYTHING, instance="x") as other:
            assert len(group.members()) == 1
        assert group.members() == []
        with group.join({"t": Subscription("A")}, instance="x") as one:
            assert one.id == other.id

    def test_calls_fail_after_leaving(self, group: Group) -> None:
        member = group.join(EVERYTHING)
        member.leave()
        member.leave()
        for verb in (member.members, member.persist, member.resets):
            with pytest.raises(StoreClosed):
                verb()
        for locking in (member.lock, member.unlock, member.committed):
            with pytest.raises(StoreClosed):
                locking([self.Q0])
        for setting in (member.begin, member.commit):
            with pytest.raises(StoreClosed):
                setting({self.Q0: 1})
        with pytest.raises(StoreClosed):
            member.wait(PATIENCE)

    @pytest.mark.parametrize(
        ("one", "other", "says"),
        [
            ({"t": Subscription("A")}, {"t": Subscription("B")}, "reads t by TAG 'A', and this one t by TAG 'B'"),
            ({"t": Subscription("A")}, {"t": Subscription("A", "SQL92")}, "'A', and this one t by SQL92 'A'"),
            ({"t": Subscription()}, {"u": Subscription()}, "reads t by TAG '\\*', and this one u by TAG '\\*'"),
            (EVERYTHING, EVERYTHING | {"u": Subscription("x")}, "this one t by TAG '\\*', u by TAG 'x'"),
        ],
    )
    def test_members_with_different_subscriptions_conflict(
        self, group: Group, one: Subscriptions, other: Subscriptions, says: str
    ) -> None:
        with group.join(one) as first:
            with pytest.raises(
                GroupConflict, match=f"group {group.name}: member {first.id} .* {says}, so each .* Stop the others"
            ):
                group.join(other)
            assert first.members() == [first.id]
        group.join(other).leave()

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({"t": Subscription("A || B")}, {"t": Subscription("B||A ")}),
            ({"t": Subscription("")}, {"t": Subscription("*")}),
            (EVERYTHING, EVERYTHING | {"%RETRY%g": Subscription()}),
        ],
    )
    def test_equivalent_subscriptions_do_not_conflict(
        self, group: Group, one: Subscriptions, other: Subscriptions
    ) -> None:
        with group.join(one), group.join(other):
            assert len(group.members()) == 2

    def test_members_with_different_models_conflict(self, group: Group) -> None:
        with group.join(EVERYTHING, orderly=True):
            with pytest.raises(GroupConflict, match="consumes orderly, this one concurrently"):
                group.join(EVERYTHING)
            with pytest.raises(GroupConflict, match="consumes by clustering, this one by broadcasting"):
                group.join(EVERYTHING, orderly=True, model=BROADCASTING)

    def test_instance_names_are_unique(self, group: Group) -> None:
        with group.join(EVERYTHING, instance="x") as one, pytest.raises(GroupConflict, match=f"{one.id} .* this name"):
            group.join(EVERYTHING, instance="x")

    def test_queue_has_one_owner(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING)) for _ in range(2))
        one.wait(0)
        assert one.lock([self.Q0, self.Q1]) == {self.Q0, self.Q1}
        assert [other.wait(0), other.wait(0)] == [True, False]
        assert other.lock(self.ALL) == {self.Q2, self.Q3}
        one.wait(0)
        assert one.lock([self.Q0, self.Q1]) == {self.Q0, self.Q1}
        assert not other.wait(0), "these locks were only renewed"
        other.unlock(self.ALL)
        one.unlock([self.Q1])
        assert other.wait(PATIENCE)
        assert other.lock(self.ALL) == {self.Q1, self.Q2, self.Q3}
        one.leave()
        assert other.wait(PATIENCE)
        assert other.lock(self.ALL) == set(self.ALL)

    def test_owner_is_asked_to_release_a_queue(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING)) for _ in range(2))
        one.lock([self.Q0, self.Q1])
        one.wait(0)
        assert other.lock([self.Q1, self.Q2], ask=True) == {self.Q2}
        assert one.wait(PATIENCE)
        assert (one.asked(), other.asked()) == ({self.Q1}, set())
        one.unlock([self.Q1])
        assert other.lock([self.Q1, self.Q2]) == {self.Q1, self.Q2}
        assert one.asked() == set()
        other.lock([self.Q0], ask=True)
        other.lock([])
        assert one.asked() == set()

    def test_exclusive_member_gets_all_queues_or_none(self, group: Group, joined: ExitStack) -> None:
        one = joined.enter_context(group.join(EVERYTHING))
        all_or_nothing = joined.enter_context(group.join(EVERYTHING, exclusive=True))
        assert one.members() == [one.id]
        assert all_or_nothing.members() == sorted([one.id, all_or_nothing.id])
        assert all_or_nothing.lock(self.ALL) == set(self.ALL)
        assert one.lock(self.ALL) == set()

    def test_stopped_member_loses_its_queues(
        self, making: Making, group: Group, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", 0.2)
        with group.join(EVERYTHING) as one, making.in_process(EVERYTHING) as other:
            other.call("lock", self.ALL)
            other.call("commit", {self.Q0: 5})
            other.signal(signal.SIGSTOP)
            until(lambda: one.lock([self.Q0]) == {self.Q0})
            one.commit({self.Q0: 9})
            monkeypatch.undo()
            other.signal(signal.SIGCONT)
            assert other.call("lock", self.ALL) == set(), "it lost one lock, and the others expired"
            assert other.call("lock", self.ALL) == {self.Q1, self.Q2, self.Q3}
            assert one.lock([self.Q0]) == {self.Q0}
            one.unlock([self.Q0])
            assert other.call("lock", [self.Q0]) == {self.Q0}
            assert other.call("committed", [self.Q0]) == {self.Q0: 9}

    def test_silent_member_gets_no_share(self, making: Making, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        with making.in_process(EVERYTHING) as other, group.join(EVERYTHING) as one:
            monkeypatch.setattr("store.broker.entries.SILENT_SECONDS", 0.2)
            assert one.wait(PATIENCE)
            assert one.members() == [one.id]
            monkeypatch.undo()
            other.call("lock", [])
            assert one.wait(PATIENCE)
            assert one.members() == sorted([one.id, other.id])

    def test_commits_are_visible_once_persisted(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING)) for _ in range(2))
        one.lock([self.Q0, self.Q1])
        one.commit({self.Q0: 5, self.Q1: 7})
        one.commit({self.Q0: 3})
        assert (one.committed(self.ALL), other.committed(self.ALL), group.committed(self.ALL)) == (
            {self.Q0: 5, self.Q1: 7},
            {},
            {},
        )
        one.persist()
        assert other.committed(self.ALL) == group.committed(self.ALL) == {self.Q0: 5, self.Q1: 7}
        one.commit({self.Q0: 6})
        one.unlock([self.Q0])
        assert other.lock([self.Q0]) == {self.Q0}
        assert other.committed([self.Q0, self.Q3]) == {self.Q0: 6}
        one.commit({self.Q1: 8})
        one.leave()
        assert group.committed(self.ALL) == {self.Q0: 6, self.Q1: 8}

    def test_commits_to_unowned_queues_are_ignored(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING)) for _ in range(2))
        one.lock([self.Q0])
        one.commit({self.Q0: 5})
        one.unlock([self.Q0])
        other.lock([self.Q0])
        other.commit({self.Q0: 6})
        one.commit({self.Q0: 9, self.Q1: 9})
        one.persist()
        assert one.committed([self.Q0, self.Q1]) == {self.Q0: 5}
        other.unlock([self.Q0])
        one.lock([self.Q0])
        assert one.committed([self.Q0]) == {self.Q0: 6}

    def test_commits_of_a_killed_member_count(self, making: Making, group: Group) -> None:
        with group.join(EVERYTHING) as one:
            with making.in_process(EVERYTHING) as other:
                other.call("lock", [self.Q1, self.Q2, self.Q3])
                other.call("commit", {self.Q1: 5, self.Q2: 6})
                other.call("commit", {self.Q1: 7, self.Q3: 8})
                other.call("unlock", [self.Q2])
            assert one.lock([self.Q0, self.Q1, self.Q2]) == {self.Q0, self.Q1, self.Q2}
            assert one.committed(self.ALL) == {self.Q1: 7, self.Q2: 6, self.Q3: 8}

    def test_group_starts_at_the_first_members_offsets(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING)) for _ in range(2))
        one.begin({self.Q0: 10, self.Q1: 0})
        other.begin({self.Q0: 4, self.Q1: 5, self.Q2: 6})
        assert (
            one.committed(self.ALL)
            == other.committed(self.ALL)
            == group.committed(self.ALL)
            == {self.Q0: 10, self.Q1: 0, self.Q2: 6}
        )

    def test_reset_reaches_the_owner_of_a_queue(self, group: Group) -> None:
        with group.join(EVERYTHING) as one:
            one.lock(self.ALL)
            one.commit({self.Q0: 50, self.Q1: 60})
            one.persist()
            one.commit({self.Q0: 55, self.Q1: 65})
            group.reset({self.Q0: 10, self.Q2: 3})
            one.persist()
            assert group.committed(self.ALL) == {self.Q0: 10, self.Q1: 65, self.Q2: 3}
            assert one.wait(PATIENCE)
            assert [one.resets(), one.resets()] == [{self.Q0: 10, self.Q2: 3}, {}]
            assert one.committed(self.ALL) == {self.Q0: 10, self.Q1: 65, self.Q2: 3}
            one.commit({self.Q0: 11})
            group.reset({self.Q1: 0})
            assert one.resets() == {self.Q1: 0}
        assert group.committed(self.ALL) == {self.Q0: 11, self.Q1: 0, self.Q2: 3}

    @pytest.mark.parametrize("killed", [False, True])
    def test_reset_counts_although_no_member_fetched_it(self, making: Making, group: Group, killed: bool) -> None:
        with making.in_process(EVERYTHING) as other:
            other.call("lock", self.ALL)
            other.call("commit", {self.Q0: 50, self.Q1: 60})
            group.reset({self.Q0: 10})
            if not killed:
                other.call("leave")
        with group.join(EVERYTHING) as one:
            assert one.resets() == {}
            assert one.committed(self.ALL) == {self.Q0: 10, self.Q1: 60}

    def test_resets_of_missing_groups_and_queues_are_refused(self, making: Making, group: Group) -> None:
        with pytest.raises(UnknownGroup, match=f"group '{group.name}' does not exist"):
            group.reset({self.Q0: 0})
        making.another("orders-eu").join(EVERYTHING).leave()
        with pytest.raises(UnknownGroup, match="group 'order-eu' does not exist; similar names are orders-eu"):
            making.another("order-eu").reset({self.Q0: 0})
        group.join(EVERYTHING).leave()
        with pytest.raises(UnknownTopic):
            group.reset({self.Q0: 1, Queue("t", 4): 0})
        with pytest.raises(OffsetOutOfRange):
            group.reset({self.Q0: -1})
        assert group.committed(self.ALL) == {}

    def test_broadcasting_member_reads_all_at_its_own_offsets(self, making: Making, group: Group) -> None:
        with making.in_process(EVERYTHING, model=BROADCASTING, instance="x") as x:
            with group.join(EVERYTHING, model=BROADCASTING, instance="y") as y:
                assert x.call("lock", self.ALL) == y.lock(self.ALL) == set(self.ALL)
                assert y.members() == [y.id]
                x.call("commit", {self.Q0: 5, self.Q1: 6})
                y.commit({self.Q0: 7})
                group.reset({self.Q1: 1})
                assert y.resets() == {self.Q1: 1}
                assert x.call("resets") == {self.Q1: 1}
                y.reset({self.Q0: 2, self.Q1: 3})
                assert (x.call("resets"), y.resets()) == ({}, {self.Q0: 2, self.Q1: 3}), (
                    "each member gets its own resets"
                )
                assert x.call("committed", self.ALL) == {self.Q0: 5, self.Q1: 1}
            x.call("commit", {self.Q0: 8})
        with group.join(EVERYTHING, model=BROADCASTING, instance="x") as member:
            assert member.committed(self.ALL) == {self.Q0: 8, self.Q1: 1}
        with group.join(EVERYTHING, model=BROADCASTING, instance="y") as member:
            assert member.committed(self.ALL) == {self.Q0: 2, self.Q1: 3}
        with group.join(EVERYTHING, model=BROADCASTING) as member:
            assert member.committed(self.ALL) == {}
