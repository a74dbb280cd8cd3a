"""Where the driver and executors meet: what an object store must be able to do, and what is said where it is not."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import LedgerError
from pyspark_mq.shared_folders import shared_folders, why_not_shared
from pyspark_mq.source.ledger import Ledger, TaskName, TaskRecord
from store.any_log import Queue
from store.errors import CorruptStore
from tests.s3 import SECRET, WSGI, environment, new_bucket, s3_server

READER = "a" * 32
TASK = TaskName(READER, 0, 0)
QUEUE = Queue("orders", 0)
REFUSAL = b"<Error><Code>AccessDenied</Code><Message>no right to write</Message></Error>"


class Altered:
    """An S3 server whose conditional writes are not what they should be."""

    def __init__(self, app: WSGI) -> None:
        self._app = app
        self.conditional = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if "HTTP_IF_NONE_MATCH" in environ:
            self.conditional += 1
            return self.put(environ, start_response)
        return self._app(environ, start_response)

    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raise NotImplementedError


class HeedsNoCondition(Altered):
    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        del environ["HTTP_IF_NONE_MATCH"]
        return self._app(environ, start_response)


class LosesAnswers(Altered):
    """That to the first conditional write, which was carried out."""

    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.conditional > 1:
            return self._app(environ, start_response)
        list(self._app(environ, lambda *_: None))
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []


class RefusesInOtherWords(Altered):
    """412 without the condition that failed, as some servers do."""

    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *more: object) -> object:
            plain = [(name, value) for name, value in headers if name.lower() != "content-length"]
            return start_response(status, plain if status.startswith("412") else headers, *more)

        answer = b"".join(self._app(environ, start))
        return [answer.replace(b"<Condition>If-None-Match</Condition>", b"")]


class LetsNobodyWrite(Altered):
    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("403 Forbidden", [("Content-Length", str(len(REFUSAL)))])
        return [REFUSAL]


@pytest.fixture
def altered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    with s3_server(request.param) as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        yield new_bucket()


@pytest.mark.parametrize("altered", [HeedsNoCondition], indirect=True)
def test_a_server_that_heeds_no_condition_is_refused(altered: str) -> None:
    with pytest.raises(LedgerError, match=r"s3://.*/ledger: cannot record .*a server that heeds If-None-Match, and a"):
        Ledger(f"{altered}/ledger").prepare(READER)


@pytest.mark.parametrize("altered", [LosesAnswers], indirect=True)
def test_a_record_whose_answer_is_lost_counts(altered: str) -> None:
    ledger = Ledger(f"{altered}/ledger")
    assert ledger.record(TASK, TaskRecord({QUEUE: 1})) == TaskRecord({QUEUE: 1})
    assert ledger.record(TASK, TaskRecord({QUEUE: 2})) == TaskRecord({QUEUE: 1})


@pytest.mark.parametrize("altered", [RefusesInOtherWords], indirect=True)
def test_a_refusal_in_other_words_is_one(altered: str) -> None:
    ledger = Ledger(f"{altered}/ledger")
    ledger.prepare(READER)
    ledger.record(TASK, TaskRecord({QUEUE: 1}))
    assert ledger.record(TASK, TaskRecord({QUEUE: 2})) == TaskRecord({QUEUE: 1})


@pytest.mark.parametrize("altered", [LetsNobodyWrite], indirect=True)
def test_who_may_not_write_is_told(altered: str) -> None:
    with pytest.raises(LedgerError, match=r"no right to write.*ledgerPath to a directory .* or to a place on S3"):
        Ledger(f"{altered}/ledger").record(TASK, TaskRecord({QUEUE: 1}))


def test_no_such_bucket(bucket: str) -> None:
    ledger = Ledger(f"{bucket}-not/ledger")
    with pytest.raises(LedgerError, match=rf"{bucket}-not/ledger: cannot record .*bucket does not exist"):
        ledger.prepare(READER)
    assert ledger.find(TASK, [QUEUE]) is None


def test_no_secret_is_handed_on(bucket: str) -> None:
    ledger = Ledger(f"{bucket}/ledger")
    ledger.prepare(READER)
    assert SECRET.encode() not in pickle.dumps(ledger)
    assert SECRET not in f"{ledger!r} {ledger} {shared_folders(bucket)!r}"
    again: Ledger = pickle.loads(pickle.dumps(ledger))
    assert again.record(TASK, TaskRecord({QUEUE: 1})) == ledger.find(TASK, [QUEUE])


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from pyspark_mq.source.ledger import Ledger\n"
        f"Ledger('s3://bucket/ledger').prepare('{READER}')"
    )
    run = [sys.executable, "-c", program]
    ended = subprocess.run(run, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert "s3://bucket/ledger: cannot record" in ended.stderr
    assert "fsspec needs s3fs for it: pip install 'pyspark-mq[s3]'" in ended.stderr


def test_where_nobody_else_sees_it_or_creating_is_not_safe() -> None:
    assert why_not_shared("s3://bucket/ledger") is None
    assert why_not_shared("GS://bucket") is None
    with pytest.raises(LedgerError, match=r"ftp:// cannot make a file only if it is not there"):
        Ledger("ftp://host/ledger").record(TASK, TaskRecord({QUEUE: 1}))
    for url in ("memory://x", "hdfs://name/x", "simplecache::s3://bucket/x", "https://host/x"):
        why = why_not_shared(url)
        assert why is not None
        assert "cannot make a file only if it is not there" in why
    assert "password" in str(why_not_shared("s3://key:hush@bucket/x"))
    assert "names no bucket" in str(why_not_shared("s3:///x"))
    for url in ("s3://[bucket/x", "s3://key:hush@bucket\u2100/x"):
        assert str(why_not_shared(url)).startswith("it is no URL: between :// and the next slash stands what no bucket")


def test_a_large_file_is_not_read(bucket: str) -> None:
    folders = shared_folders(bucket)
    assert folders.create("f", "x", b"12345")
    assert folders.read("f", "x", 5) == b"12345"
    with pytest.raises(CorruptStore, match=rf"{bucket}/f/x: more than 4 bytes"):
        folders.read("f", "x", 4)
