from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pyspark_mq.console.console_server import ConsoleApp
from pyspark_mq.console.guard import ConsoleKeys
from pyspark_mq.console.site import Site
from store.directory.directory_log import DirectoryAddress
from tests.pyspark_mq.console.conftest import HERE, Visitor
from tests.rocketmq.harness import RocketMQ
from tests.rocketmq.test_live_broker import SMALL
from tests.waiting import until

pytestmark = pytest.mark.rocketmq


def test_console_shows_messages_of_a_running_broker(rocketmq: RocketMQ, tmp_path: Path) -> None:
    directory, keys = tmp_path / "theirs", ConsoleKeys()
    with rocketmq.broker(directory, SMALL, topic="live", queues=4, bodyBytes=150) as lines:
        lines.ask("send", messages=10, perSecond=1000)
        assert next(lines)["kind"] == "sent"
        app = ConsoleApp(Site(DirectoryAddress(str(directory)), keys, interval=0.05, allow_changes=True)).app
        with TestClient(app, base_url=HERE) as client:
            visitor = Visitor(client, keys).enter()
            until(lambda: visitor.page("/topic?topic=live").count("/message?topic=live") == 10)
            until(lambda: "<b>10</b> messages" in visitor.page("/"))
            for path in ("/groups", "/delayed", "/dead", "/health"):
                visitor.page(path)
            visitor.send("/health/verify")
            until(lambda: "no findings" in visitor.page("/health"))
