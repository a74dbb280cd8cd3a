from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import MessageStore
from store.remoting.client import Client
from store.remoting.serving import serve
from tests.store.remoting.broker import Broker


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path / "mq") as it:
        it.create_topic("orders", 2)
        yield it


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(timeout=60) as it:
        yield it


@pytest.fixture
def broker(store: MessageStore, client: Client) -> Iterator[Broker]:
    with serve(store, "127.0.0.1:0") as serving:
        yield Broker(serving, client)


@pytest.fixture
def no_thread_once(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
