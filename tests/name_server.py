"""A name server for several served stores: together they are a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from store import RequestRefused, Unreachable
from store.disk.figures import Figures
from store.model.codes import RequestCode
from store.remoting.client import Client
from store.remoting.request import Request, Response, of_json
from store.remoting.server import Processors, Server, ServerLimits
from store.remoting.threads import LoopThread, WorkerPool

_CODES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
)


@contextmanager
def name_server(*brokers: str, remembers: bool = True) -> Iterator[str]:
    """Yield the address of a name server that joins the answers of `brokers`, lists and tables. For a stopped broker it
    repeats the last answer, as a name server does for two minutes, unless remembers=False: the broker unregistered."""
    thread, last = LoopThread("names"), dict[Any, Any]()

    def answer(request: Request) -> Response:
        together: dict[str, Any] = {}
        refused: RequestRefused | None = None
        for broker in brokers:
            asked = broker, request.command.code, *sorted(request.command.fields.items())
            try:
                last[asked] = bytes(client.request(broker, request.command.code, request.command.fields).body)
            except RequestRefused as error:
                refused = error
                continue
            except Unreachable:
                if asked not in last or not remembers:
                    continue
            for name, value in json.loads(last[asked]).items():
                before = together.setdefault(name, value)
                if isinstance(value, list) and before is not value:
                    together[name] = [*before, *value]
                elif isinstance(value, dict):
                    together[name] = {**before, **value}
        if not together and refused is not None:
            raise refused
        return of_json(together)

    with Client() as client:
        processors = Processors(
            WorkerPool(1, "name-server"), {}, dict.fromkeys(_CODES, answer), lambda connection: None
        )
        server = Server(thread, processors, "127.0.0.1:0", ServerLimits(), None, Figures())
        try:
            yield server.address
        finally:
            server.close()
            thread.stop()
