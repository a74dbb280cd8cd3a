from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.errors import LedgerError
from pyspark_mq.source.ledger import Ledger, TaskName, TaskRecord
from store.model.log_protocol import Queue
from tests.s3 import SECRET, WSGI, environment, new_bucket, s3_server

READER = "a" * 32
TASK = TaskName(READER, 0, 0)
QUEUE = Queue("orders", 0)
REFUSAL = b"<Error><Code>AccessDenied</Code><Message>no right to write</Message></Error>"


class Altered:
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
    """Loses the response to the first conditional write, after carrying it out."""

    def put(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.conditional > 1:
            return self._app(environ, start_response)
        list(self._app(environ, lambda *_: None))
        start_response("500 Internal Server Error", [("Content-Length", "0")])
        return []


class RefusesInOtherWords(Altered):
    """Answers 412 without naming the failed condition, as some servers do."""

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
def test_server_that_ignores_conditions_is_refused(altered: str) -> None:
    with pytest.raises(LedgerError, match=r"s3://.*/ledger: cannot record .*server ignores If-None-Match"):
        Ledger(f"{altered}/ledger").prepare(READER)


@pytest.mark.parametrize("altered", [LosesAnswers], indirect=True)
def test_record_counts_although_its_response_was_lost(altered: str) -> None:
    ledger = Ledger(f"{altered}/ledger")
    assert ledger.record(TASK, TaskRecord({QUEUE: 1})) == TaskRecord({QUEUE: 1})
    assert ledger.record(TASK, TaskRecord({QUEUE: 2})) == TaskRecord({QUEUE: 1})


@pytest.mark.parametrize("altered", [RefusesInOtherWords], indirect=True)
def test_refusal_without_a_named_condition_counts(altered: str) -> None:
    ledger = Ledger(f"{altered}/ledger")
    ledger.prepare(READER)
    ledger.record(TASK, TaskRecord({QUEUE: 1}))
    assert ledger.record(TASK, TaskRecord({QUEUE: 2})) == TaskRecord({QUEUE: 1})


@pytest.mark.parametrize("altered", [LetsNobodyWrite], indirect=True)
def test_missing_permission_is_an_error(altered: str) -> None:
    with pytest.raises(LedgerError, match=r"no permission.*ledgerPath to a directory .* or to an S3 URL"):
        Ledger(f"{altered}/ledger").record(TASK, TaskRecord({QUEUE: 1}))


def test_missing_bucket_is_an_error(bucket: str) -> None:
    ledger = Ledger(f"{bucket}-not/ledger")
    with pytest.raises(LedgerError, match=rf"{bucket}-not/ledger: cannot record .*the bucket does not exist"):
        ledger.prepare(READER)
    assert ledger.find(TASK, [QUEUE]) is None


def test_pickled_ledger_has_no_secrets(bucket: str) -> None:
    ledger = Ledger(f"{bucket}/ledger")
    ledger.prepare(READER)
    assert SECRET.encode() not in pickle.dumps(ledger)
    assert SECRET not in f"{ledger!r} {ledger}"
    again: Ledger = pickle.loads(pickle.dumps(ledger))
    assert again.record(TASK, TaskRecord({QUEUE: 1})) == ledger.find(TASK, [QUEUE])


def test_a_missing_package_is_named() -> None:
    program = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from pyspark_mq.source.ledger import Ledger\n"
        f"Ledger('s3://bucket/ledger').prepare('{READER}')"
    )
    run = [sys.executable, "-c", program]
    ended = subprocess.run(run, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert "s3://bucket/ledger: cannot record" in ended.stderr
    assert "the package for s3:// is not installed. Install it: pip install 'pyspark-mq[s3]'" in ended.stderr


def test_too_large_record_is_not_read(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(f"{bucket}/ledger")
    ledger.record(TASK, TaskRecord({QUEUE: 1}))
    monkeypatch.setattr("pyspark_mq.source.ledger._MAX_BYTES", 4)
    with pytest.raises(LedgerError, match=rf"{bucket}/ledger/{READER}/0-0.json: .*more than 4 bytes"):
        ledger.find(TASK, [QUEUE])
