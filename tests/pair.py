from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from store import Message, MessageStore
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import Serving, serve
from tests.name_server import name_server


class Pair:
    """Two brokers, a and b, with `queues` queues of topic t each, and a name server that forgets stopped brokers."""

    def __init__(self, stack: ExitStack, root: Path, queues: int = 1) -> None:
        self._stack = stack
        self.stores = {name: stack.enter_context(MessageStore.open(root / name)) for name in "ab"}
        self.serving: dict[str, Serving] = {}
        for name, store in self.stores.items():
            store.create_topic("t", queues)
            self.start(name)
        self.addresses = [serving.address for serving in self.serving.values()]
        self.names = stack.enter_context(name_server(*self.addresses, remembers=False))

    def start(self, name: str) -> None:
        address = self.addresses["ab".index(name)] if name in self.serving else "127.0.0.1:0"
        serving = serve(self.stores[name], address, config=BrokerConfig(brokerName=name))
        self.serving[name] = self._stack.enter_context(serving)

    def put(self, name: str, *numbers: int) -> None:
        self.stores[name].put_many([Message("t", b"%d" % number) for number in numbers])
