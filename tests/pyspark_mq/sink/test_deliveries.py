"""What tasks kept is what is appended, all of it or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_mq.errors import StagingError
from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.sink.deliveries import AllOrNothing, Sent
from pyspark_mq.sink.staging import BATCH, Staging
from store import MessageStore


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    """Between two batches, where it looks whole."""
    with MessageStore.open(tmp_path) as store:
        store.create_topic("orders", 1)
    options = WriteOptions.parse({"path": str(tmp_path), "topic": "orders"})
    staging, batch = Staging(options.staging_path), pa.record_batch({"body": ["a", "b"]})
    staging.begin(BATCH, "run")
    whole = staging.write(BATCH, "run", "0-0", [("orders", batch)] * 2)
    short = staging.write(BATCH, "run", "1-0", [("orders", batch)] * 2)
    one = staging.write(BATCH, "run", "2-0", [("orders", batch)])
    end_of_stream = 8
    os.truncate(short[0], os.path.getsize(one[0]) - end_of_stream)
    with pytest.raises(StagingError, match="tasks kept 8 rows there, and 6 are left; nothing was appended"):
        AllOrNothing(options).commit([Sent(rows, file) for file, rows in (whole, short)])
    with MessageStore.open(tmp_path) as store:
        assert store.max_offset("orders", 0) == 0
        AllOrNothing(options).commit([Sent(rows, file) for file, rows in (whole, one)])
        assert store.max_offset("orders", 0) == 6
