import json
from itertools import groupby
from operator import attrgetter
from typing import Any

import click

from pyspark_mq.browsing import FORMS, Place, bounds_of, offsets_at
from pyspark_mq.cli.arguments import GROUP, QUEUE, STORE, STORE_OR_CLUSTER, TOPIC, log_at, place, words
from pyspark_mq.cli.arguments import topics as complete_topics
from pyspark_mq.cli.terminal import YES, Cells, aligned, echo, must_confirm, number
from pyspark_mq.stats.measures import GroupLag, group_lags
from store.api.group_protocol import MemberInfo, MessageModel
from store.client.log_kinds import address_at
from store.directory.directory_group import DirectoryGroup
from store.directory.directory_log import DirectoryAddress
from store.model.log_protocol import Log, LogAddress, Queue


@click.group()
def groups() -> None:
    """Show, reset and delete the offsets of consumer groups."""


@groups.command("list")
@STORE_OR_CLUSTER
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each group and topic.")
def list_groups(store: str, as_json: bool) -> None:
    """List the groups of STORE with their lag.

    The lag is the number of messages of a topic that the group has not read. STORE is a directory; or a cluster, by its
    name servers: rocketmq://10.0.0.1:9876;10.0.0.2:9876.
    """
    with log_at(store).open() as log:
        found = [
            (*key, total(list(part))) for key, part in groupby(group_lags(log), key=attrgetter("group", "queue.topic"))
        ]
        idle = log.groups().keys() - {group for group, _, _ in found}
    lines: list[tuple[str, str | None, int | None]] = sorted([*found, *((group, None, None) for group in idle)])
    if as_json:
        for group, topic, lag in lines:
            echo(json.dumps({"group": group, "topic": topic, "lag": lag}))
    else:
        rows = [(group, topic or "-", number(lag)) for group, topic, lag in lines]
        echo(aligned([("group", "topic", "lag"), *rows], left=2))


@groups.command()
@STORE_OR_CLUSTER
@GROUP
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each queue.")
def show(store: str, group: str, topic: str | None, as_json: bool) -> None:
    """Show the offset and the lag of GROUP in each queue.

    A queue's line also has the member that owns it. STORE is a directory; or a cluster, by its name servers:
    rocketmq://10.0.0.1:9876. Members of a cluster's group are not shown.
    """
    address = log_at(store)
    with address.open() as log:
        if topic is not None and topic not in log.topics():
            raise click.ClickException(f"{address}: topic {topic!r} does not exist")
        found = list(group_lags(log, group, topic))
        if not found:
            raise click.ClickException(no_offsets(address, log, group, topic))
    owners = owners_of(address.group(group).members()) if isinstance(address, DirectoryAddress) else {}
    if as_json:
        for each in found:
            group, queue, offset, end, messages = each
            line = {
                "group": group,
                "topic": queue.topic,
                "queue": queue.name if queue.broker else queue.queue_id,
                "offset": offset,
                "end": end,
                "messages": messages,
                "members": owners.get(queue, []),
            }
            echo(json.dumps(line))
        return
    rows: list[Cells] = [("topic", "queue", "offset", "end", "lag", "member")]
    for each in found:
        owner = " ".join(owners.get(each.queue, ["-"]))
        rows.append((each.queue.topic, each.queue.name, *map(number, (each.offset, each.end, each.messages)), owner))
    echo(f"{aligned(rows)}\n\n{number(total(found))} messages behind")


@groups.command()
@STORE
@GROUP
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each member.")
def members(store: str, group: str, as_json: bool) -> None:
    """Show the members of GROUP.

    Members are the processes on this host that read for the group.
    """
    it = DirectoryGroup(store, group)
    it.must_exist()
    found = it.members()
    if as_json:
        for each in found:
            echo(json.dumps(described(each)))
        return
    rows: list[Cells] = [("member", "reads", "mode", "queues", "silent")]
    for each in found:
        reads = ", ".join(f"{topic} {of.expression}" for topic, of in sorted(each.subscriptions.items()))
        rows.append((each.id, reads, mode(each), number(len(each.queues)), f"{each.silent_seconds:.0f} s"))
    echo(aligned(rows, left=3) if found else f"Group {group} has no members")


