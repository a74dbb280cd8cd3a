"""Every kind of open object of the store, and calls of all its public methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from store import Message, MessageStore, StoreError
from store.append.watch import Watch
from store.archive.of_store import StoreArchive
from store.broker.hold import PullRequestHoldService
from store.model.log_protocol import Queue, QueueRange, ReadSpec
from store.read.filters import EVERYTHING

ID = "7F00000100002A9F0000000000000000"
Verb = Callable[[Any], object]
STORE: dict[str, Verb] = {
    "append_table": lambda it: it.append_table("t", pa.table({"body": [b"x"]})),
    "begin": lambda it: it.begin().publish(),
    "archive": lambda it: it.archive(f"{it.path}-archive"),
    "arrivals": lambda it: it.arrivals(0, 0),
    "bounds": lambda it: it.bounds([Queue("t", 0)]),
    "can_have": lambda it: it.can_have("t", 0, 0, None),
    "clean": lambda it: it.clean(forced=True),
    "commit_offsets": lambda it: it.commit_offsets("g", "t", {0: 1}),
    "confirm_offset": lambda it: it.confirm_offset,
    "consumer_offset": lambda it: it.consumer_offset("g", "t", 0),
    "copies": lambda it: it.copies(np.array([0])),
    "create_topic": lambda it: it.create_topic("u", 1),
    "delete_topic": lambda it: it.delete_topic("none"),
    "dispatched_offset": lambda it: it.dispatched_offset,
    "fingerprint": lambda it: it.fingerprint("t", 0, 0),
    "fingerprints": lambda it: it.fingerprints({Queue("t", 0): 0}),
    "flush": lambda it: it.flush(),
    "get_message": lambda it: it.get_message("g", "t", 0, 0),
    "max_offset": lambda it: it.max_offset("t", 0),
    "message_by_id": lambda it: it.message_by_id(ID),
    "min_offset": lambda it: it.min_offset("t", 0),
    "must_be_open": lambda it: it.must_be_open(),
    "offset_by_time": lambda it: it.offset_by_time("t", 0, 0),
    "offsets": lambda it: it.offsets("t", 0),
    "put": lambda it: it.put(Message("t", b"x")),
    "put_many": lambda it: it.put_many([]),
    "query": lambda it: it.query("t", "k"),
    "read": lambda it: it.read(QueueRange(Queue("t", 0), 0, 0), ReadSpec(("body",), EVERYTHING)),
    "read_own": lambda it: it.read_own(QueueRange(Queue("t", 0), 0, 0), ReadSpec(("body",), EVERYTHING)),
    "record_at": lambda it: it.record_at(0),
    "scan": lambda it: it.scan("t", 0, 0, 0),
    "sizes": lambda it: it.sizes("t", 0, 0, 0),
    "tags_codes": lambda it: it.tags_codes("t", 0, 0, 0),
    "tiered": lambda it: it.tiered(StoreArchive.remembered(it.path, it.config)),
    "to_arrow": lambda it: it.to_arrow("t"),
    "first_message": lambda it: it.first_message(),
    "topics": lambda it: it.topics(),
    "topics_table": lambda it: it.topics_table(),
    "groups_table": lambda it: it.groups_table(),
    "wait": lambda it: it.wait(0, 0.0),
    "watch": lambda it: it.watch(),
    "with_keys": lambda it: it.with_keys([], []),
}
WATCH: dict[str, Verb] = {
    "add": lambda it: it.add(it._ends[0]),
    "interrupt": lambda it: it.interrupt(),
    "must_be_open": lambda it: it.must_be_open(),
    "polls": lambda it: it.polls,
    "wait": lambda it: it.wait(0.0),
}
HOLD: dict[str, Verb] = {
    "cancel": lambda it: it.cancel(next(iter(it._requests.all()), None)),
    "held": lambda it: it.held,
    "hold": lambda it: it.hold("t", 0, 0, 0.0, lambda *woken: None),
    "must_be_open": lambda it: it.must_be_open(),
}
NO_VERBS = {
    MessageStore: {"open", "close", "is_forked", "is_inside", "path", "config", "figures"},
    Watch: {"of", "close", "is_forked"},
    PullRequestHoldService: {"stop", "failure", "is_forked"},
}
ALL = {MessageStore: STORE, Watch: WATCH, PullRequestHoldService: HOLD}


def outcome(verb: Verb, it: object) -> str:
    try:
        verb(it)
    except StoreError as error:
        return type(error).__name__
    return "done"
