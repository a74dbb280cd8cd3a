from __future__ import annotations

from pathlib import Path

import pytest

from store import MessageStore
from tests import seen

GOLDEN = Path(__file__).parents[2] / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.jsonl"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("read", [seen.by_scan, seen.by_get_message])
def test_messages_equal_rocketmqs_in_every_field(name: str, read: seen.Reader) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        seen.assert_same(read(store), seen.golden(GOLDEN / f"{name}.jsonl"))


@pytest.mark.parametrize("name", NAMES)
def test_tags_select_messages(name: str) -> None:
    with MessageStore.open(GOLDEN / name, read_only=True) as store:
        for (topic, queue_id), queue in seen.golden(GOLDEN / f"{name}.jsonl").items():
            for tag in {row["tags"] for row in queue.rows if row["tags"]}:
                batches = store.scan(topic, queue_id, queue.minimum, queue.maximum, columns=("queueOffset",), tags=tag)
                found = [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
                assert found == [row["queueOffset"] for row in queue.rows if row["tags"] == tag]
