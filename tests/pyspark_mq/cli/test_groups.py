import json
from pathlib import Path

import pytest

from store import Message, MessageStore
from store.api.group_protocol import Subscription
from store.cluster.address import ClusterAddress
from store.directory.directory_group import DirectoryGroup
from store.model.log_protocol import Queue
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.pyspark_mq.cli.process import run, succeed


@pytest.fixture
def read(path: Path) -> Path:
    """Queue 0 has 4 messages, queue 1 has 2; group "billing" has read 1 and 0 of them, "idle" none."""
    with MessageStore.open(path) as store:
        store.put_many([Message("orders", b"x", queue_id=queue) for queue in (0, 0, 0, 0, 1, 1)])
        store.commit_offsets("billing", "orders", {0: 1})
    DirectoryGroup(path, "idle").create()
    return path


def offsets(path: Path) -> list[int | None]:
    with MessageStore.open(path, read_only=True) as store:
        return [store.consumer_offset("billing", "orders", queue) for queue in range(2)]


def test_groups_are_shown_with_their_lag(read: Path) -> None:
    assert [line.split() for line in succeed("groups", "list", read).splitlines()] == [
        ["group", "topic", "lag"],
        ["billing", "orders", "5"],
        ["idle", "-", "-"],
    ]
    lines = [json.loads(line) for line in succeed("groups", "list", read, "--json").splitlines()]
    assert lines[0] == {"group": "billing", "topic": "orders", "lag": 5}
    assert [line.split() for line in succeed("groups", "show", read, "billing").splitlines()] == [
        ["topic", "queue", "offset", "end", "lag", "member"],
        ["orders", "0", "1", "4", "3", "-"],
        ["orders", "1", "-", "2", "2", "-"],
        [],
        ["5", "messages", "behind"],
    ]
    first = json.loads(succeed("groups", "show", read, "billing", "orders", "--json").splitlines()[0])
    assert first == {
        "group": "billing",
        "topic": "orders",
        "queue": 0,
        "offset": 1,
        "end": 4,
        "messages": 3,
        "members": [],
    }


def test_groups_of_a_cluster_are_shown(read: Path) -> None:
    with (
        MessageStore.open(read) as store,
        serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="broker-a")) as serving,
    ):
        cluster = f"rocketmq://{serving.address}"
        with ClusterAddress((serving.address,)).open() as log:
            log.commit("billing", {Queue("orders", 0, broker="broker-a"): 2})
        assert [line.split() for line in succeed("groups", "list", cluster).splitlines()] == [
            ["group", "topic", "lag"],
            ["billing", "orders", "4"],
        ]
        assert [line.split() for line in succeed("groups", "show", cluster, "billing").splitlines()] == [
            ["topic", "queue", "offset", "end", "lag", "member"],
            ["orders", "broker-a:0", "2", "4", "2", "-"],
            ["orders", "broker-a:1", "-", "2", "2", "-"],
            [],
            ["4", "messages", "behind"],
        ]
        first = json.loads(succeed("groups", "show", cluster, "billing", "--json").splitlines()[0])
        assert (first["queue"], first["offset"]) == ("broker-a:0", 2)
        for words, said in (
            (("nobody",), f"cluster at {serving.address}: group 'nobody' has no offsets. Groups with offsets: billing"),
            (("billing", "nowhere"), f"cluster at {serving.address}: topic 'nowhere' does not exist"),
        ):
            done = run("groups", "show", cluster, *words)
            assert (done.returncode, done.stderr.strip()) == (1, f"Error: {said}")
    done = run("groups", "list", "rocketmq://nonsense")
    assert (done.returncode, "host:port" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("place", "expected"),
    [("earliest", [0, 0]), ("latest", [4, 2]), ("3", [3, 2]), ("10m", [0, 0]), ("2100-01-01", [4, 2])],
)
def test_reset_is_shown_first_and_then_done(read: Path, place: str, expected: list[int]) -> None:
    command = "groups", "reset", read, "billing", "orders", "--to", place
    said = succeed(*command, "--dry-run").splitlines()
    assert offsets(read) == [1, None]
    assert said[-1] == "would move billing in orders"
    done = succeed(*command).splitlines()
    assert offsets(read) == expected
    assert (done[:-1], done[-1]) == (said[:-1], "moved billing in orders")
    assert [line.split()[1:3] for line in said[1:3]] == [["1", str(expected[0])], ["-", str(expected[1])]]


def test_reset_reaches_an_active_group(read: Path) -> None:
    group = DirectoryGroup(read, "billing")
    with group.join({"orders": Subscription("a || b")}, instance="x") as one:
        one.lock([Queue("orders", 0)])
        one.commit({Queue("orders", 0): 3})
        shown = [line.split() for line in succeed("groups", "show", read, "billing").splitlines()]
        assert [line[-1] for line in shown[:3]] == ["member", one.id, "-"]
        members = [line.split() for line in succeed("groups", "members", read, "billing").splitlines()]
        assert members[1][:-2] == [one.id, "orders", "a", "||", "b", "concurrently", "1"]
        (member,) = map(json.loads, succeed("groups", "members", read, "billing", "--json").splitlines())
        assert member.pop("silentSeconds") >= 0
        assert member == {
            "member": one.id,
            "subscriptions": {"orders": {"expression": "a || b", "expression_type": "TAG"}},
            "model": "clustering",
            "orderly": False,
            "queues": [{"topic": "orders", "queue": 0}],
        }
        said = succeed("groups", "reset", read, "billing", "orders", "--to", "latest").splitlines()
        assert said[-1] == "moved billing in orders; members that go with it: 1"
        assert one.resets() == {Queue("orders", 0): 4, Queue("orders", 1): 2}
    assert offsets(read) == [4, 2]
    assert succeed("groups", "members", read, "billing") == "Group billing has no members\n"


def test_reset_creates_a_group_on_request(read: Path) -> None:
    command = "groups", "reset", read, "biling", "orders", "--to", "1"
    assert "group 'biling' does not exist; similar names are billing" in run(*command).stderr
    succeed(*command, "--create", "--dry-run")
    assert run(*command).returncode == 1
    succeed(*command, "--create")
    assert [line.split()[1] for line in succeed("groups", "list", read).splitlines()[1:]] == ["orders", "orders", "-"]


def test_reset_of_one_queue(read: Path) -> None:
    succeed("groups", "reset", read, "billing", "orders", "--to", "latest", "--queue", 1)
    assert offsets(read) == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "nobody"], 1, "group 'nobody' does not exist; there are billing, idle"),
        (["show", "idle"], 1, "group 'idle' has no offsets yet. Set them: pyspark-mq groups reset"),
        (["members", "nobody"], 1, "group 'nobody' does not exist; there are billing, idle"),
        (["reset", "billing", "nowhere", "--to", "latest"], 1, "opic 'nowhere' does not exist"),
        (["reset", "a group", "orders", "--to", "latest"], 1, "group 'a group': only letters"),
        (["reset", "billing", "orders", "--to", "soon"], 2, "'soon' is not a place in a topic. Give earliest"),
        (["reset", "billing", "orders"], 2, "--to"),
    ],
)
def test_wrong_arguments_are_refused(read: Path, arguments: list[str], code: int, words: str) -> None:
    verb, *others = arguments
    done = run("groups", verb, read, *others)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words in done.stderr
    assert offsets(read) == [1, None]


def test_deleted_group_has_no_offsets(read: Path) -> None:
    assert succeed("groups", "delete", read, "billing") == "deleted billing\n"
    assert offsets(read) == [None, None]
    assert "group 'billing' does not exist" in run("groups", "delete", read, "billing").stderr
