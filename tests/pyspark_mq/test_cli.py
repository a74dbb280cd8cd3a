"""The command line as a user has it: the installed script, run as a process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from tests.takeover import broker

SCRIPT = Path(sys.executable).with_name("pyspark-mq")
TIMEOUT_SECONDS = 60


def run(*arguments: object, stdin: bytes | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [SCRIPT, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **environment},
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def succeed(*arguments: object, stdin: bytes | None = None) -> str:
    done = run(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def tailing(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """`pyspark-mq tail`, ended with the block."""
    with subprocess.Popen(
        [SCRIPT, "tail", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small store with the topic "orders" of two queues."""
    config = tmp_path / "store.conf"
    config.write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n")
    path = tmp_path / "store"
    assert succeed("topic", "create", path, "orders", "--queues", 2, "--config", config) == "orders: 2 queues\n"
    return path


def bodies(path: Path, columns: tuple[str, ...] = ("body",)) -> list[dict[str, object]]:
    with MessageStore.open(path, read_only=True) as store:
        return [
            row
            for queue_id in range(2)
            for batch in store.scan("orders", queue_id, 0, store.max_offset("orders", queue_id), columns=columns)
            for row in batch.to_pylist()
        ]


def test_topics_are_created_grown_and_listed(path: Path) -> None:
    succeed("topic", "create", path, "payments")
    assert succeed("topic", "create", path, "orders", "--queues", 3) == "orders: 3 queues\n"
    assert succeed("topic", "list", path) == "orders: 3 queues\npayments: 4 queues\n"


def test_send_arguments_with_tags_keys_and_queue(path: Path) -> None:
    out = succeed("send", path, "orders", "one", "zwei €", "--tags", "paid", "--keys", "o-1 o-2", "--queue", 1)
    assert out == "2 sent to orders\n"
    expected = {"tags": "paid", "keys": "o-1 o-2", "queueId": 1}
    assert bodies(path, ("body", "tags", "keys", "queueId")) == [
        {"body": b"one", **expected},
        {"body": "zwei €".encode(), **expected},
    ]


def test_send_lines_of_a_file_and_of_standard_input(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"from a file\r\nwith no end of line")
    assert succeed("send", path, "orders", "--file", file, "--queue", 0) == "2 sent to orders\n"
    assert succeed("send", path, "orders", "--queue", 0, stdin=b"piped\n") == "1 sent to orders\n"
    assert [row["body"] for row in bodies(path)] == [b"from a file", b"with no end of line", b"piped"]


def test_send_keeps_every_line_of_a_long_input(path: Path) -> None:
    lines = [b"%d " % number + b"x" * (number % 300) for number in range(20_000)]
    assert succeed("send", path, "orders", stdin=b"\n".join(lines)) == "20,000 sent to orders\n"
    assert sorted(row["body"] for row in bodies(path)) == sorted(lines)  # type: ignore[type-var]


