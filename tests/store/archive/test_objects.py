from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from store import ConfigError, NoArchive, ObjectsUnavailable
from store.archive.archive_log import ArchiveAddress
from store.archive.of_store import remembered
from store.client.log_kinds import address_at
from store.model.log_protocol import Queue
from store.objects.any_objects import objects_at
from store.objects.urls import local_path
from tests.filled import Filled


class Bad(MemoryFileSystem):  # type: ignore[misc]
    protocol = "bad"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    wrong: list[Exception | None] = []  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        if Bad.wrong and (error := Bad.wrong.pop(0)):
            raise error
        torn = bool(Bad.wrong) and "COMMIT_LOG" in path
        super().pipe_file(path, value[:-1] if torn else value, mode, **more)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("bad://").strip("/")


@pytest.fixture
def wrong() -> Iterator[list[Exception | None]]:
    fsspec.register_implementation("bad", Bad, clobber=True)
    Bad.store.clear()
    Bad.wrong = []
    yield Bad.wrong
    Bad.wrong = []


class ReadTimeoutError(OSError): ...


def test_missing_permission_names_the_url(filled: Filled, wrong: list[Exception | None]) -> None:
    wrong.append(PermissionError("secret words"))
    with pytest.raises(ObjectsUnavailable, match=r"bad://bucket/.*: no permission.*give the credentials") as caught:
        filled.store.archive("bad://me:hidden@bucket")
    assert "hidden" not in str(caught.value)
    assert "secret" not in str(caught.value)


class NoCredentialsError(Exception): ...


def test_error_of_missing_credentials_has_a_remedy(filled: Filled, wrong: list[Exception | None]) -> None:
    wrong.append(NoCredentialsError("Unable to locate credentials"))
    with pytest.raises(ObjectsUnavailable, match=r"Unable to locate credentials; give .* in the environment, or as"):
        filled.store.archive("bad://archive")


def test_timeouts_are_retried_before_they_are_an_error(filled: Filled, wrong: list[Exception | None]) -> None:
    wrong += [TimeoutError(), TimeoutError()]
    assert filled.store.archive("bad://bucket").messages == 8
    filled.put("orders", 0, 1)
    wrong += [ReadTimeoutError(), TimeoutError(), ReadTimeoutError()]
    with pytest.raises(ObjectsUnavailable, match="no answer in time; try again"):
        filled.store.archive()
    wrong.clear()
    assert filled.store.archive().messages == 1


def test_torn_write_does_not_count(filled: Filled, wrong: list[Exception | None]) -> None:
    wrong += [None] * 9
    with pytest.raises(ObjectsUnavailable, match="the bytes read back differ from the written ones"):
        filled.store.archive("bad://bucket")
    with pytest.raises(NoArchive, match="the first archiving into this place was not completed"):
        ArchiveAddress("bad://bucket").open()
    wrong.clear()
    assert filled.store.archive("bad://bucket").messages == 8


class Tagged(MemoryFileSystem):  # type: ignore[misc]
    """Reports changes of objects as an object store does. read: the objects that were read as a whole."""

    protocol = "tagged"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    read: list[str] = []  # noqa: RUF012

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **more)
        return found | ({"ETag": zlib.crc32(super().cat_file(path))} if found["type"] == "file" else {})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        if start is None:
            Tagged.read.append(path)
        return bytes(super().cat_file(path, start, end, **more))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("tagged://").strip("/")


def test_metadata_is_read_once_per_change(filled: Filled) -> None:
    fsspec.register_implementation("tagged", Tagged, clobber=True)
    filled.store.archive("tagged://bucket")
    orders = Queue("orders", 0)
    with ArchiveAddress("tagged://bucket").open() as log:
        for count in (3, 4, 5):
            Tagged.read.clear()
            assert [log.bounds([orders])[orders].max_offset for _ in range(5)] == [count] * 5
            assert len(Tagged.read) == 1
            filled.put("orders", 0, 1)
            filled.store.archive()


def test_wrong_urls_are_refused() -> None:
    with pytest.raises(ObjectsUnavailable, match="nowhere://x: fsspec cannot open this URL"):
        objects_at("nowhere://x", {})
    with pytest.raises(ConfigError, match="no JSON"):
        ArchiveAddress("memory://x", "{").open()


def test_url_with_one_slash_is_refused(filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("s3:/key:hush@bucket/x", "S3A:/bucket", "simplecache::gs:/bucket", "File:/x", "file:s3:/x"):
        for use in (filled.store.archive, address_at):
            with pytest.raises(
                ConfigError, match=r":/\.\.\.: a URL has two slashes after its scheme. To name a folder"
            ) as told:
                use(url)
            assert "hush" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == [Path(filled.path).name]
    for path in ("./s3:/x", f"{tmp_path}/s3:/x", "s3:x", "c:/x"):
        assert local_path(path) == str(tmp_path / path)
    filled.store.archive("./s3:/x")
    assert remembered(Path(filled.path)).url == str(tmp_path / "s3:/x")


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_caching_file_systems_are_refused(cache: str) -> None:
    """Stale cached metadata would be continued, and the objects that it does not list would be lost."""
    for url, options in ((f"{cache}::memory://x", {}), (f"{cache}://x", {"target_protocol": "memory"})):
        with pytest.raises(ObjectsUnavailable, match="a cache may return an old copy"):
            objects_at(url, options)


def test_a_missing_package_is_named() -> None:
    program = "import sys; sys.modules['s3fs'] = None; import store.archive.archive_log as a; a.ArchiveAddress('s3://b').open()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "s3://b: the package for s3:// is not installed. Install it: pip install 'pyspark-mq[s3]'" in ended.stderr
