"""Making queues and index anew from the log, for a store where `verify` found something."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from store.commit_log import CommitLog
from store.config import StoreConfig
from store.directory import Directory
from store.errors import StoreLocked
from store.index import Index
from store.layout import INDEX_DIR, REPAIR_DIR
from store.locks import StoreLock
from store.message_store import MessageStore
from store.recovery import Filed, Plan, Point, plan_for, recover
from store.topics import Topics


def repair(path: str | os.PathLike[str], config: StoreConfig | str | os.PathLike[str] | None = None) -> None:
    """Do what recovery may do: queues and index are made anew from the log, and what lies behind its end goes.

    Raises `StoreLocked` while others write here, `CorruptStore` for what cannot be repaired, `ConfigError` for a
    broker's index of other sizes than those of `config`.
    """
    directory = Directory.at(path)
    directory.must_be_store(writing=True)
    root, settings = directory.root, directory.configuration(config)
    if directory.has_configuration:  # or else the file may be right and the sizes wrong
        _alone(root, Index.of(root, settings, writable=True).delete_misfits)
    MessageStore.open(path, create=False, config=config).close()  # whatever is published is on the device then
    log = CommitLog(root, settings.mappedFileSizeCommitLog, writable=True)

    def make_anew() -> None:
        with _new_index(root, settings) as index:
            plan = plan_for(directory.evidence(log)) or Plan(Point.FLUSHED, Point.FLUSHED)
            plan = plan._replace(begin=Point.FIRST_BYTE, filed=Filed.ALL)
            recover(root, log, index, settings.mappedFileSizeConsumeQueue, Topics(root).queues_on_disk(), plan)

    _alone(root, make_anew)


def _alone(root: Path, work: Callable[[], None]) -> None:
    """Call `work` as the only writer. Raises `StoreLocked`."""
    with closing(StoreLock(root)) as lock:

        def when_alone() -> None:
            if not lock.join():
                raise StoreLocked(f"{root}: other processes write here; close them before a repair")
            work()

        lock.exclusively(when_alone)


@contextmanager
def _new_index(root: Path, config: StoreConfig) -> Iterator[Index]:
    """An empty index that takes the place of the one that is there when all went well; that one if none is filed."""
    if not config.messageIndexEnable:
        yield Index.of(root, config, writable=True)
        return
    made = root / REPAIR_DIR
    shutil.rmtree(made, ignore_errors=True)
    (made / INDEX_DIR).mkdir(parents=True)
    try:
        index = Index.of(made, config, writable=True)
        yield index
        index.flush()
        shutil.rmtree(root / INDEX_DIR, ignore_errors=True)
        (made / INDEX_DIR).rename(root / INDEX_DIR)
    finally:
        shutil.rmtree(made)
