import ctypes
import ipaddress
import signal
import ssl
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.commands import interruptible, sleep_until_interrupted
from pyspark_mq.cli.terminal import echo
from store import MessageStore, StoreConfig
from store.remoting.access import Access
from store.remoting.endpoints import host_and_port
from store.remoting.served_broker import BROKER_SETTINGS, BrokerConfig
from store.remoting.serving import LISTEN
from store.remoting.serving import serve as serving_of
from store.upkeep.store_directory import StoreDirectory

_SWITCH_SECONDS = 0.0005  # after which a computing thread yields the interpreter to the event loop
_STACK_BYTES = 2 << 20
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of mallopt(3)
_MAPPED_BYTES, _ARENAS = 256 << 10, 2  # mapped blocks go back to the system when they are freed
FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@STORE
@click.option("--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="The address to listen on.")
@click.option("--config", type=FILE, help="A file with settings of store and broker, as RocketMQ's broker.conf.")
@click.option("--broker", help=f"The broker's name.  [default: brokerName, {BrokerConfig.brokerName}]")
@click.option("--cluster", help=f"The cluster's name.  [default: brokerClusterName, {BrokerConfig.brokerClusterName}]")
@click.option(
    "--create-topics/--no-create-topics",
    default=None,
    help="Whether a topic is created when a client sends to it, or joins a new group.  "
    "[default: autoCreateTopicEnable, true]",
)
@click.option(
    "--accounts",
    type=FILE,
    help="A file with accounts and permissions, as RocketMQ's plain_acl.yml. Clients must then sign requests.",
)
@click.option("--tls-cert", type=FILE, help="A file with the server's certificate (PEM). Clients must then use TLS.")
@click.option("--tls-key", type=FILE, help="A file with the certificate's key, if --tls-cert does not have it.")
def serve(
    store: str,
    listen: str,
    config: str | None,
    broker: str | None,
    cluster: str | None,
    create_topics: bool | None,
    accounts: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Serve STORE to RocketMQ's clients, until Ctrl-C.

    It is their name server and broker. Without --accounts, everyone who reaches the port can send, read and create
    topics. A missing or empty directory becomes a store. SIGTERM ends the command, too.
    """
    access = None if accounts is None else Access.load(accounts)
    tls = _tls(tls_cert, tls_key)
    broker_config = BrokerConfig() if config is None else BrokerConfig.load(config)
    options = {"brokerName": broker, "brokerClusterName": cluster, "autoCreateTopicEnable": create_topics}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    _tune_process()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    with (
        interruptible(lambda: f"{store} is served no longer"),
        MessageStore.open(store, config=_configuration(store, listen, config)) as opened,
        serving_of(opened, listen, config=replace(broker_config, **given), access=access, tls=tls) as serving,
    ):
        echo(f"{store}: name server and broker at {serving.address}; Ctrl-C ends it")
        sleep_until_interrupted()


def _tune_process() -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    threading.stack_size(_STACK_BYTES)
    with suppress(OSError, AttributeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def _configuration(store: str, listen: str, path: str | None) -> StoreConfig:
    """Return the store's configuration with the listening address, which message ids contain.

    Admin tools connect to this address, too.
    """
    directory = StoreDirectory.at(store)
    directory.create()
    config = directory.configuration(None if path is None else StoreConfig.load(path, BROKER_SETTINGS))
    host, port = host_and_port(listen)
    with suppress(ValueError):  # not an IPv4 address: message ids hold only those
        if port and not ipaddress.IPv4Address(host).is_unspecified:
            return replace(config, brokerIP1=host, listenPort=port)
    return config


def _tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None:
            raise click.UsageError("--tls-key needs --tls-cert. Give both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise click.UsageError(
            f"--tls-cert {cert}, --tls-key {key}: these files are not a certificate and its key in PEM: {error}"
        ) from error
    return context
