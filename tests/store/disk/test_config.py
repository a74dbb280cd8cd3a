from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from store import ConfigError, StoreConfig
from store.disk.config import with_settings


def test_defaults_are_rocketmqs() -> None:
    config = StoreConfig()
    assert config.mappedFileSizeCommitLog == 1 << 30
    assert config.mappedFileSizeConsumeQueue == 6_000_000
    assert config.store_host == (bytes([127, 0, 0, 1]), 10911)
    assert not config.sync_flush


def test_written_settings_are_read(tmp_path: Path) -> None:
    config = StoreConfig(
        mappedFileSizeCommitLog=4096,
        flushDiskType="SYNC_FLUSH",
        cleanFileForciblyEnable=False,
        brokerName="\\server\\b\nflushDiskType=ASYNC_FLUSH",
        archive="file:///Archive für 日本 #\U0001f600=\\",
    )
    path = tmp_path / "store.conf"
    path.write_bytes(config.text().encode("ascii"))
    assert StoreConfig.load(path) == StoreConfig.load(str(path)) == config


@pytest.mark.parametrize(
    "last", ["listenPort=7", "listenPort=7\\", "listenPort=7\r\n", "# \u5165", "", "listenPort 7\r"]
)
def test_changing_a_setting_keeps_all_other_bytes(tmp_path: Path, last: str) -> None:
    path = tmp_path / "store.conf"
    before = b"\r\n# \xe5\x85\xa5 \x85 \x0b \x1c brokerName=no\n\n! x\rfileReservedTime:5\r\n"
    path.write_bytes(before + b" brokerName \\\n  was\\\n here\nbrokerName=twice\n" + last.encode())
    read = StoreConfig.load(path)
    path.write_bytes(with_settings(path.read_bytes(), {"brokerName": "now", "maxIndexNum": 5}))
    assert path.read_bytes().startswith(before + last.encode().rstrip(b"\\"))
    assert StoreConfig.load(path) == replace(read, brokerName="now", maxIndexNum=5)


@pytest.mark.parametrize("name", [" b", "b\t", "\n"])
def test_blanks_around_a_text_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="remove the spaces around it"):
        StoreConfig(brokerName=name)


def test_java_properties_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    path.write_bytes(
        b"# a comment: \xe4\xb8\xad\xe6\x96\x87\r\n\n! another = one\r  listenPort : 7 \nflushDiskType SYNC_FLUSH\n"
        b"delete\\u0057hen=04;\\\n  16\nfileReservedTime=1\nfileReservedTime=+2\ncleanFileForciblyEnable=FALSE"
    )
    assert StoreConfig.load(path) == StoreConfig(
        listenPort=7,
        flushDiskType="SYNC_FLUSH",
        deleteWhen="04;16",
        fileReservedTime=2,
        cleanFileForciblyEnable=False,
    )


