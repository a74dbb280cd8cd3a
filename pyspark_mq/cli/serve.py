"""`pyspark-mq serve`: a store as RocketMQ's name server and broker."""

import ipaddress
import signal
import threading
from contextlib import suppress
from dataclasses import replace

import click

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.commands import interruptible
from store import MessageStore, StoreConfig
from store.remoting.addresses import host_and_port
from store.remoting.serving import BROKER, CLUSTER, LISTEN
from store.remoting.serving import serve as serving_of
from store.upkeep.directory import Directory


@click.command()
@STORE
@click.option("--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="Where clients come.")
@click.option("--broker", default=BROKER, show_default=True, help="The broker's name.")
@click.option("--cluster", default=CLUSTER, show_default=True, help="Its cluster's name.")
@click.option(
    "--create-topics/--no-create-topics",
    default=True,
    show_default=True,
    help="Whether the first message that is sent to a topic makes it.",
)
def serve(store: str, listen: str, broker: str, cluster: str, create_topics: bool) -> None:
    """Serve STORE to RocketMQ's clients, as name server and broker, until Ctrl-C or SIGTERM.

    There is no access control: whoever reaches the port may send, read and make topics. A directory that is missing or
    empty becomes a store.
    """
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with (
        interruptible(lambda: f"{store} is served no longer"),
        MessageStore.open(store, config=_configuration(store, listen)) as opened,
        serving_of(opened, listen, broker=broker, cluster=cluster, create_topics=create_topics) as serving,
    ):
        click.echo(f"{store}: name server and broker at {serving.address}; Ctrl-C ends it")
        over.wait()


def _configuration(store: str, listen: str) -> StoreConfig:
    """The store's own, but that ids of messages name where it listens: admin tools ask there for them."""
    directory = Directory.at(store)
    directory.create()
    config = directory.configuration(None)
    host, port = host_and_port(listen)
    with suppress(ValueError):  # no IPv4 address: ids have room for those only
        if port and not ipaddress.IPv4Address(host).is_unspecified:
            return replace(config, brokerIP1=host, listenPort=port)
    return config
