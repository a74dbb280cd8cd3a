from pathlib import Path

import pytest

from pyspark_mq.console.sampler import Sampler, TopicFigures, take_sample
from store import Message, MessageStore
from store.directory.directory_log import DirectoryAddress


def test_rates_are_computed_from_two_samples(shop: Path) -> None:
    with DirectoryAddress(str(shop)).open() as log:
        first = take_sample(log, None)
        assert first.topics["orders"].rate is None
        with MessageStore.open(shop) as store:
            store.put_many([Message("orders", b"x" * 100, queue_id=0)] * 10)
            store.commit_offsets("billing", "orders", {0: 7})
        second = take_sample(log, first)
        orders, billing, seconds = second.topics["orders"], second.groups["billing"], second.at - first.at
        assert orders.rate == pytest.approx(10 / seconds, rel=0.01)
        assert orders.byte_rate is not None
        assert orders.byte_rate * seconds > 10 * 100
        assert billing.rate == pytest.approx(5 / seconds, rel=0.01)
        assert (orders.messages, billing.lag) == (14, 7)


def test_group_rate_is_an_average_of_ten_seconds(shop: Path) -> None:
    """A group commits every five seconds, so between two samples of a second it usually reads nothing."""
    sampler = Sampler(DirectoryAddress(str(shop)), 1.0)
    with MessageStore.open(shop) as store:
        store.commit_offsets("billing", "orders", {0: 3})
    sampler.look()
    sampler.look()
    assert (sampler.last.groups["billing"].rate or 0) > 0
    assert sampler.last.topics["orders"].rate == 0
    sampler.close()


def test_later_sample_has_the_sizes_of_a_first_one(shop: Path) -> None:
    with DirectoryAddress(str(shop)).open() as log:
        first = take_sample(log, None)
        with MessageStore.open(shop) as store:
            store.put_many([Message("orders", b"x" * 100)] * 10)
        assert take_sample(log, first).topics["orders"].size == take_sample(log, None).topics["orders"].size


@pytest.mark.parametrize(
    ("topic", "is_system"),
    [("orders", False), ("%RETRY%a", True), ("%DLQ%a", True), ("rmq_sys_wheel_timer", True), ("TBW102", True)],
)
def test_system_topics_are_told_apart(topic: str, is_system: bool) -> None:
    assert TopicFigures(topic, 1, 0, 0, None, None).is_system == is_system


def test_sampler_reopens_a_replaced_log(shop: Path) -> None:
    sampler = Sampler(DirectoryAddress(str(shop)), 1.0)
    sampler.log.close()
    sampler.look()
    sampler.look()
    assert sampler.failure is None
    assert sampler.last.topics["orders"].messages == 4
    sampler.close()


def test_failure_is_kept_until_the_next_sample(shop: Path) -> None:
    sampler = Sampler(DirectoryAddress(str(shop)), 1.0)
    sampler.log.close()
    moved = shop.rename(shop.with_name("moved"))
    sampler.look()
    assert sampler.failure is not None
    assert str(shop) in sampler.failure
    moved.rename(shop)
    sampler.look()
    sampler.look()
    assert sampler.failure is None
    sampler.close()
