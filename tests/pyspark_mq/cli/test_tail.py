import json
import re
import signal
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, run, started, succeed, tailing
from tests.store.format.test_inflating import mark
from tests.takeover import broker
from tests.waiting import another_millisecond


def test_tail_prints_all_queues_in_log_order(path: Path) -> None:
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


def test_tail_filters_by_a_condition_and_locates_mistakes(path: Path) -> None:
    for body, tag in (("one", "paid"), ("two", "sent"), ("three", "paid")):
        succeed("send", path, "orders", body, "--tags", tag)
    where = ("tail", path, "orders", "--until-end", "--sql")
    assert succeed(*where, "TAGS = 'paid' AND KEYS IS NULL").split() == ["one", "three"]
    assert "character 6: '!' begins nothing of SQL92; write <> for 'not equal'" in run(*where, "TAGS != 'paid'").stderr
    assert "Give one of them" in run(*where, "TAGS = 'paid'", "--tags", "paid").stderr


def test_tail_follows_until_ctrl_c_and_counts_messages(path: Path) -> None:
    with tailing(path, "orders", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        for body in ("one", "two"):
            succeed("send", path, "orders", body)
            assert tail.stdout.readline() == f"{body}\n"
        tail.send_signal(signal.SIGINT)
        assert tail.wait(TIMEOUT_SECONDS) == 130
        assert tail.stderr.read() == "Interrupted: 2 messages of orders printed\n"


def test_tail_ends_when_the_directory_changes_owner(path: Path) -> None:
    with tailing(path, "orders", "--from", "earliest") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        succeed("send", path, "orders", "one")
        assert tail.stdout.readline() == "one\n"
        with broker(path) as theirs:
            theirs.put(Message("orders", b"two"))
            assert tail.wait(TIMEOUT_SECONDS) == 1
            assert "the directory changed owner" in tail.stderr.read()
            with tailing(path, "orders", "--from", "earliest") as again:
                assert again.stdout is not None
                assert [again.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
                theirs.put(Message("orders", b"three"))
                assert again.stdout.readline() == "three\n"


def test_tail_latest_skips_existing_messages(path: Path) -> None:
    succeed("send", path, "orders", "old")
    with tailing(path, "orders", "--count", 1) as tail:
        assert tail.stdout is not None
        # It is not visible when tail has chosen its start, so send until it prints a message.
        while tail.poll() is None:
            succeed("send", path, "orders", "new")
        assert tail.stdout.read() == "new\n"


@pytest.fixture
def numbered(path: Path) -> tuple[Path, list[int]]:
    """A store with the messages 0 to 11, alternating between two queues, in ascending store times; and these times."""
    times: list[int] = []
    with MessageStore.open(path) as store:
        for number in range(12):
            another_millisecond()
            result = store.put(Message("orders", f"{number}".encode(), tags="even" if number % 4 < 2 else "odd"))
            times.append(store.message_by_id(result.msg_id).store_timestamp)
    another_millisecond()
    return path, times


def numbers(path: Path, *arguments: object) -> list[int]:
    """Return the output of `tail`, which must end by itself."""
    return [int(line) for line in succeed("tail", path, "orders", *arguments).splitlines()]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--until-end"], range(12)),
        (["-n", 3], range(9, 12)),
        (["-n", 100], range(12)),
        (["-n", 10**30], range(12)),
        (["-n", 2, "--tags", "odd"], range(10, 12)),
        (["-n", 3, "--tags", "even"], [5, 8, 9]),
        (["--to", "latest"], range(12)),
        (["--to", 2], range(4)),
        (["--to", 100], range(12)),
        (["--from", 2, "--to", 3], range(4, 6)),
        (["--from", 3, "--to", 1], []),
        (["--from", "latest", "--until-end"], []),
        (["--from", "10m", "--until-end"], range(12)),
        (["--from", "0s", "--until-end"], []),
        (["--from", "2100-01-01", "--until-end"], []),
        (["--to", "2001-01-01T06:00+01:00"], []),
        (["--to", 4, "-n", 3], range(5, 8)),
        (["--until-end", "--count", 5], range(5)),
        (["--until-end", "--count", 10**30], range(12)),
        (["--from", 4, "-f", "--count", 3], range(8, 11)),
        (["-n", 3, "-f", "--count", 2], range(9, 11)),
    ],
)
def test_tail_prints_the_selected_range(
    numbered: tuple[Path, list[int]], arguments: list[object], expected: Sequence[int]
) -> None:
    assert numbers(numbered[0], *arguments) == list(expected)


