from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from store import ConfigError, StoreError
from store.client.log_kinds import address_at
from store.model.errors import ObjectsUnavailable
from store.objects.any_objects import objects_at, translated
from store.objects.urls import local_path, secrets_of, why_not_shared, without_secrets
from store.upkeep.store_directory import StoreDirectory


def test_urls_of_local_directories_are_paths(tmp_path: Path) -> None:
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
        ("/data/a?token=hush", "/data/a?token=hush"),
        ("file:///data/a?token=hush", "file:///data/a?token=hush"),
        ("s3://bucket/what?", "s3://bucket/what?"),
        ("https://host/x?token=hush", "https://host/x"),
        ("https://host:8080/x?token=hush#end", "https://host:8080/x"),
        ("abfs://acc/x?sv=1&sig=hu/sh@x", "abfs://acc/x"),
        ("dir::https://host/x?token=hush", "dir::https://host/x"),
        ("sftp://me:pa/ss@host/x", "sftp://..."),
        ("sftp://me:pa/s@s@host/x@y", "sftp://..."),
        ("sftp://me:pa?ss@host/x", "sftp://..."),
        ("sftp://me:pa#ss@host/x", "sftp://..."),
        ("sftp://me:pa::ss@host/x", "sftp://..."),
        ("dir::sftp://me:pa/ss@host/x", "dir::sftp://..."),
        ("s3://key:hush@bucket\u2100/x", "s3://..."),
        ("file://me:hush@host/x", "file://host/x"),
    ],
)
def test_secrets_are_removed_from_urls(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
    left = shown.replace("://", "").replace("...", "")
    assert not any(secret in left for secret in secrets_of(url))


@pytest.mark.parametrize(
    "url", ["sftp://me:pa/ss@host/x", "https://host/x?token=hush", "s3://b/x?versionId=hush", "s3://k:p@b\u2100/x"]
)
def test_objects_at_refuses_urls_that_hide_a_secret(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        objects_at(url, {})
    assert without_secrets(url) in str(caught.value)
    assert not any(secret in str(caught.value) for secret in secrets_of(url))


@pytest.mark.parametrize("url", ["https://host/x?token=hush", "sftp://me:hu/sh@host/x", "file://me:hush@host/x"])
def test_no_error_of_a_store_shows_a_secret(url: str) -> None:
    for open_at in (StoreDirectory.at, lambda url: address_at(url).open()):
        with pytest.raises(StoreError) as caught:
            open_at(url)
        assert not any(secret in str(caught.value) for secret in secrets_of(url)), caught.value


def test_no_cause_of_an_error_shows_a_secret() -> None:
    """Tracebacks hide it, too. They include lines of this file, so the secret is built from two parts."""
    secret = "hush"[:2] + "hush"[2:]
    for kind in (partial(PermissionError, 13), TimeoutError, partial(OSError, 5), ValueError):
        for raised in (kind(secret), chained(KeyError("other"), kind(secret))):
            with pytest.raises(ObjectsUnavailable) as caught, translated("s3://bucket/x", [secret]):
                raise raised
            assert caught.value.__suppress_context__
            assert secret not in str(caught.value)
    with pytest.raises(FileNotFoundError) as missing, translated("s3://bucket/x", [secret]):
        raise FileNotFoundError(f"s3://key:{secret}@bucket/x")
    assert missing.value.__suppress_context__
    assert secret not in str(missing.value)


@pytest.mark.parametrize("error", [OSError("no route to namenode"), ValueError("no route to namenode")])
def test_error_names_its_cause(error: Exception) -> None:
    with (
        pytest.raises(ObjectsUnavailable, match=f"hdfs:///x: {type(error).__name__}: no route to namenode"),
        translated("hdfs:///x"),
    ):
        raise error


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_urls_that_cannot_be_shared_are_refused() -> None:
    assert why_not_shared("s3://bucket/ledger") is None
    assert why_not_shared("GS://bucket") is None
    for url in ("memory://x", "hdfs://name/x", "simplecache::s3://bucket/x", "https://host/x"):
        assert "cannot create a file atomically" in str(why_not_shared(url))
    for url in ("s3://key:hush@bucket/x", "s3://key:hush@bucket\u2100/x", "s3://bucket/x?token=hush"):
        assert "the URL has a password" in str(why_not_shared(url))
    assert "names no bucket" in str(why_not_shared("s3:///x"))
