"""Opens a store or a cluster for the commands that read its numbers periodically."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from pyspark_mq.cli.arguments import log_at
from pyspark_mq.stats.measures import Look, look, look_at_cluster
from store import MessageStore
from store.cluster.address import ClusterAddress


@contextmanager
def looks_at(place: str) -> Iterator[Callable[[Look | None], Look]]:
    """Open a store or a cluster. Yield a function from the previous look, or None, to the current one."""
    address = log_at(place)
    if isinstance(address, ClusterAddress):
        with address.open() as log:
            yield partial(look_at_cluster, log)
    else:
        with MessageStore.open(place, read_only=True) as opened:
            yield partial(look, opened)
