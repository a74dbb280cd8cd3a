from __future__ import annotations

import random
from pathlib import Path

from store import MessageStore
from tests.device.disk import Disk, restore
from tests.device.life import small
from tests.device.recorder import Recorder
from tests.device.test_crashes import STORE, up_again

CUTS = 12


def test_created_topic_survives_a_crash(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "live")
    with recorder.recording(), MessageStore.open(tmp_path / "live" / STORE, config=small("ASYNC_FLUSH")) as store:
        store.create_topic("t", 3)
        changes = recorder.changes[: recorder.look()]
    for number in range(CUTS):
        chance = random.Random(number)
        restore(up_again(Disk({}, changes, chance).after_power_loss(chance)), tmp_path / f"crash{number}")
        with MessageStore.open(tmp_path / f"crash{number}" / STORE) as store:
            assert store.topics() == {"t": 3}
