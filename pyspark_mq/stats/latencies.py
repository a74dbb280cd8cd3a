"""How long sending, delivering and processing took between two looks, over all producers and consumers."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store.files.figures import BUCKETS, HELD, REFUSED, Figure, figures_in
from store.model.log_protocol import Int64s

Clients = dict[tuple[str, str, str, str], Figure]  # by client, name, topic and group
_NOT_YET = (0,) * (1 + max(map(len, BUCKETS.values())))


class Latency(NamedTuple):
    """name: of BUCKETS. group: "" of a producer. times: how many were measured; p50, p99: milliseconds."""

    name: str
    topic: str
    group: str
    times: int
    p50: float
    p99: float


def clients(root: Path) -> Clients:
    """Return the figures of the processes that use the store in `root` now."""
    return {(client, each.name, each.topic, each.group): each for client, each in figures_in(root)}


def latencies(before: Clients, now: Clients) -> list[Latency]:
    """Of what was measured between two looks, by name, topic and group."""
    found: dict[tuple[str, str, str], Int64s] = {}
    for key, each in now.items():
        if each.name in BUCKETS:
            counts = np.subtract(each.counts, before[key].counts if key in before else _NOT_YET)
            found[key[1:]] = found.get(key[1:], np.zeros_like(counts)) + counts
    return [
        Latency(*labels, int(counts.sum()), _quantile(labels[0], counts, 0.5), _quantile(labels[0], counts, 0.99))
        for labels, counts in sorted(found.items())
        if counts.any()
    ]


def held(now: Clients) -> Counter[tuple[str, str]]:
    """Requests that wait for messages, by topic and group."""
    found: Counter[tuple[str, str]] = Counter()
    for each in now.values():
        if each.name == HELD:
            found[each.topic, each.group] += each.counts[0]
    return found


def refused(now: Clients) -> Counter[str]:
    """Connections that servers closed since they were started, by why."""
    return Counter({name: sum(each.counts[0] for each in now.values() if each.name == name) for name in REFUSED})


def _quantile(name: str, counts: Int64s, share: float) -> float:
    """Milliseconds within which a share of all was done: spread evenly in each bucket, and the last bound beyond it."""
    bounds = (0, *BUCKETS[name])
    rank = share * counts.sum()
    for count, (low, high) in zip(counts, pairwise(bounds), strict=False):
        if rank <= count:
            return float(low + (high - low) * rank / count)
        rank -= count
    return float(bounds[-1])
