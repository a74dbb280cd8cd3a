"""Arguments and options that many commands have, and how a shell completes them.

    eval "$(pyspark-mq completion bash)"

switches completion on, in `~/.bashrc` for good.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from store import StoreError, message_filter
from store.any_log import LogAddress, MessageFilter
from store.cluster.address import ClusterAddress
from store.files.consumer_offsets import ConsumerOffsets
from store.files.topics import Topics
from store.local import LocalAddress


def topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics of the command's store."""
    store = ctx.params.get("store")
    with suppress(StoreError, OSError):  # a line that is being typed: nothing to offer is no error
        return _beginning_with(incomplete, Topics(Path(store)).queue_counts() if store else ())
    return []


def groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The consumer groups of the command's store."""
    store = ctx.params.get("store")
    with suppress(StoreError, OSError):
        return _beginning_with(incomplete, ConsumerOffsets(Path(store)).names() if store else ())
    return []


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


STORE = click.argument("store", type=click.Path(file_okay=False))
TOPIC = click.argument("topic", shell_complete=topics)
GROUP = click.argument("group", shell_complete=groups)
QUEUE = click.option("--queue", type=click.IntRange(0), help="Only this queue.")
TAGS = click.option("--tags", help='Only messages with these tags: "paid || shipped".')
SQL = click.option("--sql", help="Only messages of whose properties this is true: \"region = 'eu' AND amount > 10\".")


def address_of(store: str) -> LogAddress:
    """Of a directory; or of a cluster, "rocketmq://" and its name servers. Raises `InvalidArgument`."""
    scheme = "rocketmq://"
    return ClusterAddress.parse(store.removeprefix(scheme)) if store.startswith(scheme) else LocalAddress(store)


def filter_of(tags: str | None, sql: str | None) -> MessageFilter:
    """The filter that --tags or --sql ask for. Raises `FilterError`."""
    if tags is not None and sql is not None:
        raise click.UsageError("--tags and --sql: give one of them; --sql \"TAGS = 'paid' AND ...\" has both")
    return message_filter(tags) if sql is None else message_filter(sql, "SQL92")
