from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_mq.errors import DataLossError, OptionError
from pyspark_mq.stats.measures import RunningQuery, running_queries
from store.api.group_protocol import Subscription
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Queue
from tests.filled import Filled
from tests.pyspark_mq.source.streaming import EARLIEST, first_batch, latest, reader
from tests.restarted import delete_as_broker


def group(filled: Filled) -> dict[int, int | None]:
    return {queue: filled.store.consumer_offset("readers", "orders", queue) for queue in (0, 1)}


def test_group_gets_offsets_of_committed_batches_only(filled: Filled) -> None:
    it = reader(filled, consumerGroup="readers", maxOffsetsPerTrigger="4", **EARLIEST)
    start = it.initialOffset()
    end = latest(it, start)
    assert group(filled) == {0: 0, 1: 0}
    it.stop()  # This batch may not be committed: Spark has not asked for the next one.
    assert group(filled) == {0: 0, 1: 0}
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    following = latest(it, end)
    assert group(filled) == {0: end["orders"]["0"], 1: end["orders"]["1"]}
    assert latest(it, following) == following
    assert group(filled) == {0: 3, 1: 5}  # Spark may end the process now without another call
    assert running_queries(Path(filled.path)) == [RunningQuery("readers", ("orders",), os.getpid())]
    it.stop()
    assert running_queries(Path(filled.path)) == []


def test_failed_commit_to_the_group_is_a_warning(
    filled: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mq/config").mkdir(exist_ok=True)
    (tmp_path / "mq/config/consumerOffset.json").write_text("[]")
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    end = latest(it, it.initialOffset())
    latest(it, end)
    it.stop()
    assert len([text for text in caplog.messages if "is not committed to group readers" in text]) == 1


def test_group_with_consumers_is_not_moved(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise later members would skip messages that the current ones have not read."""
    queue = Queue("orders", 1)
    readers = DirectoryAddress(filled.path).group("readers")
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    with readers.join({"orders": Subscription()}) as member:
        member.lock([queue])
        member.begin({queue: 0})
        member.commit({queue: 2})
        end = latest(it, it.initialOffset())
        assert latest(it, end) == end
        assert (
            caplog.text.count("of this query is not committed to group readers: the group's members consume orders")
            == 1
        )
    it.stop()  # the group's consumers may come back
    assert group(filled)[1] == 2


@pytest.mark.parametrize("messages", [1, 50])
def test_group_gets_no_offsets_of_a_recreated_topic(filled: Filled, messages: int) -> None:
    it = reader(filled, consumerGroup="readers", **EARLIEST)
    end = latest(it, it.initialOffset())
    it.stop()
    delete_as_broker(filled.path, "orders")
    filled.store.create_topic("orders", queues=2)
    filled.put("orders", 0, messages)
    it = reader(filled, consumerGroup="readers")
    with pytest.raises(DataLossError):
        latest(it, end)
    it.stop()
    assert group(filled)[0] in (0, None)


def test_query_starts_at_the_groups_offsets(filled: Filled) -> None:
    filled.store.commit_offsets("readers", "orders", {1: 2})
    it = reader(filled, consumerGroup="readers", startingOffsets="group")
    assert it.initialOffset()["orders"] == {"0": 0, "1": 2}


def test_start_at_a_groups_offset_beyond_the_end_is_refused(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.store.commit_offsets("readers", "orders", {0: 9})
    options = {"consumerGroup": "readers", "startingOffsets": "group"}
    with pytest.raises(OptionError, match=r"startingOffsets says 9 for orders/0, which ends at 3\. If"):
        first_batch(reader(filled, **options))
    assert reader(filled, failOnDataLoss="false", **options).initialOffset()["orders"] == {"0": 3, "1": 0}
    assert "startingOffsets says 9 for orders/0" in caplog.text


def test_start_at_a_groups_expired_offset_is_data_loss(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.store.commit_offsets("readers", "orders", {0: 1})
    filled.put("orders", 0, 2000, size=60)
    filled.store.clean(forced=True)
    first = filled.store.min_offset("orders", 0)
    assert first > 3
    options = {"consumerGroup": "readers", "startingOffsets": "group"}
    with pytest.raises(DataLossError, match=rf"startingOffsets: orders/0 \[1, {first}\) is lost: older messages"):
        first_batch(reader(filled, **options))
    assert reader(filled, failOnDataLoss="false", **options).initialOffset()["orders"]["0"] == first
    assert f"orders/0 [1, {first}) is lost" in caplog.text
