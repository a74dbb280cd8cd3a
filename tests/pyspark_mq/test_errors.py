from __future__ import annotations

from pyspark_mq.errors import MqSourceError
from store import StoreError


def test_source_errors_are_store_errors() -> None:
    assert issubclass(MqSourceError, StoreError)
    assert issubclass(MqSourceError, ValueError)
