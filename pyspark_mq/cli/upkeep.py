import os
import sys
from dataclasses import replace

import click
from tqdm import tqdm

from pyspark_mq.cli.arguments import STORE
from pyspark_mq.cli.commands import interruptible
from pyspark_mq.cli.terminal import aligned, echo
from store import MessageStore
from store.format.layout import COMMIT_LOG_DIR
from store.upkeep.findings import Report
from store.upkeep.retention import CleanReason
from store.upkeep.verify import repair
from store.upkeep.verify import verify as verify_store


@click.command()
@STORE
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option(
    "--reserved-hours",
    type=click.IntRange(0),
    help="Keep messages that are younger than this (default: fileReservedTime).",
)
@click.option("--force", is_flag=True, help="Delete all segments but the last, at any age.")
def clean(store: str, dry_run: bool, reserved_hours: int | None, force: bool) -> None:
    """Delete old messages of STORE.

    The log is deleted by whole segments, with their queue files. A segment is deleted if its last write is more than
    fileReservedTime hours ago (72 by default). The last segment stays. If the disk is fuller than
    diskSpaceCleanForciblyRatio, the deleteFileBatchMax oldest segments are deleted at any age.

    All topics of a store share segments, so a topic with another retention needs a store of its own.
    """
    with (
        interruptible(lambda: "deleted segments stay deleted; the next 'clean' continues"),
        MessageStore.open(store, create=False, read_only=dry_run) as opened,
    ):
        config = opened.config if reserved_hours is None else replace(opened.config, fileReservedTime=reserved_hours)
        step = opened.clean(asked=True, forced=force, dry_run=True, config=config)
        if step.reason is not CleanReason.DISK_FULL:  # a full disk keeps the limit: open files free no space yet
            config = replace(config, deleteFileBatchMax=max(1, len(os.listdir(opened.path / COMMIT_LOG_DIR))))
        step = opened.clean(asked=True, forced=force, dry_run=dry_run, config=config)
    for path in (*step.log, *step.queues, *step.index):
        echo(f"{'would delete' if dry_run else 'deleted'} {path}")
    echo(
        f"{len(step.log)} log segments, {len(step.queues)} queue files and {len(step.index)} index files, "
        f"{step.taken:,} bytes\n"
        f"The disk is {step.used_percent}% full; {step.reason.value}"
    )
    if step.kept:
        echo(f"{step.kept} more segments stay, because they have messages that are not archived or not delivered yet")


@click.command()
@STORE
@click.option(
    "--repair",
    "do_repair",
    is_flag=True,
    help="Rebuild queues and index from the log, and truncate damaged records at its end.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the broker's settings, for the sizes of its index.",
)
def verify(store: str, do_repair: bool, config: str | None) -> None:
    """Check every record, queue entry and index entry of STORE.

    The exit code is 1 if the store is damaged. Other processes may use STORE during a check, but not during a repair. A
    repair does what the next recovery would do, and checks again.
    """
    with interruptible(lambda: "the check did not finish; if a repair had begun, the next opening completes it"):
        _verify(store, config, do_repair=do_repair)


def _verify(store: str, config: str | None, *, do_repair: bool) -> None:
    report = verified(store, config)
    if do_repair and report.is_damaged:
        echo(findings_table(report))
        try:
            repair(store, config)
        finally:
            echo("\nafter the repair:")
            report = verified(store, config)
            echo(findings_table(report))
    else:
        echo(findings_table(report))
    sys.exit(1 if report.is_damaged else 0)


def verified(store: str, config: str | None) -> Report:
    with tqdm(unit="B", unit_scale=True, desc="verified", delay=0.5, disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return verify_store(store, progress, config)


def findings_table(report: Report) -> str:
    rows: list[tuple[str, ...]] = [("where", "what", "remedy"), *report.findings] if report.findings else []
    looked = f"{report.records:,} records, {report.log_bytes:,} bytes, {report.queues} queues"
    found = f"{len(report.findings)} findings" if report.findings else "no findings"
    return "\n".join(filter(None, [aligned(rows, left=3), f"{looked}: {found}"]))
