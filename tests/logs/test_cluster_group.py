"""Groups of a served store: the shared tests as far as brokers can pass them, and the differences."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store import (
    GroupConflict,
    InvalidArgument,
    InvalidGroup,
    Message,
    MessageStore,
    RequestRefused,
    StoreForked,
    UnknownTopic,
    Unreachable,
    UnsupportedStore,
)
from store.api.group_protocol import Group, MemberInfo, MessageModel, Subscription, Subscriptions
from store.cluster.address import ClusterAddress
from store.cluster.group import ClusterGroup
from store.directory.directory_group import DirectoryGroup
from store.format.hashes import java_hash_code
from store.model.codes import RequestCode
from store.model.log_protocol import Queue
from store.remoting.client import Client
from store.remoting.headers import ResetOffset
from store.remoting.serving import serve
from tests.children import ended, in_a_child
from tests.logs.group_conformance import EVERYTHING, GroupTests
from tests.logs.test_cluster import BROKER
from tests.members import RemoteMember, remote_member
from tests.waiting import PATIENCE, until

ALL = [Queue("t", number, broker=BROKER) for number in range(4)]
Q0, Q1, Q2, Q3 = ALL
NOT_OF_A_CLUSTER: Any = None  # brokers cannot do this; the tests below cover their behaviour


class Making:
    def __init__(self, store: MessageStore, name_server: str) -> None:
        self.store = store
        self.address = ClusterAddress((name_server,))
        self.group = ClusterGroup(self.address, "g")

    def another(self, name: str) -> ClusterGroup:
        return ClusterGroup(self.address, name)

    def in_process(self, subscriptions: Subscriptions, **options: Any) -> AbstractContextManager[RemoteMember]:
        return remote_member(self.group, subscriptions, **options)


@pytest.fixture
def making(tmp_path: Path) -> Iterator[Making]:
    with MessageStore.open(tmp_path) as store, serve(store, "127.0.0.1:0") as serving:
        store.create_topic("t", 4)
        store.create_topic("u", 1)
        # Offsets can be committed only up to the end of a queue.
        store.put_many([Message("t", b"", queue_id=number) for number in range(4)] * 100)
        yield Making(store, serving.address)


class TestClusterGroup(GroupTests):
    ALL = Q0, Q1, Q2, Q3 = ALL

    # Concurrent consumers lock no queues, and other members do not see offsets kept in memory.
    test_killed_member_loses_its_place_and_queues = NOT_OF_A_CLUSTER
    test_queue_has_one_owner = NOT_OF_A_CLUSTER
    test_stopped_member_loses_its_queues = NOT_OF_A_CLUSTER
    test_commits_to_unowned_queues_are_ignored = NOT_OF_A_CLUSTER
    test_commits_of_a_killed_member_count = NOT_OF_A_CLUSTER
    # The broker protocol has no request for these.
    test_group_describes_its_members = NOT_OF_A_CLUSTER
    test_members_with_different_models_conflict = NOT_OF_A_CLUSTER
    test_owner_is_asked_to_release_a_queue = NOT_OF_A_CLUSTER
    test_exclusive_member_gets_all_queues_or_none = NOT_OF_A_CLUSTER
    test_silent_member_gets_no_share = NOT_OF_A_CLUSTER
    test_reset_reaches_the_owner_of_a_queue = NOT_OF_A_CLUSTER
    test_reset_counts_although_no_member_fetched_it = NOT_OF_A_CLUSTER
    test_resets_of_missing_groups_and_queues_are_refused = NOT_OF_A_CLUSTER
    test_broadcasting_member_reads_all_at_its_own_offsets = NOT_OF_A_CLUSTER

    def test_brokers_describe_their_members(self, group: Group) -> None:
        wanted = {"t": Subscription("a > 1", "SQL92"), "u": Subscription("A || B")}
        with group.join(wanted, instance="x.1") as one, group.join(wanted) as other:
            one.lock(ALL)
            told = [MemberInfo(id, wanted, MessageModel.CLUSTERING, False, (), 0.0) for id in (one.id, other.id)]
            assert group.members() == sorted(told)
            assert one.id.endswith("@x.1")

    @pytest.mark.parametrize("orderly", [False, True])
    def test_queues_of_a_killed_member_stay_locked_for_orderly(
        self, making: Making, group: Group, orderly: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with group.join(EVERYTHING, orderly=orderly) as one, making.in_process(EVERYTHING, orderly=orderly) as other:
            assert one.wait(PATIENCE)
            assert one.members() == sorted([one.id, other.id])
            assert other.call("lock", ALL) == set(ALL)
            assert one.lock(ALL) == (set() if orderly else set(ALL))
            other.kill()
            assert one.wait(PATIENCE)
            assert one.members() == [one.id]
            assert one.lock(ALL) == (set() if orderly else set(ALL))  # brokers consider the member possibly alive
            monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", 0.0)
            until(lambda: one.lock(ALL) == set(ALL))

    def test_orderly_queue_has_one_owner(self, group: Group, joined: ExitStack) -> None:
        one, other = (joined.enter_context(group.join(EVERYTHING, orderly=True)) for _ in range(2))
        assert one.lock([Q0, Q1]) == {Q0, Q1}
        assert other.lock(ALL) == {Q2, Q3}
        one.commit({Q0: 5, Q1: 6, Q3: 7})
        one.unlock([Q1])
        assert other.lock(ALL) == {Q1, Q2, Q3}
        other.commit({Q1: 8})
        one.commit({Q1: 9})
        one.leave()
        assert other.lock(ALL) == set(ALL)
        assert other.committed(ALL) == {Q0: 5, Q1: 8}
        assert group.committed(ALL) == {Q0: 5, Q1: 6}

    def test_expired_lock_is_refused_once(self, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
        with group.join(EVERYTHING, orderly=True) as one:
            one.lock([Q0, Q1])
            one.commit({Q0: 5})
            monkeypatch.setattr("store.broker.allocation.LOCK_SECONDS", -1.0)
            assert one.lock([Q0]) == set()
            monkeypatch.undo()
            assert one.lock([Q0]) == {Q0}
            assert one.committed([Q0]) == {}

    def test_reset_by_an_admin_tool_reaches_members(self, making: Making, group: Group) -> None:
        making.store.put_many([Message("t", "x", queue_id=0)] * 60)
        with group.join(EVERYTHING) as one, group.join(EVERYTHING) as other:
            one.lock([Q0])
            one.commit({Q0: 50})
            one.persist()
            one.commit({Q0: 55})
            one.wait(PATIENCE)
            with Client() as client:
                header = ResetOffset("g", "t", 0, is_force=True, offset=10, queue_id=0)
                (server,) = making.address.name_servers
                client.request(server, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.texts())
            assert one.wait(PATIENCE)
            one.commit({Q0: 56})
            assert [one.resets(), one.resets()] == [{Q0: 10}, {}]
            assert one.committed([Q0]) == {Q0: 10}
            one.commit({Q0: 11})
            one.persist()
            assert group.committed(ALL) == {Q0: 11}
            assert other.wait(PATIENCE)
            assert other.resets() == {Q0: 10}

    def test_unsupported_options_of_brokers_are_refused(self, group: Group) -> None:
        for options, says in (({"model": MessageModel.BROADCASTING}, "its own"), ({"exclusive": True}, "share")):
            with pytest.raises(UnsupportedStore, match=f"cluster at .*: group g: .* {says}"):
                group.join(EVERYTHING, **options)
        with pytest.raises(UnsupportedStore, match="resetOffsetByTime"):
            group.reset({Q0: 0})
        assert group.members() == []

    def test_missing_topics_and_servers_are_refused(self, making: Making, group: Group) -> None:
        with pytest.raises(UnknownTopic, match="no master broker has topic v"):
            group.join({"v": Subscription()})
        with pytest.raises(InvalidGroup):
            making.another("../g")
        with pytest.raises(InvalidArgument, match="instance="):
            group.join(EVERYTHING, instance="a/b")
        nobody = replace(making.address, name_servers=("127.0.0.1:1",), patience=0.0, broker_timeout=0.0)
        with pytest.raises(Unreachable, match="no name server answers"):
            ClusterGroup(nobody, "g").join(EVERYTHING)

    def test_members_beside_and_through_a_server_conflict(self, making: Making, group: Group) -> None:
        with (
            DirectoryGroup(making.store.path, "g").join(EVERYTHING),
            pytest.raises(RequestRefused, match=r"HEART_BEAT: .* cannot share"),
        ):
            group.join(EVERYTHING)
        with group.join(EVERYTHING), pytest.raises(GroupConflict, match="clients of a server"):
            DirectoryGroup(making.store.path, "g").join(EVERYTHING)

    def test_create_writes_the_groups_settings(self, making: Making, group: Group) -> None:
        group.create()
        assert '"g": {' in (Path(making.store.path) / "config/subscriptionGroup.json").read_text()

    def test_broker_knows_the_subscribed_tags(self, making: Making, group: Group) -> None:
        with group.join({"t": Subscription("A || B")}), Client() as client:
            (server,) = making.address.name_servers
            answer = client.request(server, RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
        told = json.loads(bytes(answer.body))
        reads = told["subscriptionTable"]
        assert (reads["t"]["tagsSet"], reads["t"]["codeSet"]) == (
            ["A", "B"],
            [java_hash_code("A"), java_hash_code("B")],
        )
        assert reads["%RETRY%g"]["subString"] == "*"
        assert told["consumeType"] == "CONSUME_PASSIVELY"

    def test_restarted_server_learns_its_members(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("store.cluster.member._LOOK_SECONDS", 0.1)
        with MessageStore.open(tmp_path / "again") as store, ExitStack() as members:
            store.create_topic("t", 4)
            with serve(store, "127.0.0.1:0") as serving:
                group = ClusterGroup(ClusterAddress((serving.address,)), "g")
                one, other = (members.enter_context(group.join(EVERYTHING)) for _ in range(2))
                one.wait(PATIENCE)
            with serve(store, serving.address):
                both = sorted([one.id, other.id])

                def are_heard() -> bool:
                    for each in (one, other):
                        each.wait(0)
                    return one.members() == other.members() == [info.id for info in group.members()] == both

                until(are_heard)

    def test_forked_child_is_no_member(self, making: Making, group: Group) -> None:
        with group.join(EVERYTHING) as one:
            child = os.fork()
            if not child:
                try:
                    one.leave()
                    one.members()
                except StoreForked:
                    os._exit(7)
                finally:
                    os._exit(1)
            assert ended(child) == 7
            assert group.members() != []


def test_forked_child_leaves_despite_a_lock_of_another_thread(making: Making) -> None:
    """The thread does not exist in the child, so it would never release its locks."""
    holds, end = threading.Event(), threading.Event()

    def hold() -> None:
        with member._turn:  # type: ignore[attr-defined]  # as while brokers are asked
            holds.set()
            end.wait()

    with making.group.join(EVERYTHING) as member:
        holding = threading.Thread(target=hold)
        holding.start()
        assert holds.wait(PATIENCE)
        left = in_a_child(member.leave)
        end.set()
        holding.join()
    assert left == "None"
