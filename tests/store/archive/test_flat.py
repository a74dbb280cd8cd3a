"""The begin of an archived queue, for any missing segments of its log and of its entries."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from store import MessageStore
from store.archive.catalog import COMMIT_LOG, Segment, segment_path
from store.archive.flat import FlatFile, FlatQueue
from store.archive.of_store import ArchiveOrder, StoreArchive
from store.model.log_protocol import ReadSpec
from store.objects.any_objects import objects_at
from store.read.filters import EVERYTHING
from store.read.scan import Decoding, scan_queue

GOLDEN = Path(__file__).parents[2] / "golden"
BODIES = ReadSpec(("body",), EVERYTHING)


def test_light_queues_with_records_of_other_queues(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "multi-dispatch-5.3", tmp_path / "mq")
    with MessageStore.open(path, create=False, read_only=True) as store:
        of_store = StoreArchive(store.path, str(tmp_path / "archive"), "")
        queues = of_store.queues(store._topics)
        of_store.run(
            store._published,
            ArchiveOrder(queues, lambda it: store.max_offset(it.topic, it.queue_id)),
            lambda _, __: None,
            500,
        )
        place, cuts = of_store.place(), 0
        catalog = place.load()
        assert catalog is not None
        for queue, archived in catalog.queues.items():
            topic, queue_id = queue.topic, queue.queue_id
            batches = store.scan(topic, queue_id, *store.offsets(topic, queue_id), ["body"])
            here = [body for batch in batches for body in batch["body"]]
            for number in range(len(archived.log)):
                first = archived.entries[number].base // 20
                for left in (number, 0):
                    cut = replace(archived, log=archived.log[number:], entries=archived.entries[left:])
                    it = place.queue(catalog.having(queue, cut), queue)
                    assert isinstance(it, FlatQueue)
                    assert it.min_offset() == first
                    batches = scan_queue(it.log, it.entries, first, cut.max_offset, Decoding(BODIES, 1 << 20))
                    assert [body for batch in batches for body in batch["body"]] == here[first:]
                    cuts += number > 0
        assert cuts > 30
        assert queues[0].topic.startswith("%LMQ%")


def test_file_truncated_during_a_read_does_not_kill_the_process(tmp_path: Path) -> None:
    """A missing page of a mapping kills the process: on a bad disk, or if a network file system deleted the file."""
    objects = objects_at(str(tmp_path), {})
    objects.write(f"folder/{segment_path('mq/t/0', COMMIT_LOG, 0)}", bytes([1]) * 9000)
    read = FlatFile(objects, "folder", "mq/t/0", COMMIT_LOG, (Segment(0, 9000),)).view(0, 9000)
    (file,) = tmp_path.glob("folder/mq/t/0/COMMIT_LOG/*")
    os.truncate(file, 0)
    assert read.sum() == 9000
