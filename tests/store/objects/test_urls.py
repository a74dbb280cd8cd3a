"""URLs of directories and object stores: which are local, which can be shared, and no secret of one is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from store import ConfigError
from store.objects.any_objects import objects_at
from store.objects.urls import local_path, why_not_shared, without_secrets


def test_urls_of_local_directories(tmp_path: Path) -> None:
    for url in (f"file:{tmp_path}", f"file://{tmp_path}/", f"file://localhost{tmp_path}", f"LOCAL://{tmp_path}"):
        assert local_path(url) == str(tmp_path)
    assert local_path("memory://x") is None
    for url in ("file://elsewhere/x", "file://x", "file://"):
        with pytest.raises(ConfigError, match="a URL of a local directory begins with file:///"):
            objects_at(url, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:pass@bucket/a@b", "s3://bucket/a@b"),
        ("s3://key:pa@ss@bucket", "s3://bucket"),
        ("dir::s3://key:pass@bucket/x", "dir::s3://bucket/x"),
        ("ftp://user@host/x", "ftp://host/x"),
        ("/data/a@b", "/data/a@b"),
    ],
)
def test_secrets_are_removed_from_urls(url: str, shown: str) -> None:
    assert without_secrets(url) == shown


def test_urls_that_cannot_be_shared() -> None:
    assert why_not_shared("s3://bucket/ledger") is None
    assert why_not_shared("GS://bucket") is None
    for url in ("memory://x", "hdfs://name/x", "simplecache::s3://bucket/x", "https://host/x"):
        assert "cannot make a file only if it is not there" in str(why_not_shared(url))
    for url in ("s3://key:hush@bucket/x", "s3://key:hush@bucket\u2100/x"):
        assert "it has a password" in str(why_not_shared(url))
    assert "names no bucket" in str(why_not_shared("s3:///x"))
