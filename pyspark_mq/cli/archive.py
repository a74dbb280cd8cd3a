import time
from collections.abc import Sequence

import click
from tqdm import tqdm

from pyspark_mq.cli.arguments import STORE, age, moment
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.terminal import YES, echo, must_confirm
from store import Archived, MessageStore, NoArchive, ObjectsUnavailable, QueuesPassedOver, StoreLocked
from store.archive.archive_log import ArchiveAddress
from store.archive.of_store import ArchiveSettings, is_same_place, remembered
from store.directory.restoring import restore as restore_store
from store.upkeep.store_directory import StoreDirectory

_WATCH_SECONDS = 60.0


@click.command()
@STORE
@click.option(
    "--to",
    "url",
    help="The archive: a directory, or a URL such as s3://bucket/mq (default: the store's archive).",
)
@click.option(
    "--older-than", default="0s", callback=age, help="Archive only messages that are older than this: 90s, 10m, 1h, 3d."
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    help="Archive only this topic, also in later runs; may be repeated "
    "(default: as in the last run; at first, all but system topics).",
)
@click.option("--all-topics", is_flag=True, help="Archive all topics but system topics again, also in later runs.")
@click.option(
    "--forget",
    multiple=True,
    metavar="TOPIC",
    help="Delete the archived messages of this topic first, if its archive cannot be continued; may be repeated.",
)
@click.option(
    "--reserved-hours", type=click.IntRange(0), help="Delete archived messages that are older than this many hours."
)
@click.option("--watch", is_flag=True, help="Archive once a minute, until Ctrl-C.")
@YES
def archive(
    store: str,
    url: str | None,
    older_than: float,
    topics: tuple[str, ...],
    forget: tuple[str, ...],
    reserved_hours: int | None,
    *,
    all_topics: bool,
    watch: bool,
    yes: bool,
) -> None:
    """Copy old messages of STORE to an archive.

    The first run sets the store's archive; later runs continue at its end, also after a kill. From then on 'clean'
    deletes only archived messages. With another URL in --to, a run makes an additional copy there. --forget asks at a
    terminal.
    """
    if topics and all_topics:
        raise click.UsageError("--topic and --all-topics exclude each other. Give one of them")
    if forget:
        must_confirm(f"Delete messages of {', '.join(forget)} from the archive?", yes)
    chosen, before = () if all_topics else topics or None, remembered(StoreDirectory.at(store).root)
    with interruptible(lambda: "the messages archived so far stay archived; the next 'archive' continues"):
        try:
            _archive(store, url, older_than, chosen, reserved_hours, forget)
        except QueuesPassedOver as error:
            if not watch:
                raise
            echo(f"Warning: {error}", err=True)
        is_copy = _report_changes(store, url, before)
        while watch:
            time.sleep(_WATCH_SECONDS)
            try:
                _archive(store, url, older_than, chosen if is_copy else None, reserved_hours)
            except QueuesPassedOver as error:
                echo(f"Warning: {error}", err=True)
            except (ObjectsUnavailable, NoArchive, StoreLocked) as error:  # worked before, so it may be temporary
                echo(f"Warning: {error}. Trying again in {_WATCH_SECONDS:g} seconds", err=True)


def _report_changes(store: str, url: str | None, before: ArchiveSettings) -> bool:
    """Print what the run changed in the store's settings.

    Return whether `url` is an additional copy, not the store's archive.
    """
    now = remembered(StoreDirectory.at(store).root)
    if url is not None and not is_same_place(url, now.url):
        if now.url:  # otherwise nothing was archived yet
            echo(
                f"This archive is a copy. Readers of {store} continue with the archive {now.shown}, and 'clean' "
                "waits for that one",
                err=True,
            )
        return True
    if before.url and now.topics != before.topics:
        others = ". 'clean' no longer waits for other topics" if now.topics else ""
        echo(f"Later runs archive {', '.join(now.topics) or 'all topics'}{others}", err=True)
    return False


def _archive(
    store: str,
    url: str | None,
    older_than: float,
    topics: Sequence[str] | None,
    reserved_hours: int | None,
    forget: Sequence[str] = (),
) -> None:
    with (
        MessageStore.open(store, create=False, read_only=True) as opened,
        tqdm(unit="msg", unit_scale=True, desc="archived", delay=0.5, disable=None) as bar,
    ):

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        done: Archived = opened.archive(
            url, older_than, topics, reserved_hours=reserved_hours, forget=forget, progress=progress
        )
    forgotten = f"; forgot {done.forgotten:,} messages" if forget else ""
    deleted = f"; deleted {done.deleted:,} old objects" if done.deleted else ""
    echo(f"archived {done.messages:,} messages, {done.bytes:,} bytes{forgotten}{deleted}")


@click.command()
@click.argument("archive")
@click.argument("store", type=click.Path(file_okay=False))
@click.option("--topic", "topics", multiple=True, help="Restore only this topic; may be repeated (default: all).")
@click.option(
    "--from",
    "begin",
    callback=moment,
    help="Restore only messages stored at or after this time: 2013-01-31T06:00, or 3d ago.",
)
@click.option(
    "--to", "end", callback=moment, help="Restore only messages stored before this time, given in the same way."
)
def restore(archive: str, store: str, topics: tuple[str, ...], begin: int | None, end: int | None) -> None:
    """Create the directory STORE from ARCHIVE.

    ARCHIVE is a directory, or a URL such as s3://bucket/mq. Restored messages keep their topics, queues, offsets and
    times. A RocketMQ broker can use the new store.
    """
    root = StoreDirectory.at(store).root
    with (
        interruptible(lambda: f"all of it is in {store}" if root.exists() else f"nothing is in {store}"),
        tqdm(unit="msg", unit_scale=True, desc="restored", delay=0.5, disable=None) as bar,
    ):

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        count = restore_store(ArchiveAddress(archive), store, topics, progress=progress, stored=(begin, end))
    echo(f"restored {count:,} messages")
