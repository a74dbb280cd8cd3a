import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pyspark_mq.cli.stats import as_table
from pyspark_mq.stats.measures import Extent, GroupLag, LogFiles, Look
from pyspark_mq.stats.metrics import StoreCollector
from store import Consumer, Message, MessageStore, Producer
from store.model.log_protocol import Queue
from store.remoting.serving import serve
from tests.processes import child_process
from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, run, signal_another_thread, started, succeed
from tests.waiting import until


def test_stats_counts_messages_and_bytes(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    lines = [line.split() for line in succeed("stats", path).splitlines()]
    assert lines[1] == ["orders", "0", "0", "0", "0", "0"]
    assert lines[2][:5] == ["orders", "1", "0", "3", "3"]
    assert lines[-2][1] == lines[2][5]
    assert lines[-2][-4:] == ["dispatch", "lag", "0", "bytes"]
    assert lines[-1][:4] == ["1", "segments", "of", "1,048,576"]


def test_tables_fit_into_80_columns() -> None:
    many, queue = 9_999_999_999, Queue("a" * 20, 12)
    extents = {queue: Extent(queue, 0, many, 1000 * many)}
    groups = {("g" * 20, queue): GroupLag("g" * 20, queue, 0, many, many)}
    now = Look(9.0, extents, groups, LogFiles(1000 * many, 9_999, 1000 * many, 1000 * many, 0), {}, None)
    before = now._replace(at=0.0, queues={key: each._replace(end=0) for key, each in extents.items()})
    shown = as_table(before, now)
    assert max(map(len, shown.splitlines())) <= 80
    assert "1,111,111,111" in shown


def test_stats_are_printed_as_json(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "c", "--queue", 1)
    found = json.loads(succeed("stats", path, "--json"))
    assert [queue["messages"] for queue in found["queues"]] == [0, 3]
    assert found["queues"][1] == {
        "topic": "orders",
        "queueId": 1,
        "minOffset": 0,
        "maxOffset": 3,
        "messages": 3,
        "bytes": found["log"]["publishedBytes"],
    }
    assert found["log"]["dispatchLagBytes"] == 0


def test_stats_name_the_process_that_delivers(path: Path) -> None:
    assert json.loads(succeed("stats", path, "--json"))["deliverer"] is None
    code = (
        "import sys; from store import *; s = MessageStore.open(sys.argv[1]); "
        "s.put(Message('orders', b'', delay_level=18)); print(flush=True); sys.stdin.read()"
    )
    with child_process(sys.executable, "-c", code, str(path), stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        registry = CollectorRegistry()
        with MessageStore.open(path, read_only=True) as store:
            registry.register(StoreCollector(store))
            for stopped in (False, True):
                if stopped:
                    process.send_signal(signal.SIGSTOP)
                    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
                until(lambda: json.loads(succeed("stats", path, "--json"))["deliverer"] is not None, every=0.1)
                by = json.loads(succeed("stats", path, "--json"))["deliverer"]
                assert (by["pid"], by["stopped"]) == (process.pid, stopped)
                line = succeed("stats", path).splitlines()[-1]
                assert line.startswith(f"delayed messages: delivered by process {process.pid} ({sys.executable} -c")
                assert (f"kill -CONT {process.pid}" in line) == stopped
                assert registry.get_sample_value("rocketmq_delivery_stopped") == stopped
            process.kill()
            process.wait()
            assert registry.get_sample_value("rocketmq_delivery_stopped") == 0
    assert json.loads(succeed("stats", path, "--json"))["deliverer"] is None


def test_watch_prints_repeatedly(path: Path) -> None:
    lines = succeed("stats", path, "--json", "--watch", 0.1, "--count", 3).splitlines()
    times = [json.loads(line)["timestamp"] for line in lines]
    assert len(times) == 3
    assert times[2] - times[0] >= 200
    assert run("stats", path, "--count", 3).returncode == 2


def test_watch_prints_rates_as_json(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "--queue", 1)
    with MessageStore.open(path) as store:
        store.commit_offsets("readers", "orders", {1: 1})
    with started("stats", path, "--watch", 0.2, "--json") as stats:
        assert stats.stdout is not None
        first = json.loads(stats.stdout.readline())
        assert "messagesInPerSecond" not in first["queues"][1]
        with MessageStore.open(path) as store:
            store.put_many([Message("orders", b"", queue_id=1)] * 1000)
            store.commit_offsets("readers", "orders", {1: 501})
        seen = [first]
        while seen[-1]["queues"][1]["maxOffset"] < 1002 or seen[-1]["groups"][1]["offset"] < 501:
            seen.append(json.loads(stats.stdout.readline()))

    def total(kind: str, name: str) -> float:
        times = [each["timestamp"] / 1000 for each in seen]
        rates = [each[kind][1][name] for each in seen[1:]]
        return sum(rate * (now - before) for rate, before, now in zip(rates, times, times[1:], strict=False))

    assert total("queues", "messagesInPerSecond") == pytest.approx(1000, rel=0.2)
    assert total("groups", "messagesOutPerSecond") == pytest.approx(500, rel=0.2)
    assert seen[-1]["groups"][1]["lag"] == 501


def test_watch_prints_rates_in_the_table(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.put_many([Message("orders", b"", queue_id=1)] * 3)
        store.commit_offsets("readers", "orders", {1: 1})
    first, _, second = succeed("stats", path, "--watch", 0.1, "--count", 2).partition("on disk\n\n")
    assert "messages/s" not in first
    lines = [line.split() for line in second.splitlines()]
    assert lines[0][-1] == "messages/s"
    assert lines[2][-1] == "0"
    assert ["readers", "orders", "1", "2", "0"] in lines


def test_prometheus_serves_metrics(path: Path) -> None:
    succeed("send", path, "orders", "a", "b", "--queue", 1)
    with started("stats", path, "--prometheus", 0) as stats:
        assert stats.stdout is not None
        url = stats.stdout.readline().decode().strip()
        for count in (2, 3):
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:
                assert f'rocketmq_messages_in_total{{topic="orders"}} {count}.0\n' in answer.read().decode()
            succeed("send", path, "orders", "one more")
        signal_another_thread(stats, signal.SIGINT)
        _, err = stats.communicate(timeout=TIMEOUT_SECONDS)
    assert stats.returncode == 130
    assert err.decode().startswith("Interrupted: no more metrics of")


def test_prometheus_excludes_other_options(path: Path) -> None:
    for other in ("--json", "--watch=1"):
        done = run("stats", path, "--prometheus", 0, other)
        assert done.returncode == 2
        assert "--prometheus does not work with" in done.stderr


def test_used_port_is_an_error(path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("stats", path, "--prometheus", taken.getsockname()[1])
    assert done.returncode == 1
    assert "in use" in done.stderr


def test_ctrl_c_ends_watch(path: Path) -> None:
    with started("stats", path, "--watch", 0.1, "--json") as stats:
        assert stats.stdout is not None
        stats.stdout.readline()
        stats.send_signal(signal.SIGINT)
        _, err = stats.communicate(timeout=TIMEOUT_SECONDS)
    assert stats.returncode == 130
    assert err.decode().startswith("Interrupted: ")


def test_stats_show_latencies_and_held_requests(path: Path) -> None:
    with Producer(path) as producer, Consumer(path, "readers", "orders", lambda messages: None) as consumer:
        until(lambda: len(consumer.assigned) == 2)
        with started("stats", path, "--watch", 0.2, "--json") as stats:
            assert stats.stdout is not None
            assert not json.loads(stats.stdout.readline()).keys() & {"latencies", "held"}
            for _ in range(10):
                producer.send("orders", "").result()
            counts: Counter[tuple[str, str, str]] = Counter()
            while len(counts) < 4 or min(counts.values()) < 10:
                found = json.loads(stats.stdout.readline())
                for each in found["latencies"]:
                    assert 0 < each["p50"] <= each["p99"]
                    counts[each["name"], each["topic"], each["group"]] += each["times"]
            assert {key for key, count in counts.items() if count == 10} == {
                ("put", "orders", ""),
                ("sent", "orders", ""),
                ("delivered", "orders", "readers"),
                ("processed", "orders", "readers"),
            }
            while found["held"][-1] != {"topic": "orders", "group": "readers", "requests": 2}:
                found = json.loads(stats.stdout.readline())
        with started("stats", path, "--watch", 0.3) as stats:
            assert stats.stdout is not None
            producer.send("orders", "").result()
            lines = (line.decode().split() for line in stats.stdout)
            assert ["held", "orders", "readers", "2"] in lines


def test_stats_count_refused_connections(path: Path) -> None:
    registry = CollectorRegistry()
    with (
        MessageStore.open(path) as store,
        serve(store, "127.0.0.1:0") as serving,
        MessageStore.open(path, read_only=True) as reader,
    ):
        registry.register(StoreCollector(reader))
        assert "refused" not in succeed("stats", path)
        host, _, port = serving.address.rpartition(":")
        for _ in range(2):
            with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                stranger.recv(1)
        until(lambda: json.loads(succeed("stats", path, "--json"))["refused"]["bad frame"] == 2, every=0.1)
        assert "connections refused: 2 bad frame\n" in succeed("stats", path)
        assert "connections refused: 2 bad frame\n" in succeed("stats", path, "--watch", 0.1, "--count", 2)
        (found,) = (each for each in registry.collect() if each.name == "rocketmq_refused_connections")
        assert [(each.labels["reason"], each.value) for each in found.samples] == [("bad frame", 2)]
