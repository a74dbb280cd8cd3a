from __future__ import annotations

from pyspark_mq.errors import MqSourceError
from store import StoreError


def test_one_root_catches_all() -> None:
    assert issubclass(MqSourceError, StoreError)
    assert issubclass(MqSourceError, ValueError)
