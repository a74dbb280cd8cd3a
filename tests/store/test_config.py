from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from store import ConfigError, StoreConfig


def test_rocketmqs_defaults() -> None:
    config = StoreConfig()
    assert config.mappedFileSizeCommitLog == 1 << 30
    assert config.mappedFileSizeConsumeQueue == 6_000_000
    assert config.store_host == (bytes([127, 0, 0, 1]), 10911)
    assert not config.sync_flush


def test_what_was_written_is_read(tmp_path: Path) -> None:
    config = StoreConfig(mappedFileSizeCommitLog=4096, flushDiskType="SYNC_FLUSH", cleanFileForciblyEnable=False)
    path = tmp_path / "store.conf"
    path.write_text(config.text())
    assert StoreConfig.load(path) == StoreConfig.load(str(path)) == config


def test_comments_blanks_and_spaces(tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    path.write_text("# a comment\n\n  listenPort = 7 # inline\nflushDiskType=SYNC_FLUSH\n")
    assert StoreConfig.load(path) == StoreConfig(listenPort=7, flushDiskType="SYNC_FLUSH")


def test_the_queue_file_size_is_rounded_up_to_whole_entries() -> None:
    assert StoreConfig(mappedFileSizeConsumeQueue=205).mappedFileSizeConsumeQueue == 220


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mappedFileSizeComitLog=1", r"conf, line 2: unknown key 'mappedFileSizeComitLog'; did you mean 'mapped.*Log'"),
        ("zzz=1", r"line 2: unknown key 'zzz'$"),
        ("listenPort", r"line 2: 'listenPort' is not key=value"),
        ("listenPort=abc", r"line 2: listenPort='abc' is not a number"),
        ("listenPort=-1", r"listenPort=-1: must lie between 0 and 2147483647"),
        ("mappedFileSizeCommitLog=2147483648", r"mappedFileSizeCommitLog=2147483648: must lie between"),
        ("flushDiskType=NO", r"flushDiskType=NO: must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("deleteWhen=24", r"deleteWhen=24: must be hours from 00 to 23, such as 04 or 04;16"),
        ("deleteWhen=4am", r"deleteWhen=4am: must be hours"),
        ("diskSpaceWarningLevelRatio=101", r"diskSpaceWarningLevelRatio=101: must lie between 35 and 100"),
        ("cleanFileForciblyEnable=yes", r"line 2: cleanFileForciblyEnable='yes' is not true or false"),
        ("brokerIP1=localhost", r"brokerIP1=localhost: must be an IPv4 address such as"),
    ],
)
def test_what_is_not_understood(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "store.conf"
    path.write_text(f"# first line\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        StoreConfig.load(path)


def test_every_number_has_a_minimum() -> None:
    for field in fields(StoreConfig):
        if type(field.default) is int and field.name not in ("listenPort", "fileReservedTime"):
            with pytest.raises(ConfigError, match=f"{field.name}=0: must lie between"):
                StoreConfig(**{field.name: 0})


def test_the_hours_at_which_segments_go() -> None:
    assert StoreConfig().delete_hours == {4}
    assert StoreConfig(deleteWhen="04;16;23").delete_hours == {4, 16, 23}


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    path.write_bytes(b"listenPort=\xff")
    with pytest.raises(ConfigError, match=r"store.conf: not UTF-8 text .*; write it anew, or delete it"):
        StoreConfig.load(path)
