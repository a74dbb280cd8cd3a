"""`pyspark-mq topic`: make, list and delete topics."""

import click

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.arguments import topics as complete_topics
from pyspark_mq.cli.places import bounds_of
from store import MessageStore
from store.broker.deletion import delete_topic
from store.format.entering import NOT_FOR_PUTTING
from store.local import LocalAddress


@click.group()
def topic() -> None:
    """Make, list and delete topics."""


@topic.command()
@STORE
@click.argument("name")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True, help="How many queues it has then.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="A store.conf, for a new store.")
def create(store: str, name: str, queues: int, config: str | None) -> None:
    """Make the topic NAME, and STORE if there is none yet. More QUEUES than it has are added to it."""
    if name in NOT_FOR_PUTTING:  # and could not be deleted any more
        raise click.ClickException(f"topic {name!r} is a broker's own, made where it is needed; choose another name")
    with MessageStore.open(store, config=config) as opened:
        click.echo(f"{name}: {opened.create_topic(name, queues=queues)} queues")


@topic.command("list")
@STORE
def list_topics(store: str) -> None:
    """List the topics of STORE and how many queues each has."""
    with MessageStore.open(store, read_only=True) as opened:
        for name, queues in sorted(opened.topics().items()):
            click.echo(f"{name}: {queues} queues")


@topic.command()
@STORE
@click.argument("name", shell_complete=complete_topics)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def delete(store: str, name: str, dry_run: bool) -> None:
    """Delete the topic NAME of STORE, for good.

    Its messages go, and the offsets that groups have in it. Others may have STORE open, and put into NAME and read it:
    they are told. The log keeps the records until 'clean' takes their segments. A topic of the same name begins anew,
    at offset 0.
    """
    with LocalAddress(store).open() as log:
        bounds = bounds_of(log, name).values()
    if not dry_run:
        delete_topic(store, name)
    messages = sum(each.max_offset - each.min_offset for each in bounds)
    click.echo(f"{'would delete' if dry_run else 'deleted'} {name}: {len(bounds)} queues, {messages:,} messages")
