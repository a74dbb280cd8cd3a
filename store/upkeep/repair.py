"""Making queues and index anew from the log, for a store where `verify` found something."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from store.files.atomic import make_folder
from store.files.config import StoreConfig
from store.format.layout import INDEX_DIR, REPAIR_DIR
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.queue_ends import QueueEnds
from store.model.errors import system_errors
from store.publish.locks import alone
from store.upkeep.directory import StoreDirectory
from store.upkeep.plans import Filed, Plan, Point, plan_for
from store.upkeep.recovery import Recovery


def repair(path: str | os.PathLike[str], config: StoreConfig | str | os.PathLike[str] | None = None) -> None:
    """Do what recovery may do: queues and index are made anew from the log, and what lies behind its end goes.

    Raises `StoreLocked` while others write here, `CorruptStore` for what cannot be repaired, `ConfigError` for a
    broker's index of other sizes than those of `config`; then nothing was changed.
    """
    directory = StoreDirectory.at(path)
    directory.must_be_store(writing=True)
    root, settings = directory.root, directory.configuration(config)
    log = CommitLog(root, settings.mappedFileSizeCommitLog, writable=True)
    index = Index.of(root, settings, writable=True)
    made = root / REPAIR_DIR
    with alone(root, "a repair"), system_errors(root):
        if not directory.has_configuration:  # or else the sizes are right and a file that does not fit is wrong
            index.check()
        shutil.rmtree(made, ignore_errors=True)  # of a repair that was killed
        new = Index.of(made, settings, writable=True) if settings.messageIndexEnable else index
        recovery = Recovery(root, log, new, settings.mappedFileSizeConsumeQueue)
        evidence = directory.evidence(log, index, settings.mappedFileSizeConsumeQueue, QueueEnds.read(root), alone=True)
        plan = plan_for(evidence) or Plan(Point.FIRST_BYTE, Point.CONFIRMED)
        filed = Filed.NONE if settings.messageIndexEnable else Filed.ALL
        decision = recovery.decide(plan._replace(begin=Point.FIRST_BYTE, filed=filed))
        decision = decision._replace(keys_from=decision.end)  # the index that has all is not in its place yet
        directory.mark_open()
        with _in_place_of(made, root) if settings.messageIndexEnable else nullcontext():
            recovery.carry_out(decision)
            new.flush()
        directory.save_configuration(settings)
        directory.mark_closed()


@contextmanager
def _in_place_of(made: Path, root: Path) -> Iterator[None]:
    """A new index, in the folder `made`, takes the place of the one that is there when all went well."""
    make_folder(made / INDEX_DIR)
    try:
        yield
        shutil.rmtree(root / INDEX_DIR, ignore_errors=True)
        (made / INDEX_DIR).rename(root / INDEX_DIR)
    finally:
        shutil.rmtree(made)
