"""How fast are archiving and reading an archive, in a directory and on a distant S3 server?"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import beside_archiving
from benchmarks.bench import filled, show, side_by_side
from store import DEFAULT_COLUMNS, MessageStore
from store.archive.archive_log import ArchiveAddress
from store.directory.directory_log import DirectoryAddress
from store.format.layout import COMMIT_LOG_DIR
from store.model.log_protocol import Log, LogAddress, QueueRange, ReadSpec
from store.read.filters import EVERYTHING

_DELAY_SECONDS = 0.02
_SPEC = ReadSpec(tuple(DEFAULT_COLUMNS), EVERYTHING)
_S3 = {"key": "bench", "secret": "bench"}


def copy_seconds(store: Path) -> float:
    """Copy and sync the commit log."""
    with TemporaryDirectory(prefix="mq-bench-") as folder:
        begin = time.perf_counter()
        for segment in (store / COMMIT_LOG_DIR).iterdir():
            with segment.open("rb") as source, Path(folder, segment.name).open("wb") as target:
                shutil.copyfileobj(source, target, 8 << 20)
                target.flush()
                os.fsync(target.fileno())
        return time.perf_counter() - begin


def archive_seconds(store: Path) -> float:
    with TemporaryDirectory(prefix="mq-bench-") as folder, MessageStore.open(store, read_only=True) as opened:
        begin = time.perf_counter()
        opened.archive(folder)
        return time.perf_counter() - begin


def read_seconds(address: LogAddress) -> float:
    with address.open() as log:
        begin = time.perf_counter()
        for wanted in _everything(log):
            for _ in log.scan(wanted, _SPEC):
                pass
        return time.perf_counter() - begin


def _everything(log: Log) -> Iterator[QueueRange]:
    queues = [queue for each in log.topics().values() for queue in each]
    for queue, bounds in log.bounds(queues).items():
        yield QueueRange(queue, *bounds)


def _rate(count: int, seconds: float, yardstick: float) -> tuple[str, str]:
    return f"{count / seconds / 1e6:.2f} M/s", f"{yardstick / seconds:.2f}"


@contextmanager
def s3_servers() -> Iterator[tuple[str, str]]:
    """Yield the URLs of an S3 server in this process: a direct one, and one with a delay for each request."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)

    def far(environment: Any, respond: Callable[..., Any]) -> Iterable[bytes]:
        time.sleep(_DELAY_SECONDS)
        answer: Iterable[bytes] = app(environment, respond)
        return answer

    servers = [make_server("127.0.0.1", 0, each, threaded=True) for each in (app, far)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    near, away = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    yield near, away
    for server in servers:
        server.shutdown()


def main(count: int, runs: int, body_sizes: tuple[int, ...] = (1000,)) -> None:
    import s3fs

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    rows, appends = [], []
    for body_bytes in body_sizes:
        appends += beside_archiving.rows(count, runs, body_bytes, min(2.0, count / 10_000))
        with filled(count, body_bytes) as path, TemporaryDirectory(prefix="mq-bench-") as folder, s3_servers() as urls:
            size = f"{body_bytes} B"
            copied, archived = side_by_side(runs, partial(copy_seconds, path), partial(archive_seconds, path))
            rows.append([size, "archiving, of copying", *_rate(count, archived, copied)])
            with MessageStore.open(path, read_only=True) as store:
                store.archive(folder)
            store_address, archive = DirectoryAddress(str(path)), ArchiveAddress(folder)
            local, read = side_by_side(runs, partial(read_seconds, store_address), partial(read_seconds, archive))
            rows.append([size, "reading, of the store", *_rate(count, read, local)])
            near, far = ({**_S3, "endpoint_url": url} for url in urls)
            s3fs.S3FileSystem(**near).mkdir("bench")
            with MessageStore.open(path, read_only=True) as store:
                store.archive("s3://bench/mq", storage_options=near)
            addresses = [ArchiveAddress("s3://bench/mq", json.dumps(each)) for each in (near, far)]
            there, away = side_by_side(runs, *(partial(read_seconds, each) for each in addresses))
            rows.append([size, "reading S3 20 ms away, of near", *_rate(count, away, there)])
    show(f"Archiving {count:,} messages in 4 queues, medians of {runs} runs", ["body", "what", "rate", "ratio"], rows)
    title = f"An append of 1,000 messages while a process archives, medians of {runs} runs"
    show(title, ["body", "appended at", "beside nothing", "beside archiving", "speed kept"], appends)
