import json
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_mq.cli import main
from store import Message, MessageStore
from store.archive.archive_log import ArchiveAddress
from store.archive.of_store import alone, remembered
from store.model.log_protocol import Queue, QueueRange
from tests.filled import Filled
from tests.pyspark_mq.cli.process import run, succeed


def test_archive_adds_only_new_messages(filled: Filled, tmp_path: Path) -> None:
    assert "Name the URL to archive to" in run("archive", filled.path).stderr
    assert succeed("archive", filled.path, "--to", tmp_path / "archive", "--older-than", "1h").startswith("archived 0 ")
    assert succeed("archive", filled.path).startswith("archived 8 messages, ")
    assert "is not an age" in run("archive", filled.path, "--older-than", "9" * 400 + "d").stderr
    filled.put("orders", 0, 1)
    assert run("archive", f"file:{filled.path}", "--to", tmp_path / "archive", "--older-than", "1h").stderr == ""
    assert succeed("archive", filled.path, "--topic", "orders").startswith("archived 1 messages, ")
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert log.bounds([Queue("orders", 0)]) == {Queue("orders", 0): (0, 4)}


def test_watch_survives_a_missing_archive(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, wait = iter(range(3)), time.sleep

    def sleep(seconds: float) -> None:
        """Between the rounds, a file replaces the archive, then the archive is restored, then Ctrl-C arrives."""
        if seconds < 60:
            return wait(seconds)
        match next(rounds):
            case 0:
                (tmp_path / "archive").rename(tmp_path / "away")
                (tmp_path / "archive").touch()
            case 1:
                (tmp_path / "archive").unlink()
                (tmp_path / "away").rename(tmp_path / "archive")
                filled.put("orders", 0, 2)
            case _:
                raise KeyboardInterrupt
        return None

    monkeypatch.setattr(time, "sleep", sleep)
    done = run("archive", filled.path, "--to", tmp_path / "archive", "--watch")
    assert done.stdout.splitlines()[0].startswith("archived 8 messages")
    assert done.stdout.splitlines()[1].startswith("archived 2 messages")
    assert "Trying again in 60 seconds" in done.stderr
    assert "the next 'archive' continues" in done.stderr


def test_watch_waits_for_another_archiver(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, wait, other = iter(range(3)), time.sleep, ExitStack()

    def sleep(seconds: float) -> None:
        if seconds < 60:
            return wait(seconds)
        match next(rounds):
            case 0:
                filled.put("orders", 0, 2)
                other.enter_context(alone(Path(filled.path)))
            case 1:
                other.close()
            case _:
                raise KeyboardInterrupt
        return None

    monkeypatch.setattr(time, "sleep", sleep)
    done = run("archive", filled.path, "--to", tmp_path / "archive", "--watch")
    assert "another process is archiving this store. Wait for it, or stop it. Trying again in 60 seconds" in done.stderr
    assert done.stdout.splitlines()[1].startswith("archived 2 messages")
    assert done.returncode == 130


def test_queue_with_a_hole_is_forgotten_on_request(filled: Filled, tmp_path: Path) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    filled.put("orders", 0, 4)
    filled.store.delete_topic("orders")
    filled.store.create_topic("orders", 2)
    filled.put("orders", 0, 4)
    said = run("archive", filled.path).stderr
    assert "orders/0: the archive ends at offset 3, but the store begins at 7" in said
    assert "--forget TOPIC" in said
    assert succeed("archive", filled.path, "--forget", "orders").endswith("; forgot 3 messages\n")
    assert "topic nothing is not in the archive" in run("archive", filled.path, "--forget", "nothing").stderr
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert log.bounds([Queue("orders", 0)]) == {Queue("orders", 0): (7, 11)}


@pytest.mark.parametrize(("arguments", "answer", "left"), [((), "n\n", 3), ((), "y\n", 0), (("--yes",), "", 0)])
def test_forget_asks_at_a_terminal(
    filled: Filled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    answer: str,
    left: int,
) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    filled.store.delete_topic("orders")
    monkeypatch.setattr("pyspark_mq.cli.terminal.at_a_terminal", lambda: True)
    done = CliRunner().invoke(main, ["archive", filled.path, "--forget", "orders", *arguments], input=answer)
    assert ("Delete messages of orders from the archive? [y/N]" in done.stderr) == (not arguments)
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert sum(end - first for first, end in log.bounds([Queue("orders", 0)]).values()) == left


def test_watch_continues_although_a_queue_is_skipped(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    filled.put("orders", 0, 1)
    filled.store.delete_topic("orders")
    filled.store.create_topic("orders", 2)
    filled.store.create_topic("more", 1)
    rounds, wait = iter(range(2)), time.sleep

    def sleep(seconds: float) -> None:
        if seconds < 60:
            return wait(seconds)
        if next(rounds):
            raise KeyboardInterrupt
        filled.put("more", 0, 2)
        return None

    monkeypatch.setattr(time, "sleep", sleep)
    done = run("archive", filled.path, "--watch")
    assert done.stderr.count("Warning: ") == 2
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert log.bounds([Queue("more", 0)]) == {Queue("more", 0): (0, 2)}


def test_named_topics_are_remembered(filled: Filled, tmp_path: Path) -> None:
    filled.store.create_topic("more", 1)
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    done = run("archive", filled.path, "--topic", "orders")
    assert "Later runs archive orders. 'clean' no longer waits for other topics" in done.stderr
    filled.put("more", 0, 3)
    assert succeed("archive", filled.path).startswith("archived 0 messages")
    done = run("archive", filled.path, "--all-topics")
    assert done.stdout.startswith("archived 3 messages")
    assert "Later runs archive all topics\n" in done.stderr
    assert "Give one of them" in run("archive", filled.path, "--all-topics", "--topic", "more").stderr


def test_copy_to_another_place_is_not_remembered(filled: Filled, tmp_path: Path) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    filled.put("orders", 0, 2)
    done = run("archive", filled.path, "--to", tmp_path / "copy", "--topic", "orders")
    assert done.stdout.startswith("archived 10 messages")
    assert (
        f"This archive is a copy. Readers of {filled.path} continue with the archive {tmp_path / 'archive'}"
        in done.stderr
    )
    assert remembered(Path(filled.path)) == (str(tmp_path / "archive"), ())
    assert succeed("archive", filled.path).startswith("archived 2 messages")


def test_wrong_age_is_refused(filled: Filled) -> None:
    assert (
        "'soon' is not an age. Give one such as 90s, 10m, 2h or 3d"
        in run("archive", filled.path, "--older-than", "soon").stderr
    )


def test_restore_creates_a_store(filled: Filled, tmp_path: Path) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    assert succeed("restore", tmp_path / "archive", tmp_path / "new") == "restored 8 messages\n"
    assert "this path exists. Name a new directory" in run("restore", tmp_path / "archive", tmp_path / "new").stderr
    with MessageStore.open(tmp_path / "new", create=False, read_only=True) as store:
        assert store.offsets("orders", 1) == (0, 5)


def test_interrupted_restore_says_how_much_exists(
    filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    new, fsync = tmp_path / "new", os.fsync

    def interrupted(fd: int) -> None:
        if new.exists() or not is_done:
            raise KeyboardInterrupt
        fsync(fd)

    monkeypatch.setattr(os, "fsync", interrupted)
    for is_done in (False, True):
        said = f"{'all of it' if is_done else 'nothing'} is in {new}"
        assert run("restore", tmp_path / "archive", new).stderr == f"Interrupted: {said}\n"
        assert new.exists() == is_done


def test_restore_takes_a_range_of_times(filled: Filled, tmp_path: Path) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    assert succeed("restore", tmp_path / "archive", tmp_path / "new", "--from", "1h", "--to", "0s") == (
        "restored 8 messages\n"
    )
    assert succeed("restore", tmp_path / "archive", tmp_path / "none", "--to", "2013-01-31") == "restored 0 messages\n"
    said = run("restore", tmp_path / "archive", tmp_path / "other", "--from", "17").stderr
    assert "'17' is neither an age (10m, 2h, 3d) nor a time" in said


def test_archive_is_printed_like_a_store(filled: Filled, tmp_path: Path) -> None:
    shown = succeed("tail", filled.path, "orders", "--from", "earliest", "--until-end")
    assert len(shown.splitlines()) == 8
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    filled.put("orders", 0, 300, 1000)
    succeed("archive", filled.path)
    assert filled.store.clean(forced=True).log
    assert filled.store.min_offset("orders", 0) > 0
    for path in (filled.path, tmp_path / "archive"):
        printed = succeed("tail", path, "orders", "--from", "earliest", "--until-end")
        assert len(printed.splitlines()) == 308
        assert printed.startswith(shown.partition("\n")[0])


def test_commands_on_groups_refuse_an_archive(filled: Filled, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    succeed("archive", filled.path, "--to", archive)
    for command in (
        ("groups", "list", archive),
        ("groups", "show", archive, "billing"),
        ("groups", "reset", archive, "billing", "orders", "--to", "earliest", "--create"),
        ("topic", "list", archive),
        ("stats", archive),
    ):
        done = run(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            f"Error: {archive}: this is an archive, and this command needs a store's directory"
        )


def test_query_finds_archived_messages(filled: Filled, tmp_path: Path) -> None:
    filled.put("orders", 0, 300, 1000)
    filled.store.put(Message("orders", b"by its id", queue_id=0, properties={"UNIQ_KEY": "0A0B0C"}))
    filled.store.put(Message("orders", b"of a place", queue_id=0))
    filled.put("orders", 0, 300, 1000)
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    assert filled.store.clean(forced=True).log
    assert filled.store.min_offset("orders", 0) > 304
    for path in (filled.path, tmp_path / "archive"):
        lines = succeed("query", path, "orders", "--key", "k7", "--json").splitlines()
        assert [(row["queueId"], row["queueOffset"]) for row in map(json.loads, lines)] == [(0, 7)]
        assert "by its id" in succeed("query", path, "orders", "--id", "0A0B0C")
        assert "No message of topic orders has the key 'none'" in run("query", path, "orders", "--key", "none").stderr
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        (message,) = log.messages(QueueRange(Queue("orders", 0), 304, 305))
    assert "of a place" in succeed("query", tmp_path / "archive", "orders", "--id", message.msg_id)
    assert "has the id 'none'" in run("query", tmp_path / "archive", "orders", "--id", "none").stderr
    assert (
        "Topic 'nothing' does not exist. Existing topics: orders"
        in run("query", tmp_path / "archive", "nothing", "--key", "k").stderr
    )
    succeed("groups", "reset", filled.path, "readers", "orders", "--to", "earliest", "--create")
    assert filled.store.consumer_offset("readers", "orders", 0) == 0
    everything = sum(filled.store.max_offset("orders", queue_id) for queue_id in range(2))
    (lag,) = map(json.loads, succeed("groups", "list", filled.path, "--json").splitlines())
    assert lag == {"group": "readers", "topic": "orders", "lag": everything}
    assert f"\n{everything} messages behind" in succeed("groups", "show", filled.path, "readers")
