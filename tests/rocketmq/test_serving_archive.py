from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.remoting.serving import serve
from tests.gated import new_url
from tests.rocketmq.harness import RocketMQ, free_ports
from tests.rocketmq.served import Served, committed, consumed, ends, left, mqadmin, rows_of, until

pytestmark = pytest.mark.rocketmq

TOPIC = "orders"


@pytest.fixture
def served(rocketmq: RocketMQ, tmp_path: Path) -> Iterator[Served]:
    port = free_ports()["brokerPort"]
    config = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=2_000, listenPort=port)
    with (
        MessageStore.open(tmp_path / "mq", config=config) as store,
        serve(store, f"127.0.0.1:{port}") as serving,
        rocketmq.clients(serving.address) as clients,
    ):
        store.create_topic(TOPIC, 4)
        yield Served(store, clients)


def test_archived_messages_are_consumed_and_redelivered(rocketmq: RocketMQ, served: Served) -> None:
    store, clients = served
    clients.answers("send", topic=TOPIC, messages=20, bodyBytes=6000)
    store.put_many([Message(TOPIC, bytes(1000), keys=(f"ours-{n}",), queue_id=n % 4) for n in range(100)])
    store.archive(new_url())
    store.put_many([Message(TOPIC, bytes(1000), keys=(f"ours-{n}",), queue_id=n % 4) for n in range(100, 160)])
    assert store.clean(forced=True).log
    assert all(store.min_offset(TOPIC, queue) > 10 for queue in range(4))
    clients.ask("subscribe", id="late", group="late", topic=TOPIC, failures=1, level=1)
    assert next(clients)["kind"] == "subscribed"
    tries = consumed(clients, 360)
    assert set(Counter((line["keys"], line["reconsumeTimes"]) for line in tries).values()) == {1}
    assert {line["reconsumeTimes"] for line in tries} == {0, 1}
    left(clients, "late")
    until(lambda: committed(store, "late", TOPIC) == ends(store, TOPIC))
    assert "%DLQ%late" not in store.topics()
    first = next(line for line in tries if line["keys"] == "ours-0")
    by_id = mqadmin(clients, "queryMsgById", "-i", first["msgId"], *(["-t", TOPIC] if rocketmq.line >= "5" else []))
    assert ["Keys:", "[ours-0]"] in rows_of(by_id)
    for line in (line for line in tries if line["keys"] in ("key-3", "ours-1") and not line["reconsumeTimes"]):
        by_key = rows_of(mqadmin(clients, "queryMsgByKey", "-t", TOPIC, "-k", line["keys"]))
        assert [line["msgId"], str(line["queueId"]), str(line["queueOffset"])] in [row[:3] for row in by_key]
    queues = {line["queueId"]: line["min"] for line in clients.answers("offsets", topic=TOPIC)}
    assert queues == dict.fromkeys(range(4), 0)