def test_tail_prints_a_range_of_times(numbered: tuple[Path, list[int]]) -> None:
    path, times = numbered
    begin, end = (datetime.fromtimestamp(times[number] / 1000, UTC).isoformat() for number in (3, 8))
    assert numbers(path, "--from", begin, "--to", end) == [3, 4, 5, 6, 7]
    assert numbers(path, "--from", begin, "--to", end, "--queue", 0) in ([3, 5, 7], [4, 6])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--from", "yesterday"],
            "'yesterday' is not a place in a topic. Give earliest, latest, an offset (17), an age",
        ),
        (["--to", "5", "--follow"], "--to and --follow exclude each other"),
        (["--form", "1"], "--form"),
    ],
)
def test_wrong_usage_is_one_line(path: Path, arguments: list[str], words: str) -> None:
    done = run("tail", path, "orders", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert words in done.stderr
    assert done.stderr.endswith("; see 'pyspark-mq tail --help'\n")


@pytest.mark.parametrize("arguments", [["--until-end"], ["--from", "earliest"]])
def test_closed_pipe_ends_tail(path: Path, arguments: list[str]) -> None:
    succeed("send", path, "orders", *map(str, range(5)))
    with started("tail", path, "orders", *arguments) as tail:
        head = subprocess.run(["head", "-n", "2"], stdin=tail.stdout, capture_output=True, timeout=TIMEOUT_SECONDS)
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.close()
        assert (tail.wait(TIMEOUT_SECONDS), tail.stderr.read()) == (0, b"")
    assert len(head.stdout.split()) == 2


def test_closed_pipe_ends_tail_during_output(path: Path) -> None:
    succeed("send", path, "orders", stdin=b"\n".join(b"x" * 100 for _ in range(20_000)))
    with started("tail", path, "orders", "--until-end", "--json") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert (tail.wait(TIMEOUT_SECONDS), tail.stderr.read()) == (0, b"")


@pytest.fixture
def unreadable(path: Path) -> Path:
    """Queue 0 has "good", a body flagged as compressed that is not, and "more"."""
    with MessageStore.open(path) as store:
        messages = [Message("orders", body, queue_id=0) for body in (b"good", b"poison", b"more")]
        mark(store, store.put_many(messages)[1].physical_offset, 0x301)
    return path


def test_corrupt_body_is_skipped(unreadable: Path) -> None:
    done = run("tail", unreadable, "orders", "--until-end")
    assert (done.returncode, done.stdout) == (0, "good\nmore\n")
    assert re.fullmatch(r"queue 0, offset 1: a zlib body of 6 bytes does not decompress: .*\n", done.stderr)
    lines = [json.loads(line) for line in succeed("tail", unreadable, "orders", "--until-end", "--json").splitlines()]
    assert [line.get("body") for line in lines] == ["good", None, "more"]
    assert lines[1]["bodyError"].startswith("a zlib body of 6 bytes does not decompress")
    assert "bodyError" not in lines[0]


def test_corrupt_body_is_an_error_on_request(unreadable: Path) -> None:
    for as_json in ([], ["--json"]):
        done = run("tail", unreadable, "orders", "--until-end", "--unreadable", "error", *as_json)
        assert done.returncode == 1
        assert len(done.stdout.splitlines()) == 1
        assert re.search(r"queue 0, offset 1 .*does not decompress.*", done.stderr)


def test_send_refuses_a_line_without_a_body(unreadable: Path) -> None:
    lines = succeed("tail", unreadable, "orders", "--until-end", "--json").encode()
    done = run("send", unreadable, "orders", "--json", stdin=lines)
    assert "line 2: give exactly one of the fields 'body' and 'bodyBase64' (1 sent to orders)" in done.stderr
