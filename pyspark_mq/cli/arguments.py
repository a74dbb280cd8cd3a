"""Arguments and options that commands share, and their shell completion."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from pyspark_mq.browsing import ENDS, Place, PointInTime, place_of, seconds_of
from pyspark_mq.cli.terminal import echo
from store import FilterError, InvalidArgument, ObjectsUnavailable, StoreError, message_filter
from store.archive.place import is_archive
from store.client.log_kinds import address_at
from store.cluster.address import SCHEME, ClusterAddress, Credentials
from store.disk.consumer_offsets import ConsumerOffsets
from store.disk.topics import Topics
from store.model.log_protocol import LogAddress, MessageFilter
from store.objects.urls import local_path
from store.remoting.endpoints import Tls
from store.upkeep.store_directory import StoreDirectory


def topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    store = ctx.params.get("store")
    with suppress(StoreError, OSError):  # no errors while the user types the line
        return _beginning_with(incomplete, Topics(Path(store)).queue_counts() if store else ())
    return []


def groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    store = ctx.params.get("store")
    with suppress(StoreError, OSError):
        return _beginning_with(incomplete, ConsumerOffsets(Path(store)).names() if store else ())
    return []


def words(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _beginning_with(incomplete, ENDS)


def _beginning_with(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def place(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Place | None:
    with _bad_parameter():
        return None if value is None else place_of(value)


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Option callback: parse a time or an age to ms since 1970."""
    with _bad_parameter():
        found = None if value is None else place_of(value)
    if value is not None and not isinstance(found, PointInTime):
        raise click.BadParameter(f"{value!r} is neither an age (10m, 2h, 3d) nor a time (2013-01-31T06:00)")
    return found.milliseconds if isinstance(found, PointInTime) else None


def age(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    with _bad_parameter():
        return seconds_of(value)


@contextmanager
def _bad_parameter() -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        raise click.BadParameter(str(error)) from error


def _has_only_archive(place: str) -> bool:
    local = local_path(place)
    if local is None:
        return True
    with suppress(ObjectsUnavailable, OSError):  # opening the store reports the error
        return is_archive(local) and not StoreDirectory.at(local).is_store()
    return False


def _store_or_cluster(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not value.startswith(SCHEME) and _has_only_archive(value):
        raise click.ClickException(
            f"{value}: this is an archive, and this command needs a store's directory. Name the directory of the "
            "archive's store, or create a store from the archive: pyspark-mq restore"
        )
    return value


def _store(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value.startswith(SCHEME):
        raise click.ClickException(
            f"{value}: this is a cluster, and this command needs a store's directory. For a cluster, use RocketMQ's "
            "mqadmin, or one of these pyspark-mq commands: stats, top, tail, export, query --time, groups list, groups "
            "show"
        )
    return _store_or_cluster(ctx, param, value)


_PLACE = click.Path(file_okay=False)
STORE = click.argument("store", type=_PLACE, callback=_store)
STORE_OR_CLUSTER = click.argument("store", type=_PLACE, callback=_store_or_cluster)
LOG = click.argument("store", type=_PLACE)  # a store, an archive or a cluster, see `log_at`
TOPIC = click.argument("topic", shell_complete=topics)
GROUP = click.argument("group", shell_complete=groups)
ALL = click.option(
    "--all", "show_all", is_flag=True, help="Include RocketMQ's own topics: retries, dead letters, rmq_sys_..."
)
QUEUE = click.option("--queue", type=click.IntRange(0), help="Only this queue.")
TAGS = click.option("--tags", help='Only messages with these tags: "paid || shipped".')
UNREADABLE = click.Choice(["error", "null"])
SQL = click.option("--sql", help="Only messages whose properties match: \"region = 'eu' AND amount > 10\".")


_ACCESS_KEY, _SECRET_KEY, _CA_FILE = "ROCKETMQ_ACCESS_KEY", "ROCKETMQ_SECRET_KEY", "ROCKETMQ_CA_FILE"
_PATIENCE_SECONDS = 5.0  # short, since a user waits at a terminal


def log_at(store: str) -> LogAddress:
    """Return the address of a store, an archive or a cluster. Raises `InvalidArgument` or `ConfigError`.

    A cluster's account and CA file come from the environment, because other users can see command lines.
    """
    address = address_at(store)
    return _with_account(address) if isinstance(address, ClusterAddress) else address


def _with_account(cluster: ClusterAddress) -> ClusterAddress:
    access_key, secret_key, ca_file = map(os.environ.get, (_ACCESS_KEY, _SECRET_KEY, _CA_FILE))
    if bool(access_key) != bool(secret_key):
        raise InvalidArgument(
            f"{_ACCESS_KEY} and {_SECRET_KEY} belong together. Set both in the environment, or neither"
        )
    return replace(
        cluster,
        credentials=Credentials(access_key, secret_key) if access_key and secret_key else None,
        tls=Tls.trusting(ca_file) if ca_file else None,
        patience=_PATIENCE_SECONDS,
        broker_timeout=_PATIENCE_SECONDS,
    )


def filter_of(tags: str | None, sql: str | None) -> MessageFilter:
    if tags is not None and sql is not None:
        raise click.UsageError(
            "--tags and --sql exclude each other. Give one of them; --sql can ask for tags, too: \"TAGS = 'paid' AND "
            '..."'
        )
    try:
        return message_filter(tags) if sql is None else message_filter(sql, "SQL92")
    except FilterError as error:  # only the first line: an SQL error has two more, which point to the column
        raise click.UsageError(f"{'--tags' if sql is None else '--sql'}: {str(error).splitlines()[0]}") from error


PROGRAM = "pyspark-mq"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands.

    It completes commands, options, stores, topics and groups. bash and zsh: eval "$(pyspark-mq completion bash)", in
    ~/.bashrc or ~/.zshrc for all shells. fish: pyspark-mq completion fish > ~/.config/fish/completions/pyspark-mq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{PROGRAM}_COMPLETE".replace("-", "_").upper()
    echo(kind(ctx.find_root().command, {}, PROGRAM, variable).source())
