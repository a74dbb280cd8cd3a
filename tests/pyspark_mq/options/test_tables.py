"""Run every option's example, check its default, and compare the tables in the docs.

`python -m tests.pyspark_mq.options.test_tables` writes the tables into docs/source.md and docs/sink.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.options.tables import READ_OPTIONS, WRITE_OPTIONS, Option, names_of
from pyspark_mq.source.batch_reader import MqBatchReader
from pyspark_mq.source.reading import default_schema
from pyspark_mq.source.stream_reader import stream_reader
from store import Message, MessageStore

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {DOCS / "source.md": READ_OPTIONS, DOCS / "sink.md": WRITE_OPTIONS}
HEAD = "| option | default | example | |\n|---|---|---|---|\n"

SUBSCRIBES = {"subscribe", "subscribePattern", "assign"}
NEEDS = {
    "startingOffsetsByTimestampStrategy": {"startingTimestamp": "4102444800000"},
    "expressionType": {"subExpression": "region = 'eu'"},
    "consumeMode": {"consumerGroup": "billing"},
    "whenLocked": {"consumerGroup": "billing", "consumeMode": "orderly"},
    "maxTriggerDelay": {"minOffsetsPerTrigger": "4"},
    "batchDuration": {"realTime": "true"},
    "realTimePartitions": {"realTime": "true"},
    "ledgerPath": {"realTime": "true"},
}
LIMITS = {"maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}
STREAMS = LIMITS | {"holdTimeoutMs", "consumeMode", "whenLocked"}
HELD = {"realTime", "batchDuration", "realTimePartitions", "ledgerPath"}
ROWS = {
    "subscribe": 10,
    "subscribePattern": 10,
    "startingOffsets": 6,
    "startingOffsetsByTimestampStrategy": 0,
    "endingOffsets": 7,
    "endingTimestamp": 0,
    "subExpression": 4,
    "expressionType": 5,
}


def by_name(option: Option) -> str:
    return option.name


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store: 3 and 5 orders in two queues, two of each paid, the 5 from "eu"; 2 invoices."""
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("orders", 2)
        store.create_topic("invoices", 1)
        for queue_id, count in ((0, 3), (1, 5)):
            of_region = {"region": "eu" if queue_id else "us"}
            for number in range(count):
                tag = "paid" if number < 2 else "open"
                store.put(Message("orders", b"order", tags=tag, queue_id=queue_id, properties=of_region))
        store.put_many([Message("invoices", b"invoice")] * 2)
        store.archive(str(tmp_path / "archive"))
    return str(tmp_path / "mq")


def options_with(option: Option, value: str, path: str) -> dict[str, str]:
    """Return an option with those it requires; files beside /data/mq in examples are beside `path` here."""
    base = {"path": path} if option.name in SUBSCRIBES else {"path": path, "subscribe": "orders"}
    here = value.replace("/data/mq", path).replace("/data", str(Path(path).parent))
    return {**base, **NEEDS.get(option.name, {}), option.name: here}


def read(option: Option, options: SourceOptions) -> int:
    schema = default_schema(options.include_properties)
    if option.name not in STREAMS | HELD:
        batch_reader = MqBatchReader(options, schema)
        return sum(rows.num_rows for each in batch_reader.partitions() for rows in batch_reader.read(each))
    reader = stream_reader(options, schema)
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    if option.name not in HELD:
        rows = sum(rows.num_rows for each in partitions for rows in reader.read(each))
        reader.stop()
        return rows
    tasks = [iter(reader.read(each)) for each in partitions]
    first = sum(next(task).num_rows for task in tasks)
    for task in tasks:
        task.close()  # type: ignore[attr-defined]
    return first


@pytest.mark.parametrize("option", READ_OPTIONS, ids=by_name)
def test_examples_of_read_options_work(option: Option, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PIPELINED_UDF", "1")
    given = options_with(option, option.example, path)
    if option.name in STREAMS | HELD:
        given["startingOffsets"] = "earliest"
    assert read(option, SourceOptions.parse(given)) == ROWS.get(option.name, 8)


@pytest.mark.parametrize("option", WRITE_OPTIONS, ids=by_name)
def test_examples_of_write_options_are_accepted(option: Option, path: str) -> None:
    given = {"path": path, option.name: option.example.replace("/data/mq", path)}
    assert WriteOptions.parse(given) != WriteOptions.parse({"path": path}) or option.name == "path"


@pytest.mark.parametrize("option", READ_OPTIONS, ids=by_name)
def test_leaving_out_an_option_means_its_default(option: Option, path: str) -> None:
    if option.default is None:
        return
    with_default = options_with(option, option.default, path)
    if option.name == "expressionType":
        with_default["subExpression"] = "paid"
    without = {name: value for name, value in with_default.items() if name != option.name}
    assert SourceOptions.parse(with_default) == SourceOptions.parse(without)
    assert SourceOptions.parse(without | {option.name: option.example}) != SourceOptions.parse(without)


def table(options: Iterable[Option]) -> str:
    rows = (
        (f"`{each.name}`", f"`{each.default}`" if each.default else each.without, f"`{each.example}`", each.meaning)
        for each in options
    )
    return HEAD + "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_the_current_tables(page: Path) -> None:
    assert table(PAGES[page]) + "\n" in page.read_text("utf-8")


def test_options_named_as_in_kafka_exist() -> None:
    rows = re.findall(r"^\| (.*?) \| yes \|", (DOCS / "coming-from-kafka.md").read_text("utf-8"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(names) > 15
    assert names <= {*names_of(READ_OPTIONS), *names_of(WRITE_OPTIONS)}


if __name__ == "__main__":
    for page, options in PAGES.items():
        before, rest = page.read_text("utf-8").split("| option | default |")
        page.write_text(before + table(options) + "\n" + rest.partition("\n\n")[2], "utf-8")
