"""Open damaged directories for writing: each is recovered, or refused with a StoreError and left unchanged.

`DAMAGED` is the number of directories, random damages of copies that RocketMQ or this store wrote.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store import Message, MessageStore, StoreConfig
from store.model.errors import StoreError
from store.upkeep.verify import repair
from tests.store.read.test_golden import GOLDEN, NAMES
from tests.store.upkeep.test_golden_recovery import index_config, killed

DAMAGED = int(os.environ.get("DAMAGED", "20"))
SMALL = StoreConfig(mappedFileSizeCommitLog=4096, mappedFileSizeConsumeQueue=200, maxHashSlotNum=100, maxIndexNum=400)
Bodies = dict[tuple[str, int], list[bytes]]


def digests(root: Path) -> dict[str, str]:
    """Map every name below a directory to a digest of its content; without lock files, which opening creates."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
        if path.name != "lock"
    }


def bodies(store: MessageStore) -> Bodies:
    found: Bodies = {}
    for topic, queues in store.topics().items():
        for queue_id in range(queues):
            offsets = store.offsets(topic, queue_id)
            batches = store.scan(topic, queue_id, *offsets, columns=("body",))
            found[topic, queue_id] = [body for batch in batches for body in batch["body"].to_pylist()]
    return found


def flip(file: Path, chance: random.Random) -> None:
    """Flip one bit, preferably in nonzero data."""
    content = bytearray(file.read_bytes())
    used = len(content.rstrip(b"\0")) if chance.random() < 0.9 else len(content)
    if used:
        content[chance.randrange(used)] ^= 1 << chance.randrange(8)
        file.write_bytes(content)


def cut(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size + 1))


def zero(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    begin = chance.choice([0, chance.randrange(len(content) + 1)])
    content[begin:] = bytes(len(content) - begin)
    file.write_bytes(content)


def lose(file: Path, chance: random.Random) -> None:
    file.unlink()


def lose_folder(file: Path, chance: random.Random) -> None:
    shutil.rmtree(file.parent)


def rename(file: Path, chance: random.Random) -> None:
    other = f"{chance.randrange(9) * 200:020d}" if chance.random() < 0.5 else "other"
    file.rename(file.with_name(other))


DAMAGES: list[Callable[[Path, random.Random], None]] = [flip, flip, cut, zero, lose, lose_folder, rename]
PARTS = ("commitlog", "consumequeue", "index", "config", "watermark", "checkpoint")


def damage(path: Path, chance: random.Random) -> list[str]:
    """Apply one to three damages and return their descriptions."""
    done = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        part = path / chance.choice([part for part in PARTS if (path / part).exists()] or PARTS)
        files = sorted(file for file in [part, *part.rglob("*")] if file.is_file() and file.parent != path)
        files = files or [part for part in (path / name for name in ("watermark", "checkpoint")) if part.exists()]
        if files:
            file, act = chance.choice(files), chance.choice(DAMAGES)
            if act is lose_folder and file.parent == path:
                act = lose
            done.append(f"{act.__name__} {file.relative_to(path)}")
            act(file, chance)
    return done


def ours(path: Path) -> None:
    with MessageStore.open(path, config=SMALL) as store:
        store.create_topic("t", 3)
        store.create_topic("u", 1)
        for n in range(60):
            store.put(Message("tttu"[n % 4], b"%d" % n * (n % 7) * 20, tags="ab"[n % 2], keys=(f"k{n}",)))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, StoreConfig | None]]:
    """Map names to directories and the settings to open them with."""
    made = tmp_path_factory.mktemp("ours") / "mq"
    ours(made)
    return {"ours": (made, None), **{name: (GOLDEN / name, index_config(name)) for name in NAMES}}


@pytest.mark.parametrize("seed", range(DAMAGED))
def test_damaged_directory_is_recovered_or_refused(
    originals: dict[str, tuple[Path, StoreConfig | None]], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    original, config = originals[chance.choice([*originals, *["ours"] * len(originals)])]
    path = shutil.copytree(original, tmp_path / "mq")
    with MessageStore.open(path, read_only=True, config=config) as store:
        expected = bodies(store)
    if chance.random() < 0.3:
        killed(path)
    print(original.name, damage(path, chance))
    copy = shutil.copytree(path, tmp_path / "copy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        use(path, config, expected, lambda: MessageStore.open(path, config=config).close())
        use(copy, config, expected, lambda: repair(copy, config))


def use(path: Path, config: StoreConfig | None, expected: Bodies, work: Callable[[], None]) -> None:
    before = digests(path)
    try:
        work()
    except StoreError as error:
        print(error)
        after = digests(path)
        assert after == before
        return
    with MessageStore.open(path, config=config) as store, suppress(StoreError):
        found = bodies(store)
        for queue, these in found.items():
            those = expected.get(queue, these)  # no checksum covers a topic's name
            assert any(these == those[start : start + len(these)] for start in range(len(those) + 1)), queue
            if these:
                offset = store.max_offset(*queue)
                assert store.put(Message(queue[0], b"next", queue_id=queue[1])).queue_offset == offset
                these.append(b"next")
        assert bodies(store) == found
