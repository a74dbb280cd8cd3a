from __future__ import annotations

import re

import pytest

from pyspark_mq.errors import OptionError
from pyspark_mq.options.sink import Guarantee, WriteOptions, is_for_writing
from store import ReadOnlyStore
from store.directory.directory_log import DirectoryAddress

BASE = {"path": "/data/mq", "topic": "orders"}


def test_defaults_are_set() -> None:
    assert WriteOptions.parse(BASE) == WriteOptions(
        address=DirectoryAddress("/data/mq"),
        topic="orders",
        guarantee=Guarantee.EXACTLY_ONCE,
        given_staging_path=None,
        producer_group=None,
    )


def test_staging_and_commits_are_beside_the_log() -> None:
    beside = WriteOptions.parse(BASE)
    assert (beside.staging_path, str(beside.commits_path)) == ("/data/mq/staging", "/data/mq/commits")
    named = WriteOptions.parse({**BASE, "stagingPath": "/fast"})
    assert (named.staging_path, str(named.commits_path)) == ("/fast", "/data/mq/commits")
    in_a_bucket = WriteOptions.parse({**BASE, "stagingPath": "s3://bucket/x"})
    assert (in_a_bucket.staging_path, str(in_a_bucket.commits_path)) == ("s3://bucket/x", "/data/mq/commits")


def test_names_ignore_case_and_sparks_options_are_skipped() -> None:
    given = {"path": "/data/mq", "STAGINGPATH": "file:///fast", "Delivery": "Exactly-Once"}
    options = WriteOptions.parse({**given, "checkpointlocation": "/c", "queryname": "q"})
    assert options.topic is None
    assert options.staging_path == "/fast"


def test_an_archive_is_not_written() -> None:
    with pytest.raises(
        ReadOnlyStore, match=r"s3://bucket/mq: an archive is read-only. To write, create a store from it"
    ):
        WriteOptions.parse({"path": "s3://bucket/mq", "topic": "orders"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tpoic": "orders"}, "Unknown option 'tpoic': did you mean topic?"),
        (
            {"subscribe": "orders"},
            "subscribe is for reading: name the topic in the option topic. Options of a write: path",
        ),
        ({"startingOffsets": "latest"}, "startingOffsets is for reading: remove it"),
        ({"delivery": "twice"}, "delivery takes exactly-once or at-least-once, got 'twice'"),
        (
            {"topic": "a,b"},
            "only letters, digits, '%', '|', '_' and '-' are allowed. To write several topics, remove the option",
        ),
        (
            {"topic": "rmq_sys_SPARK_COMMITS"},
            "rmq_sys_SPARK_COMMITS is an internal topic of the store",
        ),
        ({"stagingPath": "hdfs://name/x"}, "stagingPath takes a directory that the driver and all executors see"),
        ({"producerGroup": "a b"}, "producerGroup: group 'a b': only letters"),
        ({"producerGroup": "a", "delivery": "at-least-once"}, "producerGroup is for delivery=exactly-once"),
        ({"stagingPath": "/a", "delivery": "at-least-once"}, "stagingPath is for delivery=exactly-once"),
        ({"path": ""}, "The log is not named"),
    ],
)
def test_errors_name_the_remedy(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        WriteOptions.parse({**BASE, **given})


def test_producer_group_is_refused_for_streams() -> None:
    assert WriteOptions.parse(BASE).for_stream() == WriteOptions.parse(BASE)
    with pytest.raises(OptionError, match=r"producerGroup is for df\.write in foreachBatch"):
        WriteOptions.parse({**BASE, "producerGroup": "copier"}).for_stream()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"path": "/m", "topic": "t"}, True),
        ({"path": "/m", "DELIVERY": "exactly-once"}, True),
        ({"path": "/m", "subscribe": "t"}, False),
        ({"path": "/m", "subscribe": "t", "topic": "t"}, False),
        ({"path": "/m"}, False),
    ],
)
def test_views_for_insert_into_are_told_apart(options: dict[str, str], expected: bool) -> None:
    assert is_for_writing(options) is expected
