from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from store.api.group_protocol import Group, Subscriptions
from tests.waiting import PATIENCE

_FORK = multiprocessing.get_context("fork")


class RemoteMember:
    """A group member in another process; `call` runs its methods."""

    def __init__(self, group: Group, subscriptions: Subscriptions, options: dict[str, Any]) -> None:
        self._here, there = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(there, group, subscriptions, options), daemon=True)
        self.process.start()
        self.id: str = self._answer()

    def call(self, verb: str, *arguments: Any) -> Any:
        self._here.send((verb, arguments))
        return self._answer()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def _answer(self) -> Any:
        assert self._here.poll(2 * PATIENCE), "the member does not answer"
        found = self._here.recv()
        if isinstance(found, Exception):
            raise found
        return found


def _serve(pipe: Connection, group: Group, subscriptions: Subscriptions, options: dict[str, Any]) -> None:
    with group.join(subscriptions, **options) as member:
        pipe.send(member.id)
        while True:
            verb, arguments = pipe.recv()
            pipe.send(getattr(member, verb)(*arguments))


@contextmanager
def remote_member(group: Group, subscriptions: Subscriptions, **options: Any) -> Iterator[RemoteMember]:
    member = RemoteMember(group, subscriptions, options)
    try:
        yield member
    finally:
        member.kill()