# RocketMQ's default broker.conf with common additions. The last lines resemble our own keys.
BROKER_CONF = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = SYNC_FLUSH
namesrvAddr=127.0.0.1:9876;127.0.0.2:9876
autoCreateTopicEnable=true
storePathRootDir=/app/data/store
mapedFileSizeCommitLog=8192
mapedFileSizeConsumeQueue=300000
brokerIP2=10.0.0.1
haListenPort=10912
mappedFileSizeConsumeQueueExt=50331648
maxTransferBytesOnMessageInDisk=65536
messageIndexSafe=false
flushIntervalConsumeQueue=1000
diskSpaceCleanForciblyRatio=0
"""


def test_settings_of_a_broker_are_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(BROKER_CONF.replace("diskSpaceCleanForciblyRatio=0\n", ""))
    with pytest.warns(UserWarning, match="ignored") as caught:
        config = StoreConfig.load(path)
    assert config == StoreConfig(
        fileReservedTime=48,
        flushDiskType="SYNC_FLUSH",
        mappedFileSizeCommitLog=8192,
        mappedFileSizeConsumeQueue=300_000,
        brokerName="broker-a",
    )
    (warning,) = caught
    assert str(warning.message) == (
        f"{path}: ignored, because this package has no such settings: brokerClusterName, brokerId, brokerRole, "
        "namesrvAddr, autoCreateTopicEnable, storePathRootDir, brokerIP2, haListenPort, mappedFileSizeConsumeQueueExt, "
        "maxTransferBytesOnMessageInDisk, messageIndexSafe, flushIntervalConsumeQueue"
    )
    path.write_text(BROKER_CONF)
    with pytest.raises(ConfigError, match=r"broker\.conf: diskSpaceCleanForciblyRatio=0: must lie between 30 and 100"):
        StoreConfig.load(path)


def test_values_of_wrong_types_are_refused() -> None:
    for name, value in (("listenPort", "7"), ("listenPort", True), ("deleteWhen", 4), ("messageIndexEnable", 1)):
        with pytest.raises(ConfigError, match=f"{name}={value!r}: must be"):
            StoreConfig(**{name: value})


def test_queue_file_size_is_rounded_up_to_whole_entries() -> None:
    assert StoreConfig(mappedFileSizeConsumeQueue=205).mappedFileSizeConsumeQueue == 220


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mappedFileSizeComitLog=1", r"conf, line 2: unknown key 'mappedFileSizeComitLog'; did you mean 'mapped.*Log'"),
        ("maxMesageSize=1", r"line 2: unknown key 'maxMesageSize'; did you mean 'maxMessageSize'"),
        ("brokerIp1=127.0.0.2", r"line 2: unknown key 'brokerIp1'; did you mean 'brokerIP1'"),
        ("mapedFileSizeComitLog=1", r"line 2: unknown key 'mapedFileSizeComitLog'; did you mean 'mapped.*Log'"),
        ("listenPort", r"line 2: listenPort='' is not a number"),
        (
            "listenPort = 7 # inline",
            r"line 2: listenPort='7 # inline' is not a number. Write a comment on a line of its",
        ),
        ("listenPort=1_000", r"line 2: listenPort='1_000' is not a number"),
        ("\n\r\r\nlistenPort=x", r"line 5: listenPort='x' is not a number"),
        (r"brokerIP1=C:\users", r"line 2: .*\. Write each backslash twice"),
        ("\ufefflistenPort=1", r"line 2: .* is no key. Save the file as plain text, with one key=value on each line"),
        ("\0\0", r"line 2: .* is no key. Save the file as plain text"),
        ("listenPort=abc", r"line 2: listenPort='abc' is not a number"),
        ("listenPort=-1", r"listenPort=-1: must lie between 0 and 65535"),
        ("mappedFileSizeCommitLog=2147483648", r"mappedFileSizeCommitLog=2147483648: must lie between"),
        ("flushDiskType=NO", r"flushDiskType=NO: must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("deleteWhen=24", r"deleteWhen=24: must be hours from 00 to 23, such as 04 or 04;16"),
        ("deleteWhen=4am", r"deleteWhen=4am: must be hours"),
        ("diskSpaceWarningLevelRatio=101", r"diskSpaceWarningLevelRatio=101: must lie between 35 and 100"),
        ("cleanFileForciblyEnable=yes", r"line 2: cleanFileForciblyEnable='yes' is not true or false"),
        ("brokerIP1=localhost", r"brokerIP1=localhost: must be an IPv4 address such as"),
    ],
)
def test_wrong_lines_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "store.conf"
    path.write_text(f"# first line\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        StoreConfig.load(path)


def test_numbers_have_a_minimum() -> None:
    for field in fields(StoreConfig):
        if type(field.default) is int and field.name not in ("listenPort", "fileReservedTime", "lockTimeoutMillis"):
            with pytest.raises(ConfigError, match=f"{field.name}=0: must lie between"):
                StoreConfig(**{field.name: 0})


def test_delete_hours_are_parsed() -> None:
    assert StoreConfig().delete_hours == {4}
    assert StoreConfig(deleteWhen="04;16;23").delete_hours == {4, 16, 23}


def test_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match=r"store\.conf: more than 1,048,576 bytes, which is too large"):
        StoreConfig.load(path)