@groups.command()
@STORE
@GROUP
@TOPIC
@click.option(
    "--to",
    "target",
    metavar="PLACE",
    required=True,
    callback=place,
    shell_complete=words,
    help=f"Where to move it: {FORMS}.",
)
@QUEUE
@click.option("--create", is_flag=True, help="Create GROUP if it does not exist.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@YES
def reset(
    store: str, group: str, topic: str, target: Place, queue: int | None, create: bool, dry_run: bool, yes: bool
) -> None:
    """Move GROUP to another place in TOPIC.

    Running members continue there at once, and do not commit the messages in hand. An offset applies to every queue;
    one outside of a queue becomes its first or its end. An age is counted back from now.
    """
    it = DirectoryGroup(store, group)
    if not create:
        it.must_exist()
    with address_at(store).open() as log:
        bounds = bounds_of(log, topic, queue)
        before = log.committed(group, bounds)
        rows: list[Cells] = [("queue", "from", "to", "lag")]
        moved = {}
        for each, wanted in offsets_at(log, bounds, target).items():
            first, end = bounds[each]
            moved[each] = min(max(wanted, first), end)
            rows.append((each.name, *map(number, (before.get(each), moved[each], end - moved[each]))))
        readers = it.members()
        echo(f"{aligned(rows)}\n")
        if not dry_run:
            must_confirm(f"Move {group} in {topic} as shown?", yes)
            it.create()
            it.reset(moved)
    who = f"; members that go with it: {len(readers)}" if readers else ""
    echo(f"{'would move' if dry_run else 'moved'} {group} in {topic}{who}")


@groups.command()
@STORE
@GROUP
@YES
def delete(store: str, group: str, yes: bool) -> None:
    """Delete GROUP from STORE, with its settings and offsets.

    The group must have no members. Its topics of retries and dead letters stay; 'topic delete' deletes them.
    """
    it = DirectoryGroup(store, group)
    it.must_exist()
    must_confirm(f"Delete group {group} with its offsets?", yes)
    it.delete(with_offsets=True)
    echo(f"deleted {group}")


def total(found: list[GroupLag]) -> int:
    return sum(each.messages for each in found)


def owners_of(found: list[MemberInfo]) -> dict[Queue, list[str]]:
    """Return the ids of the members that own each queue. In broadcasting mode a queue has several owners."""
    owners: dict[Queue, list[str]] = {}
    for each in found:
        for queue in each.queues:
            owners.setdefault(queue, []).append(each.id)
    return owners


def described(member: MemberInfo) -> dict[str, Any]:
    return {
        "member": member.id,
        "subscriptions": {topic: of._asdict() for topic, of in sorted(member.subscriptions.items())},
        "model": member.model.value,
        "orderly": member.orderly,
        "queues": [{"topic": queue.topic, "queue": queue.queue_id} for queue in member.queues],
        "silentSeconds": round(member.silent_seconds, 3),
    }


def mode(member: MemberInfo) -> str:
    broadcasting = member.model is MessageModel.BROADCASTING
    return "broadcasting" if broadcasting else "orderly" if member.orderly else "concurrently"


def no_offsets(address: LogAddress, log: Log, group: str, topic: str | None) -> str:
    if isinstance(address, DirectoryAddress):
        address.group(group).must_exist()
    if (groups := log.groups()) and group not in groups:
        return f"{address}: group {group!r} has no offsets. Groups with offsets: {', '.join(sorted(groups))}"
    where = f"of {topic} " if topic else ""
    return f"{address}: group {group!r} has no offsets {where}yet. Set them: pyspark-mq groups reset"
