"""Which kind of log a path names."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_mq.errors import OptionError
from pyspark_mq.options.addresses import address_of
from store import ConfigError
from store.archive.log import ArchiveAddress
from store.directory.directory_log import DirectoryAddress, TieredDirectoryAddress
from tests.filled import Filled


def test_a_store_and_the_archive_that_it_remembers(filled: Filled, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    assert address_of({"path": filled.path}) == DirectoryAddress(filled.path)
    assert address_of({"path": filled.path, "archive": "s3://b/mq"}) == TieredDirectoryAddress(filled.path, "s3://b/mq")
    filled.store.archive(archive)
    assert address_of({"path": filled.path}) == TieredDirectoryAddress(filled.path, archive)
    assert address_of({"path": filled.path, "archive": ""}) == DirectoryAddress(filled.path)


def test_an_archive(filled: Filled, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    filled.store.archive(archive)
    (cluster,) = (tmp_path / "archive").iterdir()
    for path in (archive, f"file:{archive}", f"file://{archive}"):
        assert address_of({"path": path}) == ArchiveAddress(archive)
    assert address_of({"path": f"{cluster}/mq"}) == ArchiveAddress(f"{cluster}/mq")
    options = '{"anon": true}'
    address = address_of({"path": "s3://bucket/mq", "storageOptions": options})
    assert address == ArchiveAddress("s3://bucket/mq", options)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"accessKey": "me", "secretKey": "12345678"}, "accessKey goes with nameServer, for a RocketMQ cluster"),
        ({"useTls": "true"}, "useTls goes with nameServer"),
        ({"path": "s3://bucket/mq", "archive": "s3://bucket/other"}, "archive goes with the path of a store"),
        (
            {"path": "", "nameServer": "a:1", "archive": "s3://b/mq"},
            "archive does not go with nameServer: brokers keep",
        ),
    ],
)
def test_options_that_would_say_nothing(filled: Filled, more: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        address_of({"path": filled.path, **more})


@pytest.mark.parametrize("given", ["{", "[]", "anon=true"])
def test_storage_options_are_read_where_nothing_needs_them(filled: Filled, given: str) -> None:
    with pytest.raises(ConfigError, match=r"storage options are (no JSON|a JSON object)"):
        address_of({"path": filled.path, "storageOptions": given})
