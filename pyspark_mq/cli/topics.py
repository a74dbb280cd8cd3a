"""`pyspark-mq topic`: make and list topics."""

import click

from pyspark_mq.cli.arguments import STORE
from store import MessageStore


@click.group()
def topic() -> None:
    """Make and list topics."""


@topic.command()
@STORE
@click.argument("name")
@click.option("--queues", type=click.IntRange(1), default=4, show_default=True, help="How many queues it has then.")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="A store.conf, for a new store.")
def create(store: str, name: str, queues: int, config: str | None) -> None:
    """Make the topic NAME, and STORE if there is none yet. More QUEUES than it has are added to it."""
    with MessageStore.open(store, config=config) as opened:
        click.echo(f"{name}: {opened.create_topic(name, queues=queues)} queues")


@topic.command("list")
@STORE
def list_topics(store: str) -> None:
    """List the topics of STORE and how many queues each has."""
    with MessageStore.open(store, read_only=True) as opened:
        for name, queues in sorted(opened.topics().items()):
            click.echo(f"{name}: {queues} queues")
