import errno
import os
import signal
import subprocess
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_mq.cli.export import file
from store import Message, MessageStore, StoreConfig
from tests.pyspark_mq.cli.process import SCRIPT, TIMEOUT_SECONDS, run, started, succeed
from tests.restarted import delete_as_broker
from tests.store.format.test_inflating import mark
from tests.waiting import until


@pytest.fixture
def filled_path(path: Path) -> Path:
    with MessageStore.open(path) as store:
        store.put_many(
            [Message("orders", b"%d" % n, tags="AB"[n % 2], queue_id=n % 2, properties={"n": f"{n}"}) for n in range(9)]
        )
    return path


def read(file: Path) -> pa.Table:
    return pq.read_table(file) if file.suffix == ".parquet" else pa.ipc.open_file(file).read_all()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_export_writes_a_whole_topic(filled_path: Path, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"all.{kind}"
    assert succeed("export", filled_path, "orders", "--to", kind, "-o", file) == f"9 messages of orders in {file}\n"
    table = read(file)
    assert [int(body) for body in table["body"].to_pylist()] == [0, 2, 4, 6, 8, 1, 3, 5, 7]
    assert dict(table["properties"][1].as_py())["n"] == "2"
    with MessageStore.open(filled_path, read_only=True) as store:
        assert table.equals(store.to_arrow("orders", table.column_names).read_all())
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_export_writes_the_selected_part(filled_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "part.parquet"
    where = ("--from", 1, "--until", 4, "--tags", "A", "--columns", "queueOffset,body")
    succeed("export", filled_path, "orders", "--to", "parquet", "-o", file, *where)
    assert read(file).to_pylist() == [{"queueOffset": n, "body": b"%d" % (2 * n)} for n in (1, 2, 3)]
    where = ("--sql", "n BETWEEN 3 AND 5 AND TAGS = 'A'", "--columns", "body")
    succeed("export", filled_path, "orders", "--to", "parquet", "-o", file, "--force", *where)
    assert read(file).to_pylist() == [{"body": b"4"}]
    succeed("export", filled_path, "orders", "--to", "parquet", "-o", file, "--force", "--from", "2100-01-01")
    assert read(file).num_rows == 0


def test_messages_deleted_by_retention_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with MessageStore.open(path, config=StoreConfig(mappedFileSizeCommitLog=4096)) as store:
        store.create_topic("orders", 1)
        for _ in range(40):
            store.put(Message("orders", bytes(200)))
        store.clean(forced=True)
        first = store.min_offset("orders", 0)
    file = tmp_path / "part.arrow"
    where = ("export", path, "orders", "--to", "arrow", "-o", file)
    for part in (("--from", 0), ("--from", 1, "--until", 3)):
        done = run(*where, *part)
        assert done.returncode == 1
        assert f"was deleted. Begin at offset {first}" in done.stderr
        assert not file.exists()
    succeed(*where, "--from", first)
    assert read(file).num_rows == 40 - first


def test_json_lines_equal_tails(filled_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    succeed("export", filled_path, "orders", "--to", "jsonl", "-o", file)
    tailed = succeed("tail", filled_path, "orders", "--until-end", "--json")
    assert sorted(file.read_text().splitlines()) == sorted(tailed.splitlines())


def test_export_writes_arrow_into_a_pipe(filled_path: Path) -> None:
    done = subprocess.run(
        [SCRIPT, "export", filled_path, "orders", "--to", "arrow", "-o", "-"],
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert pa.ipc.open_stream(done.stdout).read_all().num_rows == 9
    assert done.stderr == b""


def test_named_pipe_is_not_replaced(filled_path: Path, tmp_path: Path) -> None:
    """The same holds for a device: replacing it would remove it from /dev."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        succeed("export", filled_path, "orders", "--to", "jsonl", "-o", pipe, "--force")
        assert os.read(reading, 1 << 16).count(b"\n") == 9
    finally:
        os.close(reading)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["orders", "--to", "parquet", "-o", "{there}"],
            1,
            "the file exists. Name another file, or replace it with --force",
        ),
        (["nowhere", "--to", "parquet", "-o", "{new}"], 1, "opic 'nowhere' does not exist"),
        (["orders", "--to", "csv"], 2, "'csv' is not one of"),
        (["orders", "--to", "jsonl", "--columns", "body"], 2, "--columns is for parquet and arrow"),
        (
            ["orders", "--to", "arrow", "--columns", "value"],
            2,
            "Column 'value' does not exist; there are topic, queueId",
        ),
        (["orders", "--to", "arrow", "--columns", "body,body"], 1, "columns named twice: body; name each once"),
        (
            ["orders", "--to", "parquet", "-o", "{missing}/x"],
            1,
            "missing/x: the folder {missing} does not exist. Create it",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    filled_path: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    (tmp_path / "there").write_text("mine")
    names = {name: str(tmp_path / name) for name in ("there", "new", "missing")}
    done = run("export", filled_path, *(argument.format(**names) for argument in arguments))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert words.format(**names) in done.stderr
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("force", [False, True])
def test_file_created_concurrently_is_not_replaced_without_force(tmp_path: Path, *, force: bool) -> None:
    target = tmp_path / "there"

    def write() -> None:
        with file(str(target), target, force=force) as out:
            out.write(b"exported")
            target.write_text("mine")

    if force:
        write()
    else:
        with pytest.raises(click.ClickException, match="created this file during the export, so nothing was written"):
            write()
    assert target.read_text() == ("exported" if force else "mine")
    assert list(tmp_path.iterdir()) == [target]


def test_file_and_its_name_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, flushed, fsync = tmp_path / "all.jsonl", list[tuple[Path, bool]](), os.fsync

    def noted(fd: int) -> None:
        flushed.append((Path(os.readlink(f"/proc/self/fd/{fd}")), target.exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    with file(str(target), target, force=False) as out:
        out.write(b"exported")
    assert flushed[-1] == (tmp_path, True)


def test_system_error_names_the_requested_file(tmp_path: Path) -> None:
    target = tmp_path / "all.jsonl"
    with pytest.raises(OSError, match=f"No space left on device: '{target}'"), file(str(target), target, force=False):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_export_does_not_mix_a_topic_with_its_recreation(path: Path, tmp_path: Path) -> None:
    """Queues are exported one after the other; in between another topic is archived under that name."""
    archive = str(tmp_path / "archive")

    def put(life: bytes) -> None:
        store.put_many(Message("orders", life + b"." * 4000, queue_id=n % 2) for n in range(100))

    with MessageStore.open(path) as store:
        put(b"old")
        store.archive(archive)
        with started("export", archive, "orders", "--to", "jsonl", "-o", "-") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines = [process.stdout.readline()]
            delete_as_broker(path, "orders")
            store.create_topic("orders", 2)
            put(b"new")
            assert store.archive(forget=["orders"]).forgotten == 100
            lines += process.stdout.readlines()
            assert b"were deleted from the archive" in process.stderr.read()
            assert process.wait() == 1
    assert b'"body": "new' not in b"".join(lines)


def test_ctrl_c_leaves_no_partial_file(path: Path, tmp_path: Path) -> None:
    with MessageStore.open(path) as store:
        store.append_table("orders", pa.table({"body": ["x"] * 400_000}))
    folder = tmp_path / "out"
    folder.mkdir()
    with started("export", path, "orders", "--to", "jsonl", "-o", folder / "all.jsonl") as export:
        until(lambda: any(file.stat().st_size for file in folder.iterdir()))
        export.send_signal(signal.SIGINT)
        _, err = export.communicate(timeout=TIMEOUT_SECONDS)
    assert (export.returncode, err.decode()) == (130, f"Interrupted: nothing was written to {folder / 'all.jsonl'}\n")
    assert list(folder.iterdir()) == []


def test_corrupt_body_is_an_error_or_null(path: Path, tmp_path: Path) -> None:
    with MessageStore.open(path) as store:
        results = store.put_many([Message("orders", body, queue_id=0) for body in (b"good", b"poison", b"more")])
        mark(store, results[1].physical_offset, 0x301)
    file = tmp_path / "orders.parquet"
    done = run("export", path, "orders", "--to", "parquet", "-o", file)
    assert (done.returncode, file.exists()) == (1, False)
    assert "queue 0, offset 1" in done.stderr
    succeed("export", path, "orders", "--to", "parquet", "-o", file, "--unreadable", "null")
    table = read(file)
    assert table["body"].to_pylist() == [b"good", None, b"more"]
    assert [reason is None for reason in table["bodyError"].to_pylist()] == [True, False, True]
