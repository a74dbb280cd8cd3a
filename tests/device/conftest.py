from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    path = Path("/dev/shm") / f"mq-{os.getpid()}-{random.randrange(1 << 30)}"
    path.mkdir()
    yield path
    shutil.rmtree(path)