def test_lines_are_sent_while_the_input_is_still_open(path: Path) -> None:
    with (
        tailing(path, "orders", "--from", "earliest", "--count", 1) as tail,
        subprocess.Popen([SCRIPT, "send", path, "orders"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as send,
    ):
        assert send.stdin is not None
        send.stdin.write(b"first\n")
        send.stdin.flush()
        assert tail.communicate(timeout=TIMEOUT_SECONDS)[0] == "first\n"
        send.communicate(b"second\n", timeout=TIMEOUT_SECONDS)
    assert sorted(str(row["body"]) for row in bodies(path)) == ["b'first'", "b'second'"]


def test_tail_prints_all_queues_in_the_order_of_appending(path: Path) -> None:
    for number, body in enumerate("abcdef"):
        succeed("send", path, "orders", body, "--queue", number % 2)
    assert succeed("tail", path, "orders", "--from", "earliest", "--count", 6).split() == list("abcdef")
    assert succeed("tail", path, "orders", "--from", 2, "--count", 2).split() == list("ef")
    assert len(succeed("tail", path, "orders", "--from", "earliest", "--count", 4).split()) == 4


def test_tail_filters_by_tags_and_prints_json(path: Path) -> None:
    succeed("send", path, "orders", "no")
    succeed("send", path, "orders", "yes", "--tags", "paid", "--keys", "k", "--queue", 1)
    printed = succeed("tail", path, "orders", "--from", "earliest", "--tags", "paid || shipped", "--count", 1, "--json")
    row = json.loads(printed)
    assert (row["body"], row["tags"], row["keys"], row["queueId"]) == ("yes", "paid", "k", 1)
    assert row["storeTimestamp"].endswith("+00:00")


def test_tail_follows_arrivals_and_ends_cleanly_on_ctrl_c(path: Path) -> None:
    with tailing(path, "orders", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        for body in ("one", "two"):
            succeed("send", path, "orders", body)
            assert tail.stdout.readline() == f"{body}\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(TIMEOUT_SECONDS) == 0
        assert tail.stderr.read() == ""


def test_tail_goes_on_behind_a_broker_that_took_over_and_back(path: Path) -> None:
    with tailing(path, "orders", "--from", "earliest") as tail:
        assert tail.stdout is not None
        succeed("send", path, "orders", "one")
        assert tail.stdout.readline() == "one\n"
        with broker(path) as theirs:
            for body in ("two", "three"):
                theirs.put(Message("orders", body.encode()))
                assert tail.stdout.readline() == f"{body}\n"
        succeed("send", path, "orders", "four")
        assert tail.stdout.readline() == "four\n"


def test_tail_latest_leaves_out_what_was_there(path: Path) -> None:
    succeed("send", path, "orders", "old")
    with tailing(path, "orders", "--count", 1) as tail:
        assert tail.stdout is not None
        # When tail has taken its start is not visible from outside: send until it answers.
        while tail.poll() is None:
            succeed("send", path, "orders", "new")
        assert tail.stdout.read() == "new\n"


def test_stats_counts_messages_and_bytes(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    lines = [line.split() for line in succeed("stats", path).splitlines()]
    assert lines[1] == ["orders", "0", "0", "0", "0", "0"]
    assert lines[2][:5] == ["orders", "1", "0", "3", "3"]
    assert lines[-1][1] == lines[2][5]  # all that was published is in queue 1
    assert lines[-1][4:8] == ["1", "segments", "of", "1,048,576"]
    assert lines[-1][-4:] == ["dispatch", "lag", "0", "bytes"]


def test_clean_deletes_old_segments(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with MessageStore.open(
        path, config=StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=100)
    ) as store:
        store.create_topic("orders", 1)
        store.put_many([Message("orders", bytes(1000)) for _ in range(36)])
    segments = sorted((path / "commitlog").iterdir())
    for segment in segments[:6]:
        os.utime(segment, (0, 0))

    nothing = "0 log segments, 0 queue files and 0 index files, 0 bytes"
    assert succeed("clean", path, "--reserved-hours", 1000000).startswith(nothing)
    would = succeed("clean", path, "--dry-run")
    assert would.splitlines()[:6] == [f"would delete {segment}" for segment in segments[:6]]
    assert sorted((path / "commitlog").iterdir()) == segments
    lines = succeed("clean", path).splitlines()
    assert lines[:6] == [f"deleted {segment}" for segment in segments[:6]]
    assert [line.split("/")[-2] for line in lines[6:9]] == ["0", "0", "0"]
    assert lines[9].startswith("6 log segments, 3 queue files and 0 index files, ")
    assert sorted((path / "commitlog").iterdir()) == segments[6:]
    with MessageStore.open(path, read_only=True) as reader:
        assert reader.offsets("orders", 0) == (18, 36)

    assert "5 log segments" in succeed("clean", path, "--force")
    assert sorted((path / "commitlog").iterdir()) == segments[11:]


def test_verify_finds_and_repairs(path: Path) -> None:
    succeed("send", path, "orders", *"abcdef", "--queue", 1)
    assert succeed("verify", path) == "6 records, 588 bytes, 1 queues: no findings\n"
    (queue_file,) = (path / "consumequeue/orders/1").iterdir()
    with queue_file.open("r+b") as file:
        file.seek(40)
        file.write(bytes(20))
    done = run("verify", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert [line.split("  ") for line in done.stdout.splitlines()[1:]] == [
        ["topic orders, queue 1, offset 2", "1 messages have no entry in the queue", "verify --repair"],
        ["6 records, 588 bytes, 1 queues: 1 findings"],
    ]
    done = run("verify", path, "--repair")
    assert done.returncode == 0
    assert done.stdout.endswith("after the repair:\n6 records, 588 bytes, 1 queues: no findings\n")
    assert run("verify", path, "--mend").returncode == 2


def test_verify_takes_the_index_sizes_of_a_broker(tmp_path: Path) -> None:
    theirs = Path(__file__).parents[1] / "golden" / "index-5.3"
    (tmp_path / "broker.conf").write_text("maxHashSlotNum=20\nmaxIndexNum=30\n")
    assert "set both as the broker that wrote it has them" in run("verify", theirs).stdout
    assert succeed("verify", theirs, "--config", tmp_path / "broker.conf").endswith("no findings\n")


def test_what_verify_cannot_repair(path: Path) -> None:
    succeed("send", path, "orders", *"abcdef", "--queue", 1)
    (segment,) = (path / "commitlog").iterdir()
    with segment.open("r+b") as file:
        file.seek(98 * 3 + 88)
        file.write(b"!")
    done = run("verify", path, "--repair")
    assert done.returncode == 1
    assert done.stdout.count("98 bytes up to log offset 392 cannot be read  restore the file from a copy") == 2
    assert "Error: " in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("send", "{path}", "nowhere", "x"), "nowhere"),
        (("send", "{path}", "orders", "x", "--queue", "7"), "7"),
        (("send", "{other}", "orders", "x"), "{other}"),
        (("tail", "{path}", "nowhere"), "nowhere"),
        (("tail", "{path}", "orders", "--from", "99"), "99"),
        (("tail", "{other}", "orders"), "{other}"),
        (("stats", "{other}"), "{other}"),
        (("topic", "list", "{other}"), "{other}"),
        (("clean", "{other}"), "{other}"),
        (("verify", "{other}"), "{other}"),
        (("verify", "{other}", "--repair"), "{other}"),
        (("clean", "{other}", "--dry-run"), "{other}"),
        (("topic", "create", "{path}", "a topic"), "a topic"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(
    path: Path, tmp_path: Path, arguments: tuple[str, ...], named: str
) -> None:
    names = {"path": str(path), "other": str(tmp_path / "other")}
    done = run(*(argument.format(**names) for argument in arguments))
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert named.format(**names) in done.stderr
    assert not (tmp_path / "other").exists()


def test_a_file_of_another_kind_is_refused_by_every_command(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a store")
    for arguments in (
        ("topic", "create", tmp_path, "orders"),
        ("stats", tmp_path),
        ("send", tmp_path, "orders", "x"),
    ):
        done = run(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_wrong_usage_is_told_apart_by_exit_code_2(path: Path) -> None:
    assert run("send", path, "orders", "x", "--file", __file__).returncode == 2
    assert run("tail", path, "orders", "--from", "yesterday").returncode == 2


def test_importing_the_command_line_does_not_import_spark() -> None:
    check = "import sys, pyspark_mq.cli; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=TIMEOUT_SECONDS).returncode == 0


def test_query(path: Path) -> None:
    with MessageStore.open(path) as store:
        results = [store.put(Message("orders", f"body {n}".encode(), "paid", (f"k{n}", "all"))) for n in range(6)]
        store.put(Message("orders", b"own id", properties={"UNIQ_KEY": "7F000001ABCD"}))
        times = [store.message_by_id(result.msg_id).store_timestamp for result in results]
    assert succeed("query", path, "orders", "--key", "k3") == "body 3\n"
    assert succeed("query", path, "orders", "--key", "all", "--count", 2) == "body 4\nbody 5\n"
    assert succeed("query", path, "orders", "--id", results[2].msg_id) == "body 2\n"
    assert succeed("query", path, "orders", "--id", "7F000001ABCD") == "own id\n"
    found = json.loads(succeed("query", path, "orders", "--key", "k3", "--json"))
    tailed = json.loads(succeed("tail", path, "orders", "--from", 1, "--queue", 1, "--count", 1, "--json"))
    assert found == tailed
    assert succeed("query", path, "orders", "--time", times[0]) == "queue 0: offset 0\nqueue 1: offset 0\n"
    assert succeed("query", path, "orders", "--time", "2100-01-01") == "queue 0: offset 4\nqueue 1: offset 3\n"
    one = succeed("query", path, "orders", "--time", "2100-01-01T06:00:00", "--queue", 1, "--json")
    assert json.loads(one) == {"queueId": 1, "queueOffset": 3}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["orders", "--key", "nobody"], 1, "no message of orders has the key 'nobody'"),
        (["orders", "--id", "nobody"], 1, "is no offset message id"),
        (["nobody", "--key", "k"], 1, "no topic 'nobody'"),
        (["orders", "--time", "soon"], 2, "'soon' is neither like"),
        (["orders"], 2, "give one of --key, --id and --time"),
        (["orders", "--key", "k", "--time", "1"], 2, "give one of --key, --id and --time"),
        (["orders", "--time", "1", "--queue", "7"], 1, "has queues 0 to 1, not 7"),
    ],
)
def test_query_for_what_is_not_there(path: Path, arguments: list[str], code: int, words: str) -> None:
    done = run("query", path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_brokers_settings_and_a_slip_in_them(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=a\nmappedFileSizeCommitLog=1048576\n")
    done = run("topic", "create", tmp_path / "mq", "orders", "--config", config)
    assert (done.returncode, done.stdout) == (0, "orders: 4 queues\n")
    assert done.stderr == f"Warning: {config}: passed over, for they mean nothing here: brokerName\n"
    config.write_text("maxMesageSize=5\n")
    done = run("topic", "create", tmp_path / "mq", "orders", "--config", config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: {config}, line 1: unknown key 'maxMesageSize'; did you mean 'maxMessageSize'?\n"


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for arguments in (("stats", tmp_path / "loop"), ("verify", tmp_path / "loop")):
        done = run(*arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
