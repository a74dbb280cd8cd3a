"""How long messages take from being sent to being seen, as a Prometheus metric that RocketMQ's client has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_BUCKETS = (1, 5, 10, 20, 50, 200, 500)  # milliseconds, as RocketMQ's


class SendTimes:
    """A histogram in a registry: of those that go together, the time of the first one sent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Histogram

        self._times = Histogram(
            "rocketmq_send_cost_time",
            "Milliseconds from sending to having been appended, of the first message of each batch",
            ("topic", "invocation_status"),
            buckets=_BUCKETS,
            registry=registry,
        )

    def note(self, topic: str, seconds: float, *, failed: bool) -> None:
        """Messages that were sent up to `seconds` ago are settled."""
        self._times.labels(topic, "failure" if failed else "success").observe(seconds * 1000)


_in_registries: WeakKeyDictionary[CollectorRegistry, SendTimes] = WeakKeyDictionary()


def send_times(registry: CollectorRegistry) -> SendTimes:
    """The one histogram of a registry, whichever producer asks first."""
    if registry not in _in_registries:
        _in_registries[registry] = SendTimes(registry)
    return _in_registries[registry]
