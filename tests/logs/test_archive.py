from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import ReadOnlyStore
from tests.logs.archives import ArchivedStore, archived
from tests.logs.conformance import LogTests


class TestInDirectory(LogTests):
    @pytest.fixture
    def making(self, tmp_path: Path) -> Iterator[ArchivedStore]:
        with archived(tmp_path, str(tmp_path / "archive")) as it:
            yield it

    def test_archive_is_read_only(self, making: ArchivedStore) -> None:
        with pytest.raises(ReadOnlyStore):
            making.address.open_writer()
        making.create_topic("a", 1)
        with making.address.open() as log, pytest.raises(ReadOnlyStore):
            log.commit("readers", {})
