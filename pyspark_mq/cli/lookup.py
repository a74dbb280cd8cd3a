import json
import sys
from datetime import UTC, datetime, timedelta

import click

from pyspark_mq.browsing import PointInTime, Row, bounds_of, milliseconds, offsets_at
from pyspark_mq.cli.arguments import LOG, TOPIC, log_at
from pyspark_mq.cli.json_lines import printed_as
from pyspark_mq.cli.tail import Printer
from pyspark_mq.cli.terminal import echo
from store import MessageStore, StoredMessage, UnknownTopic
from store.archive.archive_log import ArchiveAddress
from store.cluster.address import ClusterAddress
from store.directory.directory_log import DirectoryLog
from store.format.layout import PROPERTY_BODY_ERROR, SYS_COMPRESSED
from store.format.stored_message import decode_record, inflated_or_raw
from store.read.query import KeyQuery, offset_of_id


def time_given(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Option callback: parse ms since 1970 or ISO 8601. Return ms since 1970."""
    if value is None:
        return None
    try:
        return int(value) if value.isdecimal() else milliseconds(value)
    except ValueError as error:
        raise click.BadParameter(
            f"{value!r} is no time. Give one such as 2013-01-31T06:00:00, or milliseconds since 1970"
        ) from error


@click.command()
@LOG
@TOPIC
@click.option("--key", help="Find messages with this key.")
@click.option("--id", "msg_id", help="Find the message with this id.")
@click.option(
    "--time",
    "timestamp",
    callback=time_given,
    help="Find the first offset of each queue at or after this time: 2013-01-31T06:00:00, or milliseconds.",
)
@click.option("--queue", type=click.IntRange(0), help="With --time: only this queue.")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="With --key: print at most this many messages, the newest.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each message or offset.")
def query(
    store: str,
    topic: str,
    key: str | None,
    msg_id: str | None,
    timestamp: int | None,
    queue: int | None,
    count: int,
    as_json: bool,
) -> None:
    """Find messages of TOPIC by key or id, or offsets by time.

    The exit code is 1 if no message is found. STORE is the directory of a store, or the directory or URL of an archive.
    With --time it can be the name servers of a cluster: rocketmq://10.0.0.1:9876.
    """
    if [key, msg_id, timestamp].count(None) != 2:
        raise click.UsageError("Give exactly one of --key, --id and --time")
    if timestamp is not None:
        with log_at(store).open() as log:
            offsets = offsets_at(log, bounds_of(log, topic, queue), PointInTime(timestamp))
        for each, offset in offsets.items():
            line = {"queueId": each.name if each.broker else each.queue_id, "queueOffset": offset}
            echo(json.dumps(line) if as_json else f"queue {each.name}: offset {offset}")
        return
    address = log_at(store)
    if isinstance(address, ClusterAddress):
        raise click.UsageError(
            "--key and --id work with directories and archives only. For a cluster, use mqadmin queryMsgByKey"
        )
    if isinstance(address, ArchiveAddress):
        with address.open() as archive:
            bounds_of(archive, topic)
            found = (
                archive.query(KeyQuery(topic, key, count)) if key is not None else archive.with_id(topic, str(msg_id))
            )
    else:
        with MessageStore.open(store, read_only=True) as opened:
            bounds_of(DirectoryLog(opened), topic)
            found = opened.query(topic, key, count) if key is not None else by_id(opened, topic, str(msg_id))
    Printer(sys.stdout.buffer, printed_as(as_json), None).write(map(row, found))
    if not found:
        what = f"key {key!r}" if msg_id is None else f"id {msg_id!r}"
        raise click.ClickException(f"No message of topic {topic} has the {what}")


def by_id(store: MessageStore, topic: str, msg_id: str) -> list[StoredMessage]:
    """Return the messages with this id.

    The index has the ids that producers assign. Any other id contains the record's offset in the log. Raises
    `UnknownTopic` if another topic has the id, and as `MessageStore.record_at`.
    """
    most, having = 0, list[StoredMessage]()
    while len(having) == most:  # search again if newer messages have the id as a key, as replies do
        most = 2 * most + 1
        having = store.query(topic, msg_id, most)
        if found := [each for each in having if each.msg_id == msg_id]:
            return found
    message = decode_record(store.record_at(offset_of_id(msg_id)), f"message {msg_id}")
    if message.topic != topic:
        raise UnknownTopic(f"{msg_id}: this message is in topic {message.topic!r}, not in {topic!r}")
    return [inflated_or_raw(message, store.config.maxDecompressedMessageSize)]


def row(message: StoredMessage) -> Row:
    """Return a message as a row to print. A body that does not decompress is None, with the reason in `bodyError`."""
    properties, error = message.properties, None
    if message.sys_flag & SYS_COMPRESSED:
        properties = {name: value for name, value in properties.items() if name != PROPERTY_BODY_ERROR}
        error = message.properties[PROPERTY_BODY_ERROR]
    return {
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.msg_id,
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "body": message.body if error is None else None,
        "bodyError": error,
        "bornTimestamp": instant(message.born_timestamp),
        "storeTimestamp": instant(message.store_timestamp),
        "flag": message.flag,
        "properties": properties,
        "physicalOffset": message.physical_offset,
    }


def instant(milliseconds: int) -> datetime | None:
    """Return ms since 1970 as a time, None outside of the years 1 to 9999, as in a scan."""
    try:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
