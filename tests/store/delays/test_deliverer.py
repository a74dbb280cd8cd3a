from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from store import Message, MessageStore, StoreConfig
from store.format.layout import DELAY_OFFSETS_FILE, SCHEDULE_TOPIC, TIMER_TOPIC
from store.upkeep.verify import verify
from tests.children import ended
from tests.end_to_end.test_kill import ROOT
from tests.store.delays.dying_deliverers import QUEUES, TOPIC
from tests.store.format.test_delayed import all_of
from tests.waiting import until

KILLS = int(os.environ.get("DELIVERY_KILLS", "3"))
SMALL = StoreConfig(mappedFileSizeCommitLog=64 << 10, mappedFileSizeConsumeQueue=2000)


def bodies(store: MessageStore, topic: str = TOPIC) -> Counter[bytes]:
    return Counter(each.body for each in all_of(store, topic))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mq-deliver"]


def opened(path: Path) -> MessageStore:
    store = MessageStore.open(path, config=SMALL)
    store.create_topic(TOPIC, QUEUES)
    return store


def test_messages_are_delivered_unchanged_and_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert threads() == []
        rows = [Message(TOPIC, b"%d" % n, "A", f"k{n}", {"p": "q"}, 1, flag=n, delay_level=1) for n in range(50)]
        put_at = time.time() * 1000
        store.put_many(rows)
        until(lambda: store.max_offset(TOPIC, 1) == 50)
        there, waited = all_of(store, TOPIC), all_of(store, SCHEDULE_TOPIC)
        assert [each.body for each in there] == [row.body for row in rows]
        for each, was, row in zip(there, waited, rows, strict=True):
            assert each.properties == was.properties
            assert (each.tags, each.keys, each.flag, each.queue_id) == (row.tags, (row.keys,), row.flag, 1)
            assert (each.born_timestamp, each.born_host) == (was.born_timestamp, was.born_host)
            assert each.store_timestamp >= put_at + 1000
            assert each.prepared_transaction_offset == ~was.physical_offset
        assert [each.body for each in store.query(TOPIC, "k7")] == [b"7"]
        assert len(threads()) == 1
    assert threads() == []
    assert verify(tmp_path).findings == []
    content = json.loads((tmp_path / DELAY_OFFSETS_FILE).read_text())
    assert content["offsetTable"] == {"1": 50}


def test_messages_are_delivered_at_their_times(tmp_path: Path) -> None:
    with opened(tmp_path) as store, MessageStore.open(tmp_path) as other:
        begin = int(time.time() * 1000)
        times = [begin + after for after in (3900, 3300, 3700, 3300, 3500)]
        store.put_many([Message(TOPIC, b"%d" % at, "A", queue_id=2, deliver_at=at) for at in times[:3]])
        table = pa.table({"body": [str(at) for at in times[3:]], "queueId": [2, 2], "deliverAt": times[3:]})
        other.append_table(TOPIC, table)
        until(lambda: store.max_offset(TOPIC, 2) == len(times))
        there = all_of(store, TOPIC)
        for each in there:
            assert each.store_timestamp >= int(each.body)
            assert each.properties["TIMER_DELIVER_MS"] == each.body.decode()
        assert [int(each.body) for each in there] == sorted(times)
    assert verify(tmp_path).findings == []


