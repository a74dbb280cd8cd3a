from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from store import CorruptSegment, NoArchive, ObjectsUnavailable
from store.archive.archive_log import ArchiveAddress
from store.model.log_protocol import Queue, QueueRange
from tests.filled import Filled
from tests.logs.archives import ArchivedStore, archived
from tests.logs.conformance import LogTests
from tests.s3 import SECRET


@pytest.fixture
def options(s3_endpoint: str) -> dict[str, Any]:
    return {"key": "somebody", "secret": SECRET, "endpoint_url": s3_endpoint}


@pytest.fixture
def bucket(options: dict[str, Any]) -> str:
    import s3fs

    name = f"b{uuid4().hex}"
    s3fs.S3FileSystem(**options).mkdir(name)
    return name


class TestOnS3(LogTests):
    @pytest.fixture
    def making(self, tmp_path: Path, bucket: str, options: dict[str, Any]) -> Iterator[ArchivedStore]:
        with archived(tmp_path, f"s3://{bucket}/mq", options) as it:
            yield it


def test_missing_archive_and_bucket_are_named(filled: Filled, bucket: str, options: dict[str, Any]) -> None:
    address = ArchiveAddress(f"s3://{bucket}/mq", json.dumps(options))
    with pytest.raises(
        NoArchive, match=f"s3://{bucket}/mq: there is no archive here. Correct the URL, or archive a store there"
    ):
        address.open()
    with pytest.raises(ObjectsUnavailable, match=r"s3://no-such-bucket/mq.*the bucket does not exist"):
        filled.store.archive("s3://no-such-bucket/mq", storage_options=options)


def test_truncated_object_is_named(filled: Filled, bucket: str, options: dict[str, Any]) -> None:
    import s3fs

    filled.put("orders", 0, 50, 1000)
    filled.store.archive(f"s3://{bucket}/mq", storage_options=options)
    files = s3fs.S3FileSystem(**options)
    (path,) = [each for each in files.find(bucket) if "/orders/0/COMMIT_LOG/" in each]
    whole = files.cat_file(path)
    with ArchiveAddress(f"s3://{bucket}/mq", json.dumps(options)).open() as log:
        for kept in (len(whole) // 2, 10):
            files.pipe_file(path, whole[:kept])
            with pytest.raises(CorruptSegment, match="this object ends before byte"):
                list(log.messages(QueueRange(Queue("orders", 0), 50, 53)))


def test_unreachable_server_is_named(filled: Filled, options: dict[str, Any]) -> None:
    nobody = {**options, "endpoint_url": "http://127.0.0.1:1", "config_kwargs": {"retries": {"max_attempts": 1}}}
    with pytest.raises(ObjectsUnavailable, match="s3://bucket/mq"):
        filled.store.archive("s3://bucket/mq", storage_options=nobody)


def test_address_shows_no_secrets(options: dict[str, Any]) -> None:
    address = ArchiveAddress("s3://me:hidden@bucket/mq", json.dumps(options))
    for text in (str(address), repr(address)):
        assert SECRET not in text
        assert "hidden" not in text
        assert "s3://bucket/mq" in text


def test_library_error_does_not_show_a_secret_of_the_url(options: dict[str, Any]) -> None:
    with pytest.raises(ObjectsUnavailable, match="s3://bucket/mq") as raised:
        ArchiveAddress(f"s3://me:{SECRET}@bucket/mq", json.dumps(options)).open()
    assert SECRET not in "".join(traceback.format_exception(raised.value, chain=True))
