"""Planning of batch queries. Reading: `end_to_end/test_batch_query`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_mq.options.source import SourceOptions
from pyspark_mq.planning.queues import Queues
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.reading import default_schema
from store import Unreachable
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.filled import Filled
from tests.name_server import name_server


def test_start_and_end_are_resolved_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 1})
    resolve = Queues.resolve

    def overtaken(queues: Queues, *arguments: Any) -> Any:
        positions = resolve(queues, *arguments)
        filled.put("orders", 0, 250, size=1000)
        filled.store.clean(forced=True)
        return positions

    with filled.store:
        filled.put("orders", 0, 10)
        reader = MqBatchReader(SourceOptions.parse({"path": filled.path, "subscribe": "orders"}), default_schema(False))
        monkeypatch.setattr(Queues, "resolve", overtaken)
        assert [" + ".join(map(str, partition.value.ranges)) for partition in reader.partitions()] == [
            "orders/0 [0, 10)"
        ]
        assert filled.store.min_offset("orders", 0) > 10


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("_warn", {"endingTimestamp": "4102444800000"}),
        ("resolve", {"endingTimestamp": "4102444800000"}),
        ("resolve", {"endingOffsets": "group", "consumerGroup": "g"}),
    ],
)
def test_broker_lost_while_a_query_is_planned_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, end: dict[str, str]
) -> None:
    """Later the name servers forget the broker, and nothing shows that its queues are missing."""
    work = getattr(Queues, step)
    with ExitStack() as stack, ExitStack() as going:

        def started(stack: ExitStack, broker: str) -> str:
            filled = Filled(tmp_path / broker, {"t": 1})
            store = stack.enter_context(filled.store)
            filled.put("t", 0, 3)
            store.commit_offsets("g", "t", {0: 3})
            return stack.enter_context(serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName=broker))).address

        stays, goes = started(stack, "a"), started(going, "b")
        for folder in ("first", "later"):
            (tmp_path / folder).mkdir()
        later = stack.enter_context(name_server(stays))
        first = going.enter_context(name_server(stays, goes))
        given = {"nameServer": f"{first};{later}", "subscribe": "t", **end}

        def planned(**more: str) -> list[str]:
            options = SourceOptions.parse({**given, **more})
            options = replace(options, address=replace(options.address, patience=0.5, broker_timeout=0.5))
            return [
                str(each) for p in MqBatchReader(options, default_schema(False)).partitions() for each in p.value.ranges
            ]

        def dies(queues: Queues, *arguments: Any) -> Any:
            going.close()
            return work(queues, *arguments)

        assert planned() == ["t/a:0 [0, 3)", "t/b:0 [0, 3)"]
        monkeypatch.setattr(Queues, step, dies)
        with pytest.raises(Unreachable, match="broker b "):
            planned()


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("KEYS = 'k3'", ["orders/0 [3, 4)", "orders/1 [3, 4)"]),
        ("region = 'eu' AND KEYS IN ('k3', 'none')", ["orders/0 [3, 4)", "orders/1 [3, 4)"]),
        ("KEYS = 'k3' OR KEYS = 'k5'", ["orders/0 [3, 4)", "orders/1 [3, 6)"]),
        ("KEYS = 'none'", []),
        ("KEYS = 'k3' OR region = 'eu'", ["orders/0 [0, 5)", "orders/1 [0, 6)"]),
        ("KEYS <> 'k3'", ["orders/0 [0, 5)", "orders/1 [0, 6)"]),
        ("NOT (KEYS = 'k3')", ["orders/0 [0, 5)", "orders/1 [0, 6)"]),
        ("KEYS = ''", ["orders/0 [0, 5)", "orders/1 [0, 6)"]),
    ],
)
def test_condition_on_keys_uses_the_index(tmp_path: Path, condition: str, wanted: list[str]) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 2})
    options = {"path": filled.path, "subscribe": "orders", "subExpression": condition, "expressionType": "SQL92"}
    with filled.store:
        filled.put("orders", 0, 5)
        filled.put("orders", 1, 6)
        partitions = MqBatchReader(SourceOptions.parse(options), default_schema(False)).partitions()
    assert sorted(str(r) for partition in partitions for r in partition.value.ranges) == wanted


def test_condition_on_an_id_uses_the_index(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"orders": 1})
    with filled.store as store:
        filled.put("orders", 0, 5)
        msg_id = store.query("orders", "k3", 1)[0].msg_id
        options = {"path": filled.path, "subscribe": "orders", "subExpression": f"UNIQ_KEY = '{msg_id}'"}
        reader = MqBatchReader(SourceOptions.parse({**options, "expressionType": "SQL92"}), default_schema(False))
        (partition,) = reader.partitions()
    assert list(map(str, partition.value.ranges)) == ["orders/0 [3, 4)"]
