from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pyspark_mq.console.console_server import ConsoleApp
from pyspark_mq.console.guard import ConsoleKeys
from pyspark_mq.console.site import Site
from store import Message, MessageStore, StoreConfig
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import LogAddress

HERE = "http://127.0.0.1:8770"
HOSTILE = b"<script>document.title = 'hacked'</script>"
CONFIG = StoreConfig(mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20_000)


class Visitor:
    """A browser, with or without the token, that sends forms as the console's pages do."""

    def __init__(self, client: TestClient, keys: ConsoleKeys) -> None:
        self.client = client
        self.keys = keys

    def enter(self) -> Visitor:
        """Open the address with the token."""
        assert self.client.get(f"/?token={self.keys.token}").status_code == 200
        return self

    def page(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    def send(self, path: str, status: int = 200, **fields: str) -> str:
        answer = self.client.post(path, data={"csrf": self.keys.csrf, **fields}, headers={"Origin": HERE})
        assert answer.status_code == status, answer.text
        return answer.text


Visit = Callable[..., Visitor]


@pytest.fixture
def visit() -> Iterator[Visit]:
    with ExitStack() as stack:

        def visitor(address: LogAddress, *, allow_changes: bool = False) -> Visitor:
            keys = ConsoleKeys()
            app = ConsoleApp(Site(address, keys, interval=0.01, allow_changes=allow_changes)).app
            return Visitor(stack.enter_context(TestClient(app, base_url=HERE)), keys)

        yield visitor


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Topic "orders" with JSON, text and bytes in queue 0, and hostile text in queue 1; group "billing" read two."""
    path = tmp_path / "shop"
    with MessageStore.open(path, config=CONFIG) as store:
        store.create_topic("orders", 2)
        bodies = (b'{"id": "o-1", "total": 7}', "größer".encode(), b"\x00\xff\xfe")
        for number, body in enumerate(bodies):
            message = Message("orders", body, tags="AB"[number % 2], keys=[f"o-{number}"], queue_id=0)
            store.put(message)
        store.put(
            Message("orders", HOSTILE, tags="<b>", keys=["<i>"], properties={"<u>": "<script>"}, queue_id=1),
        )
        store.commit_offsets("billing", "orders", {0: 2})
    return path


@pytest.fixture
def visitor(visit: Visit, shop: Path) -> Visitor:
    """A visitor of "shop" who may make changes."""
    return visit(DirectoryAddress(str(shop)), allow_changes=True).enter()
