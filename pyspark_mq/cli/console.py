from __future__ import annotations

import click

from pyspark_mq.cli.arguments import STORE_OR_CLUSTER, log_at
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.terminal import echo
from store.remoting.endpoints import host_and_port

LISTEN_CONSOLE = "127.0.0.1:8770"
_DIRECTORY_SECONDS, _CLUSTER_SECONDS = 1.0, 5.0


@click.command()
@STORE_OR_CLUSTER
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=LISTEN_CONSOLE,
    show_default=True,
    help="The address to listen on; port 0 chooses a free port.",
)
@click.option("--allow-changes", is_flag=True, help="Allow users to reset groups, and to send dead letters again.")
def console(store: str, listen: str, allow_changes: bool) -> None:
    """Show STORE in a web browser, until Ctrl-C.

    The pages show topics, messages, groups with their lag, dead letters and damaged files. The command prints their
    address, with a token that every page needs. STORE is a directory, also a RocketMQ broker's; or a cluster, by its
    name servers: rocketmq://10.0.0.1:9876.
    """
    try:
        from pyspark_mq.console.console_server import ConsoleServer
    except ImportError as error:
        raise click.ClickException(f"{error}. Install the console: pip install 'pyspark-mq[console]'") from error
    address = log_at(store)
    interval = _CLUSTER_SECONDS if address.directory is None else _DIRECTORY_SECONDS
    with interruptible(lambda: f"no more console of {store}"):
        server = ConsoleServer(address, *host_and_port(listen), interval=interval, allow_changes=allow_changes)
        echo(server.url)
        server.serve_pages()
