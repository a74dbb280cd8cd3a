from pathlib import Path

from pyspark_mq.cli.top import lags_by_topic, topic_lines
from pyspark_mq.stats.measures import look
from store import Message, MessageStore
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.pyspark_mq.cli.process import succeed


def test_top_shows_rates_sizes_and_lag(filled: Filled) -> None:
    store = filled.store
    store.commit_offsets("billing", "orders", {0: 1, 1: 5})
    before = look(store, None)
    assert [line.rate for line in topic_lines(None, before)] == [None]
    filled.put("orders", 0, 10)
    now = look(store, before)._replace(at=before.at + 2)
    (line,) = topic_lines(before, now)
    assert before.log is not None
    grown = store.confirm_offset - before.log.published
    assert line == ("orders", 2, 18, store.confirm_offset, 5.0, grown / 2)
    assert (lags_by_topic(before), lags_by_topic(now)) == ({("billing", "orders"): 2}, {("billing", "orders"): 12})


def test_sizes_shrink_with_retention(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "mq", {"t": 1})
    with filled.store as store:
        filled.put("t", 0, 200, size=1000)
        before = look(store, None)
        store.clean(forced=True)
        now = look(store, before)
        assert now.queues[Queue("t", 0)] == look(store, None).queues[Queue("t", 0)]
        assert 0 < (now.queues[Queue("t", 0)].size or 0) < (before.queues[Queue("t", 0)].size or 0)


def test_tables_follow_each_other_without_a_terminal(path: Path) -> None:
    with MessageStore.open(path) as store:
        store.put_many([Message("orders", b"x") for _ in range(1234)])
        store.commit_offsets("billing", "orders", {0: 0})
        size = f"{store.confirm_offset:,}"
    shown = succeed("top", path, "--count", 2, "--interval", 0.1)
    topics = [[word.strip() for word in line.split("│")] for line in shown.splitlines() if "orders" in line]
    assert [words[1:6] for words in topics[::2]] == [["orders", "2", "1,234", size, rate] for rate in "-0"]
    assert [words[1] for words in topics[1::2]] == ["billing"] * 2
    assert shown.endswith("┘\n")