def test_overdue_messages_are_delivered_at_the_next_open(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        soon = int(time.time() * 1000) + 1000
        store.put_many([Message(TOPIC, b"%d" % n, delay_level=1) for n in range(5)])
        store.put_many([Message(TOPIC, b"%d" % n, deliver_at=soon) for n in range(5, 10)])
    before = (tmp_path / DELAY_OFFSETS_FILE).read_text()
    time.sleep(1.0)
    for _ in range(3):
        with opened(tmp_path) as store:
            until(lambda: len(all_of(store, TOPIC)) >= 10)
        (tmp_path / DELAY_OFFSETS_FILE).write_text(before)
    with opened(tmp_path) as store:
        until(lambda: threads() != [])
        store.put(Message(TOPIC, b"last", delay_level=1))
        until(lambda: bodies(store)[b"last"] == 1)
        assert set(bodies(store).values()) == {1}


def test_messages_are_delivered_once_despite_kills(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    opened(path).close()
    chance = random.Random(KILLS)
    command = [sys.executable, "-m", "tests.store.delays.dying_deliverers", str(path)]
    running = []
    for number in range(KILLS + 3):
        running.append(subprocess.Popen([*command, str(number)], cwd=ROOT, stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == b"put\n"
        time.sleep(chance.uniform(0, 1.5))
        if number >= 2:
            running.pop(chance.randrange(3)).kill()
    for process in running:
        process.kill()
        process.wait()
    with MessageStore.open(path) as store:
        waited = [*all_of(store, SCHEDULE_TOPIC), *all_of(store, TIMER_TOPIC)]
        expected = Counter(each.body for each in waited)
        assert set(expected.values()) == {1}

        def are_delivered() -> bool:
            delivered = bodies(store)
            del delivered[b"at once"]
            assert max(delivered.values()) == 1, delivered.most_common(3)
            return delivered >= expected

        until(are_delivered, every=0.05)
        by_place = {each.physical_offset: each for each in waited}
        for each in all_of(store, TOPIC):
            if each.body in expected:
                was = by_place[~each.prepared_transaction_offset]
                assert was.body == each.body
                due = int(was.properties.get("TIMER_DELIVER_MS", was.store_timestamp + 1000))
                assert each.store_timestamp >= due
    assert verify(path).findings == []


def test_another_process_takes_over(tmp_path: Path) -> None:
    """The process that put them and held the delivery lock is killed before they are due."""
    opened(tmp_path).close()
    code = f"""
import sys
from store import Message, MessageStore
store = MessageStore.open({str(tmp_path)!r})
store.put_many([Message({TOPIC!r}, b"%d" % n, delay_level=1) for n in range(5)])
print("put", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"put\n"
        with MessageStore.open(tmp_path) as store:
            first.kill()
            until(lambda: len(all_of(store, TOPIC)) == 5)
            assert set(bodies(store).values()) == {1}


def test_next_process_knows_deliveries_although_the_file_is_lost(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with MessageStore.open(tmp_path) as other:
        store.put(Message(TOPIC, b"by level", delay_level=1))
        store.put(Message(TOPIC, b"by time", deliver_at=int(time.time() * 1000) + 1))
        until(lambda: delivered(store) == 2)
        assert store._writer is not None
        deliverer = store._writer._deliverer
        deliverer.stop()
        store.flush()
        deliverer.save()
        assert deliverer._delivering is not None
        assert deliverer._delivering.is_saved
        for file in (tmp_path / "config").glob("delayOffset*"):
            file.unlink()
        store.close()
        other.put(Message(TOPIC, b"last", delay_level=1))
        until(lambda: bodies(other)[b"last"] == 1)
        assert set(bodies(other).values()) == {1}


def test_forked_child_delivers_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(Message(TOPIC, b"", delay_level=1))
    until(lambda: (tmp_path / DELAY_OFFSETS_FILE).exists())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    store.close()
    with opened(tmp_path) as store:
        until(lambda: len(all_of(store, TOPIC)) == 1)
    os.close(writing)
    assert ended(child) == 0


def delivered(store: MessageStore) -> int:
    return sum(store.max_offset(TOPIC, queue) for queue in range(QUEUES))


def many(path: Path, count: int, body: int = 8) -> None:
    with opened(path) as store:
        soon = int(time.time() * 1000) + 1200
        rows = {"body": [b"%0*d" % (body, n) for n in range(count)], "deliverAt": [soon + n % 50 for n in range(count)]}
        store.append_table(TOPIC, pa.table(rows))
    time.sleep(max(0.0, soon / 1000 + 0.1 - time.time()))


def test_messages_are_delivered_once_despite_closes(tmp_path: Path) -> None:
    many(tmp_path, 12_000)
    there = 0
    while there < 12_000:
        with opened(tmp_path) as store:
            until(lambda: delivered(store) > there)  # noqa: B023
            there = delivered(store)
    with opened(tmp_path) as store:
        until(lambda: threads() != [])
        store.put(Message(TOPIC, b"last", delay_level=1))
        until(lambda: delivered(store) > 12_000)
        assert set(bodies(store).values()) == {1}


def test_large_messages_are_delivered_in_steps(tmp_path: Path) -> None:
    """Otherwise all of them would be in memory at once."""
    many(tmp_path, 300, 60_000)
    with opened(tmp_path) as store:
        until(lambda: delivered(store) == 300)
        steps = Counter(each.store_timestamp for each in all_of(store, TOPIC))
        assert max(steps.values()) < 150


@pytest.mark.parametrize(("how", "is_killed"), [("deliver_at", False), ("deliver_at", True), ("delay_level", True)])
def test_messages_are_delivered_once_if_the_clock_is_set_back(tmp_path: Path, how: str, is_killed: bool) -> None:
    with opened(tmp_path) as store:
        now = int(time.time() * 1000)
        if how == "deliver_at":
            store.put_many([Message(TOPIC, b"%d" % n, deliver_at=now + 3_600_000 + n) for n in range(5)])
        else:
            store.put_many([Message(TOPIC, b"%d" % n, delay_level=17) for n in range(5)])
        store.put(Message(TOPIC, b"level", delay_level=18))
        store.put(Message(TOPIC, b"much later", deliver_at=now + 80_000_000))
        assert store._writer is not None
        deliverer = store._writer._deliverer
        deliverer.stop()
        delivery = deliverer._delivery()
        delivery.begin()
        delivery.look()
        delivery.step(now + 3_700_000)
        assert len(all_of(store, TOPIC)) == 5
        delivery._look_at = 0.0
        store.put(Message(TOPIC, b"between", deliver_at=now + 1_800_000))
        delivery.look()
        if not is_killed:
            for earlier in (now, now + 60_000):
                store.flush()
                delivery.save(earlier)
            assert delivery.is_saved
        for clock in (now + 1_850_000, now + 1_900_000, now + 8_000_000):
            again = deliverer._delivery()
            again.look()
            again.step(clock)
            store.flush()
            again.save(clock)
            again.save(clock)
        assert bodies(store) == Counter([b"0", b"1", b"2", b"3", b"4", b"between", b"level"])


def test_no_message_is_late_if_the_clock_is_set_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same happens when the machine slept, even if the store is otherwise idle."""
    clock, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: clock() + ahead)
    with opened(tmp_path) as store:
        store.put(Message(TOPIC, b"", deliver_at=int(clock() * 1000) + 3_600_000))
        until((tmp_path / DELAY_OFFSETS_FILE).exists)
        store.flush()
        time.sleep(1.5)
        assert delivered(store) == 0
        ahead, stepped = 7200.0, time.monotonic()
        until(lambda: delivered(store) == 1)
        assert time.monotonic() - stepped < 20


def test_progress_is_saved_only_after_a_flush(tmp_path: Path) -> None:
    """After a crash the saved position could otherwise lie in the middle of later messages."""
    with MessageStore.open(tmp_path, config=StoreConfig(flushIntervalCommitLog=3_600_000)) as store:
        store.create_topic(TOPIC, QUEUES)
        store.put(Message(TOPIC, b"at once"))
        store.put(Message(TOPIC, b"later", delay_level=1))
        until((tmp_path / DELAY_OFFSETS_FILE).exists)
        assert json.loads((tmp_path / DELAY_OFFSETS_FILE).read_text())["delivered"]["to"] == 0


OTHER = """
import sys, time
from store import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    store.put(Message("t", b"soon", delay_level=1))
    store.put(Message("t", b"later", deliver_at=int(time.time() * 1000) + 1500))
    print(flush=True)
    time.sleep(600)
"""


def test_early_store_delivers_messages_of_a_killed_process(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.create_topic("t", 1)
        assert threads() == []
        with subprocess.Popen([sys.executable, "-c", OTHER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            other.kill()
        until(lambda: set(bodies(store, "t")) == {b"soon", b"later"})
    assert threads() == []
