from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from store import CorruptSegment, CorruptStore, StoreError
from store.archive.archive_log import ArchiveAddress
from store.archive.catalog import METADATA, Catalog
from store.model.log_protocol import Queue, QueueRange
from store.read.query import KeyQuery
from tests.filled import Filled
from tests.store.archive.test_archiving import SPEC, rows, same

SEED = int(os.environ.get("SEED", "0"))
WRONG: tuple[object, ...] = (None, -1, 1 << 31, 1 << 63, 10**30, 1.5, True, "x", "", [], [1], {"a": 1})


def places(content: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places(value, (*path, key))


def changed(content: Any, path: tuple[str, ...], value: object) -> Any:
    first, *rest = path
    return {**content, first: changed(content[first], tuple(rest), value) if rest else value}


def test_wrong_metadata_is_read_or_a_store_error(filled: Filled, tmp_path: Path) -> None:
    url = tmp_path / "archive"
    filled.store.archive(str(url))
    (metadata,) = url.rglob(METADATA.rpartition("/")[2])
    content = json.loads(metadata.read_text())
    texts = [json.dumps(changed(content, path, value)) for path in places(content) if path for value in WRONG]
    queues = content["queueMetadataTable"]["orders"]
    texts += [json.dumps(content).replace(name, bad) for name in ("orders", "mq") for bad in ("..", "a/b", "\\u0000")]
    texts.append(json.dumps(changed(content, ("queueMetadataTable", "orders"), {str((1 << 31) - 1): queues["0"]})))
    for text in random.Random(SEED).sample(texts[:-7], 300) + texts[-7:]:
        metadata.write_text(text)
        with suppress(StoreError), ArchiveAddress(str(url)).open() as log:
            assert sum(map(len, log.topics().values())) < 1 << 17


def test_damaged_byte_of_the_metadata_hides_nothing(filled: Filled, tmp_path: Path) -> None:
    """A damaged queue or topic name would hide its archived messages, and the next run would save that state."""
    filled.store.archive(str(tmp_path / "archive"))
    (metadata,) = tmp_path.rglob(METADATA.rpartition("/")[2])
    whole, moments = metadata.read_bytes(), random.Random(SEED)
    sound = Catalog.parse("here", whole)
    refused = 0
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << moments.randrange(8)
        try:
            assert Catalog.parse("here", bytes(data)) == sound
        except CorruptStore:
            refused += 1
    assert refused > len(whole) - 40
    metadata.write_bytes(whole.replace(b'"mq/orders/0"', b'"mq/orders/8"'))
    for verb in (filled.store.archive, filled.store.clean):
        with pytest.raises(CorruptStore, match=r"Metadata.json: the metadata is damaged: its checksum is wrong"):
            verb()


def test_zeroed_entries_are_an_error(filled: Filled, tmp_path: Path) -> None:
    url, queue = tmp_path / "archive", Queue("orders", 0)
    filled.store.archive(str(url))
    for path in url.rglob("orders/0/CONSUME_QUEUE/*"):
        path.write_bytes(bytes(path.stat().st_size))
    with ArchiveAddress(str(url)).open() as log, pytest.raises(StoreError):
        rows(log, queue, *log.bounds([queue])[queue])


@pytest.mark.parametrize("size", [20 << 20, 20 << 40, (1 << 58) // 20 * 20])
def test_impossible_size_is_an_error_and_takes_no_memory(filled: Filled, tmp_path: Path, size: int) -> None:
    url, queue = tmp_path / "archive", Queue("orders", 0)
    filled.store.archive(str(url))
    (metadata,) = url.rglob(METADATA.rpartition("/")[2])
    content = json.loads(metadata.read_text())
    content["consumeQueueFileSegmentTable"]["mq/orders/0"]["0"]["size"] = size
    metadata.write_text(json.dumps(content))
    with ArchiveAddress(str(url)).open() as log:
        wanted = QueueRange(queue, *log.bounds([queue])[queue])
        assert wanted.end == size // 20
        for read in (log.sizes, lambda wanted: list(log.scan(wanted, SPEC))):
            with pytest.raises(CorruptSegment, match="this object ends before byte"):
                read(wanted)


@pytest.mark.parametrize(
    ("path", "value", "is_refused"),
    [
        (("topicMetadataTable",), {}, False),
        (("topicMetadataTable", "orders", "topicId"), 1 << 31, True),
        (("commitLogFileSegmentTable", "mq/orders/0", "0", "size"), (1 << 63) - 1, True),
        (("commitLogFileSegmentTable", "mq/orders/0", "0", "baseOffset"), (1 << 63) - 1, True),
        (("queueMetadataTable", "orders", "0", "lastLogOffset"), (1 << 63) - 1, False),
        (("queueMetadataTable", "orders", "0", "lastStoreTimestamp"), 0, False),
    ],
)
def test_numbers_without_a_successor_are_refused(
    filled: Filled, tmp_path: Path, path: tuple[str, ...], value: object, *, is_refused: bool
) -> None:
    url = tmp_path / "archive"
    filled.store.archive(str(url))
    filled.put("orders", 0, 3)
    (metadata,) = url.rglob(METADATA.rpartition("/")[2])
    metadata.write_text(json.dumps(changed(json.loads(metadata.read_text()), path, value)))
    if is_refused:
        with pytest.raises(CorruptStore, match=path[-1]):
            filled.store.archive()
    else:
        assert filled.store.archive().messages == 3
        same(filled.store, url)
        with ArchiveAddress(str(url)).open() as log:
            assert [message.queue_offset for message in log.query(KeyQuery("orders", "k5"))] == [5]
