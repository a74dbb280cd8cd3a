"""Create the small directories of tests/golden: `python -m tests.rocketmq.golden [NAME ...]`.

Without names, directories are kept and only RocketMQ's reading of each is written again. `remoting` alone makes
protocol frames, `tiered` directories of the tiered store.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from store import MessageStore
from store.format.stored_message import decode_record
from tests.rocketmq.harness import Json, RocketMQ
from tests.rocketmq.mixes import MIXES

GOLDEN = Path(__file__).parents[1] / "golden"
SIZES = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
    "mappedFileSizeConsumeQueueExt": 1024,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
SMALL_INDEX = {"maxHashSlotNum": 20, "maxIndexNum": 30}
GIVEN = ("clean", "crashed", "property-crc")
MADE = {
    "batch-5.3": ("5.3", "batch"),
    "batch-4.9": ("4.9", "batch"),
    "compressed-5.3": ("5.3", "zlib", "lz4", "zstd"),
    "compressed-4.9": ("4.9", "zlib", "lz4", "zstd"),
    "hosts-5.3": ("5.3", "hosts"),
    "properties-4.9": ("4.9", "properties"),
    "index-5.3": ("5.3", "keyed"),
    "index-4.9": ("4.9", "keyed"),
    "transactions-5.3": ("5.3", "transactions"),
    "delayed-5.3": ("5.3", "delayed"),
    "multi-dispatch-5.3": ("5.3", "multi-dispatch"),
    "queue-extension-5.3": ("5.3", "queue-extension"),
}
MESSAGES = 36
INDEX_SLOTS = 8


def config_of(name: str) -> dict[str, object]:
    mixes = MADE.get(name, ("5.3",))[1:]
    own = {key: value for mix in MIXES if mix.name in mixes for key, value in mix.config.items()}
    return {**own, **SIZES, **(SMALL_INDEX if name.startswith("index-") else {})}


def make(name: str) -> None:
    line, *mixes = MADE[name]
    chosen = [mix for mix in MIXES if mix.name in mixes]
    puts = [one for mix in chosen for one in mix.puts(MESSAGES // len(chosen), line)]
    shutil.rmtree(GOLDEN / name, ignore_errors=True)
    RocketMQ(line).write(GOLDEN / name, puts, config_of(name))


def expect(name: str) -> None:
    """Write RocketMQ's reading of a copy of tests/golden/NAME to tests/golden/NAME.jsonl."""
    line, *_ = MADE.get(name, ("5.3",))
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(GOLDEN / name, Path(folder) / name)
        seen = RocketMQ(line).read(copy, config_of(name))
    (GOLDEN / f"{name}.jsonl").write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in seen))


def frames(line: str = "5.3") -> None:
    """Rewrite tests/golden/remoting: commands as RocketMQ's code encodes them."""
    made = RocketMQ(line).frames()
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in made)
    (GOLDEN / "remoting" / f"frames-{line}.jsonl").write_text(text)


def tiered(line: str = "5.5") -> None:
    """Rewrite tests/golden/tiered/5.5: other directories' messages as RocketMQ's tiered store writes them."""
    archive = GOLDEN / "tiered" / line
    shutil.rmtree(archive, ignore_errors=True)
    rocketmq = RocketMQ(line)
    records = [record for name in ("hosts-5.3", "compressed-5.3") for record in records_of(GOLDEN / name)]
    rocketmq.tiered("write", archive, archive, records)
    seen = rocketmq.tiered("read", archive, archive)
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in seen)
    (GOLDEN / "tiered" / f"{line}.jsonl").write_text(text)


def tiered_index(line: str = "5.5") -> None:
    """Rewrite tests/golden/tiered/5.5-index: messages with keys, and the tiered store's lookups by each key."""
    archive = GOLDEN / "tiered" / f"{line}-index"
    shutil.rmtree(archive, ignore_errors=True)
    rocketmq, records = RocketMQ(line), list(records_of(GOLDEN / "index-5.3"))
    asked: dict[tuple[str, str], Json] = {}
    for record in records:
        message = decode_record(base64.b64decode(record["record"]), str(archive))
        for key in (*message.keys, message.msg_id, "none"):
            asked[message.topic, key] = {"topic": message.topic, "key": key}
    rocketmq.tiered("write", archive, archive, records, slots=INDEX_SLOTS)
    seen = [*asked.values(), *rocketmq.tiered("query", archive, archive, list(asked.values()), slots=INDEX_SLOTS)]
    text = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in seen)
    (GOLDEN / "tiered" / f"{archive.name}.jsonl").write_text(text)
    shutil.rmtree(archive / "tiered_index_file")  # an index of messages that are not in the archive yet


def records_of(directory: Path) -> Iterator[Json]:
    """Yield all queued messages of a store, for `RocketMQ.tiered`."""
    with MessageStore.open(directory, create=False, read_only=True) as store:
        for topic, count in store.topics().items():
            for queue_id in range(count):
                begin, end = store.offsets(topic, queue_id)
                codes = store.tags_codes(topic, queue_id, begin, end).tolist()
                positions = store.to_arrow(topic, ["physicalOffset"], queues=[queue_id]).read_all()
                for at, code, physical in zip(
                    range(begin, end), codes, positions["physicalOffset"].to_pylist(), strict=True
                ):
                    record = base64.b64encode(store.record_at(physical)).decode()
                    put = {"topic": topic, "queueId": queue_id, "queueOffset": at, "tagsCode": code}
                    yield {**put, "record": record}


if __name__ == "__main__":
    if sys.argv[1:] == ["remoting"]:
        frames()
        sys.exit()
    if sys.argv[1:] == ["tiered"]:
        tiered()
        tiered_index()
        sys.exit()
    for name in sys.argv[1:]:
        make(name)
    for name in sys.argv[1:] or (*GIVEN, *MADE):
        expect(name)
