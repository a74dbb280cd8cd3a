from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from store import Message, MessageStore
from store.archive import archive_log as archive_log
from store.archive.archive_log import ArchiveAddress
from tests.s3 import WSGI, environment, new_bucket, s3_server

QUEUES = 8


def test_idle_check_is_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_log, "_RECENT_SECONDS", 60.0)  # no check takes longer
    asked: Counter[str] = Counter()

    def counting(app: WSGI) -> WSGI:
        def counted(request: dict[str, Any], start: Any) -> Iterable[bytes]:
            asked[request["REQUEST_METHOD"]] += 1
            return app(request, start)

        return counted

    with s3_server(counting) as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        url = f"{new_bucket()}/mq"
        with MessageStore.open(tmp_path / "mq") as store:
            store.create_topic("t", QUEUES)
            store.put_many([Message("t", b"x", queue_id=number) for number in range(QUEUES)])
            store.archive(url)
            with ArchiveAddress(url).open() as log:
                ends = {queue: bounds.max_offset for queue, bounds in log.bounds(log.topics()["t"]).items()}
                last = log.fingerprints(ends)
                asked.clear()
                for look in range(1, 4):
                    log.look_again()
                    assert log.look(log.topics(oldest=60.0)["t"]).bounds.keys() == ends.keys()
                    assert log.replaced(ends, last) == []
                    log.wait(ends, 0.0)
                    assert asked == {"HEAD": look}
                store.put(Message("t", b"x", queue_id=0))
                store.archive()
                asked.clear()
                log.look_again()
                looked = log.look(log.topics(oldest=60.0)["t"]).bounds
                assert [bounds.max_offset for bounds in looked.values()] == [2] + [1] * (QUEUES - 1)
                assert asked["GET"] == 1
