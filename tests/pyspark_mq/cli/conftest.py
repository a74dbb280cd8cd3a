from pathlib import Path

import pytest

from tests.pyspark_mq.cli.process import succeed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with the topic "orders" of two queues."""
    config = tmp_path / "store.conf"
    config.write_text("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\n")
    path = tmp_path / "store"
    assert succeed("topic", "create", path, "orders", "--queues", 2, "--config", config) == "orders: 2 queues\n"
    return path
