"""Mark the tests of this folder `rocketmq`; skip them if Java or Maven is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import MessageStore, StoreConfig
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests import seen
from tests.rocketmq.harness import RocketMQ, chosen_lines, free_ports, unavailable
from tests.rocketmq.served import Served


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest-xdist, run a file's tests of one release line in one process, since they share fixtures."""
    for item in items:
        if isinstance(item, pytest.Function) and item.path.is_relative_to(Path(__file__).parent):
            given = item.callspec.params if hasattr(item, "callspec") else {}
            line = given.get("rocketmq", given.get("line"))
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {line}"))


@pytest.fixture(scope="session", params=chosen_lines())
def rocketmq(request: pytest.FixtureRequest) -> RocketMQ:
    """RocketMQ's own code, once for each chosen release line."""
    return line_of(request.param)


@pytest.fixture(scope="session")
def rocketmq5() -> RocketMQ:
    """The newest chosen release line of RocketMQ 5."""
    lines = [line for line in chosen_lines() if line >= "5"]
    if not lines:
        pytest.skip("needs a line of RocketMQ 5: none is in LINES")
    return line_of(lines[0])


def line_of(line: str) -> RocketMQ:
    """Return a release line; skips the test if RocketMQ cannot run."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    return RocketMQ(line)


@pytest.fixture(scope="module")
def served(rocketmq: RocketMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    port = free_ports()["brokerPort"]
    config = StoreConfig(mappedFileSizeCommitLog=1 << 22, mappedFileSizeConsumeQueue=20_000, listenPort=port)
    with (
        MessageStore.open(tmp_path_factory.mktemp("served") / "mq", config=config) as store,
        serve(
            store,
            f"127.0.0.1:{port}",
            config=BrokerConfig(transactionCheckInterval=500, transactionTimeOut=1000, transactionCheckMax=2),
        ) as serving,
        rocketmq.clients(serving.address) as clients,
    ):
        yield Served(store, clients)


@pytest.fixture
def topic(request: pytest.FixtureRequest, served: Served) -> str:
    """A new topic with four queues."""
    name = request.node.originalname.removeprefix("test_")[:60]
    if name not in served.store.topics():
        served.store.create_topic(name, 4)
    return name


@pytest.fixture
def compare(record_property: Callable[[str, object], None]) -> Callable[[seen.Queues, seen.Queues], None]:
    """`seen.assert_same`, counted for the summary: (ours, RocketMQ's)."""

    def compare_and_note(ours: seen.Queues, theirs: seen.Queues) -> None:
        seen.assert_same(ours, theirs)
        messages = sum(len(queue.rows) for queue in theirs.values())
        record_property("compared", f"{messages:,} messages in {len(theirs)} queues")

    return compare_and_note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line for each directory that was compared."""
    compared = [
        f"{report.nodeid.partition('::')[2].partition('@')[0]}: {value}"
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "compared"
    ]
    if compared:
        terminalreporter.section("equal to RocketMQ's reading in every field")
        for line in compared:
            terminalreporter.write_line(line)
