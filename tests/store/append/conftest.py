from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.failing import CONFIG, Device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    if sys.platform != "linux":
        pytest.skip("names of open files are read from /proc")
    device = Device()
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: device.take(name, fd))
    return device


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with MessageStore.open(tmp_path, config=CONFIG) as store:
        store.create_topic("t", 2)
        store.put_many([Message("t", f"{n}".encode(), queue_id=n % 2, keys=f"k{n}") for n in range(10)])
    return tmp_path
