from __future__ import annotations

import pytest

from pyspark_mq.errors import DataLossError, MqSourceError, data_loss
from store import StoreError


def test_one_root_catches_all() -> None:
    assert issubclass(MqSourceError, StoreError)
    assert issubclass(MqSourceError, ValueError)


def test_lost_messages_are_an_error_or_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"offsets 1 to 2 are gone\. To go on with what is there set the option"):
        data_loss(True, "offsets 1 to 2 are gone")
    assert not caplog.records
    data_loss(False, "offsets 1 to 2 are gone")
    assert "going on because failOnDataLoss is false: offsets 1 to 2 are gone" in caplog.text
