"""`pyspark-mq archive`."""

from pathlib import Path

from store import MessageStore
from store.any_log import Queue
from store.archive.log import ArchiveAddress
from tests.filled import Filled
from tests.pyspark_mq.cli.process import run, succeed


def test_archive_and_archive_again(filled: Filled, tmp_path: Path) -> None:
    assert "name the URL to archive to" in run("archive", filled.path).stderr
    assert succeed("archive", filled.path, "--to", tmp_path / "archive", "--older-than", "1h").startswith("archived 0 ")
    assert succeed("archive", filled.path).startswith("archived 8 messages, ")
    filled.put("orders", 0, 1)
    assert succeed("archive", filled.path, "--topic", "orders").startswith("archived 1 messages, ")
    with ArchiveAddress(str(tmp_path / "archive")).open() as log:
        assert log.bounds([Queue("orders", 0)]) == {Queue("orders", 0): (0, 4)}


def test_what_is_no_age(filled: Filled) -> None:
    assert "'soon' is no age: give 90s, 10m, 2h or 3d" in run("archive", filled.path, "--older-than", "soon").stderr


def test_restore(filled: Filled, tmp_path: Path) -> None:
    succeed("archive", filled.path, "--to", tmp_path / "archive")
    assert succeed("restore", tmp_path / "archive", tmp_path / "new") == "restored 8 messages\n"
    assert "is there; name a directory that is not" in run("restore", tmp_path / "archive", tmp_path / "new").stderr
    with MessageStore.open(tmp_path / "new", create=False, read_only=True) as store:
        assert store.offsets("orders", 1) == (0, 5)
