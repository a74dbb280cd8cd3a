"""`pyspark-mq groups`: where consumer groups stand, and how to put them elsewhere."""

import json
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import click

from pyspark_mq.cli.arguments import GROUP, QUEUE, STORE, TOPIC
from pyspark_mq.cli.arguments import topics as complete_topics
from pyspark_mq.cli.lag import Lag, lags
from pyspark_mq.cli.places import FORMS, Place, offsets_at, place, queues_of, words
from pyspark_mq.cli.tables import Cells, aligned, number
from store import MessageStore
from store.files.consumer_offsets import ConsumerOffsets, check_group_name


@click.group()
def groups() -> None:
    """Show and move the offsets of consumer groups."""


@groups.command("list")
@STORE
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each group and topic.")
def list_groups(store: str, as_json: bool) -> None:
    """List the groups of STORE, the topics they read, and how many messages they have not read yet."""
    with MessageStore.open(store, read_only=True) as opened:
        found = [(*key, total(list(part))) for key, part in groupby(lags(opened), key=attrgetter("group", "topic"))]
    idle = set(ConsumerOffsets(Path(store)).names()) - {group for group, _, _ in found}
    lines: list[tuple[str, str | None, int | None]] = sorted([*found, *((group, None, None) for group in idle)])
    if as_json:
        for group, topic, lag in lines:
            click.echo(json.dumps({"group": group, "topic": topic, "lag": lag}))
    else:
        rows = [(group, topic or "-", number(lag)) for group, topic, lag in lines]
        click.echo(aligned([("group", "topic", "lag"), *rows], left=2))


@groups.command()
@STORE
@GROUP
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each queue.")
def show(store: str, group: str, topic: str | None, as_json: bool) -> None:
    """Show where GROUP stands in each queue of the topics it reads, or of TOPIC, and how far it is behind."""
    with MessageStore.open(store, read_only=True) as opened:
        found = list(lags(opened, group, topic))
    if not found:
        raise click.ClickException(no_offsets(store, group, topic))
    if as_json:
        click.echo("\n".join(json.dumps(each._asdict()) for each in found))
        return
    rows: list[Cells] = [("topic", "queue", "offset", "end", "lag")]
    rows += [(each.topic, str(each.queue), *map(number, (each.offset, each.end, each.messages))) for each in found]
    click.echo(f"{aligned(rows)}\n\n{number(total(found))} messages behind")


@groups.command()
@STORE
@GROUP
@TOPIC
@click.option("--to", "target", metavar="PLACE", required=True, callback=place, shell_complete=words, help=f"{FORMS}.")
@QUEUE
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
def reset(store: str, group: str, topic: str, target: Place, queue: int | None, dry_run: bool) -> None:
    """Let GROUP go on reading TOPIC from another place: an offset counts in every queue, and an age before now.

    Stop the group's consumers first: those that run commit their own offsets again. An offset outside of a queue
    becomes its first or its end.
    """
    check_group_name(group)
    with MessageStore.open(store, create=False, read_only=dry_run) as opened:
        queues = queues_of(opened, topic, queue)
        rows: list[Cells] = [("queue", "from", "to", "lag")]
        moved = {}
        for each, wanted in offsets_at(opened, topic, queues, target).items():
            first, end = opened.offsets(topic, each)
            moved[each] = min(max(wanted, first), end)
            before = opened.consumer_offset(group, topic, each)
            rows.append((str(each), number(before), number(moved[each]), number(end - moved[each])))
        if not dry_run:
            opened.commit_offsets(group, topic, moved)
    click.echo(f"{aligned(rows)}\n\n{'would move' if dry_run else 'moved'} {group} in {topic}")


def total(found: list[Lag]) -> int:
    """The messages that are behind in all queues; all that there are where the group never committed."""
    return sum(each.messages or 0 for each in found)


def no_offsets(store: str, group: str, topic: str | None) -> str:
    """What is wrong where a group has no offsets."""
    known = ConsumerOffsets(Path(store)).names()
    where = f"of {topic} " if topic else ""
    if group in known:
        return f"{store}: group {group!r} has no offsets {where}yet; 'groups reset' gives it some"
    return f"{store}: no group {group!r}; there are: {', '.join(known) or 'none'}"
