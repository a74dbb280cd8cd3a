import time

import click

from pyspark_mq.browsing import bounds_of
from pyspark_mq.cli.arguments import ALL, STORE
from pyspark_mq.cli.arguments import topics as complete_topics
from pyspark_mq.cli.terminal import YES, Cells, aligned, echo, must_confirm, number
from pyspark_mq.stats.measures import extent, group_lags
from store import InvalidTopic, MessageStore
from store.api.message_store import delete_topic
from store.directory.directory_log import DirectoryAddress, DirectoryLog
from store.format.entering import NOT_FOR_PUTTING
from store.format.topic_names import is_internal_topic
from store.model.log_protocol import Queue


@click.group()
def topic() -> None:
    """Create, grow, list, describe and delete topics."""


@topic.command()
@STORE
@click.argument("name")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True, help="The number of queues.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with settings for a new store, as store.conf.",
)
def create(store: str, name: str, queues: int, config: str | None) -> None:
    """Create the topic NAME, and STORE if it does not exist."""
    if name in NOT_FOR_PUTTING:  # a topic with this name could not be deleted
        raise InvalidTopic(
            f"Topic {name!r} is one of RocketMQ's own topics, which are created when they are needed. Choose another "
            "name"
        )
    with MessageStore.open(store, config=config) as opened:
        if existing := opened.topics().get(name):
            raise InvalidTopic(
                f"Topic {name!r} exists in {store}, with {existing} queues. To add queues: "
                f"pyspark-mq topic alter {store} {name} --queues N"
            )
        echo(f"{name}: {opened.create_topic(name, queues=queues)} queues")


@topic.command()
@STORE
@click.argument("name", shell_complete=complete_topics)
@click.option("--queues", type=click.IntRange(1), required=True, help="The new number of queues, not less than now.")
@YES
def alter(store: str, name: str, queues: int, yes: bool) -> None:
    """Add queues to the topic NAME of STORE.

    Most sharding keys then map to another queue, so messages of one key are not in order across this change.
    """
    with MessageStore.open(store, create=False) as opened:
        before = len(bounds_of(DirectoryLog(opened), name))
        must_confirm(f"Add {queues - before} queues to {name}? Sharding keys move to other queues.", yes)
        echo(f"{name}: {opened.create_topic(name, queues=queues)} queues")


@topic.command("list")
@STORE
@ALL
def list_topics(store: str, show_all: bool) -> None:
    """List the topics of STORE with their numbers of queues."""
    with MessageStore.open(store, read_only=True) as opened:
        for name, queues in sorted(opened.topics().items()):
            if show_all or not is_internal_topic(name):
                echo(f"{name}: {queues} queues")


@topic.command()
@STORE
@click.argument("name", shell_complete=complete_topics)
def describe(store: str, name: str) -> None:
    """Show the queues of the topic NAME, and the groups that read it."""
    with MessageStore.open(store, read_only=True) as opened:
        log = DirectoryLog(opened)
        rows: list[Cells] = [("queue", "first", "end", "messages", "bytes", "oldest", "newest")]
        for queue in bounds_of(log, name):
            each = extent(opened, queue)
            times = (_time(opened, queue, offset) for offset in (each.first, each.end - 1))
            numbers = map(number, (each.first, each.end, each.messages, each.size))
            rows.append((queue.name, *numbers, *(times if each.messages else "--")))
        echo(aligned(rows))
        behind: dict[str, int] = {}
        for lag in group_lags(log, topic=name):
            behind[lag.group] = behind.get(lag.group, 0) + lag.messages
        for group, messages in behind.items():
            echo(f"group {group}: {messages:,} messages behind")


def _time(store: MessageStore, queue: Queue, offset: int) -> str:
    found = store.fingerprint(queue.topic, queue.queue_id, offset)
    return "-" if found is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.store_timestamp / 1000))


@topic.command()
@STORE
@click.argument("name", shell_complete=complete_topics)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@YES
def delete(store: str, name: str, dry_run: bool, yes: bool) -> None:
    """Delete the topic NAME of STORE with all its messages.

    Other processes may have STORE open; their producers and readers of NAME get an error. The offsets of groups stay.
    The disk space is free when 'clean' has deleted the segments.
    """
    with DirectoryAddress(store).open() as log:
        bounds = bounds_of(log, name).values()
    messages = sum(each.max_offset - each.min_offset for each in bounds)
    if not dry_run:
        must_confirm(f"Delete {name} with {messages:,} messages?", yes)
        delete_topic(store, name)
    echo(f"{'would delete' if dry_run else 'deleted'} {name}: {len(bounds)} queues, {messages:,} messages")
