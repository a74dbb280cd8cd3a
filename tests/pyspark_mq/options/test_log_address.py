from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from pyspark_mq.errors import OptionError
from pyspark_mq.offsets.stream_offsets import positions_from_json, to_json
from pyspark_mq.options.log_address import CLUSTER_OPTIONS, NOT_ON_A_CLUSTER, OTHERWISE_ON_A_CLUSTER, address_of
from pyspark_mq.options.sink import WriteOptions
from pyspark_mq.options.source import SourceOptions
from pyspark_mq.options.tables import READ_OPTIONS, WRITE_OPTIONS, names_of
from store import ConfigError
from store.archive.archive_log import ArchiveAddress
from store.cluster.address import ClusterAddress, Credentials
from store.directory.directory_log import DirectoryAddress, TieredDirectoryAddress
from store.model.log_protocol import Queue
from store.remoting.endpoints import Tls
from tests.certificates import certificate
from tests.filled import Filled


def test_path_of_a_store_includes_its_archive(filled: Filled, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    assert address_of({"path": filled.path}) == DirectoryAddress(filled.path)
    assert address_of({"path": filled.path, "archive": "s3://b/mq"}) == TieredDirectoryAddress(filled.path, "s3://b/mq")
    filled.store.archive(archive)
    assert address_of({"path": filled.path}) == TieredDirectoryAddress(filled.path, archive)
    assert address_of({"path": filled.path, "archive": ""}) == DirectoryAddress(filled.path)


def test_url_of_an_archive_is_an_address(filled: Filled, tmp_path: Path) -> None:
    archive = str(tmp_path / "archive")
    filled.store.archive(archive)
    (cluster,) = (tmp_path / "archive").iterdir()
    for path in (archive, f"file:{archive}", f"file://{archive}"):
        assert address_of({"path": path}) == ArchiveAddress(archive)
    assert address_of({"path": f"{cluster}/mq"}) == ArchiveAddress(f"{cluster}/mq")
    options = '{"anon": true}'
    address = address_of({"path": "s3://bucket/mq", "storageOptions": options})
    assert address == ArchiveAddress("s3://bucket/mq", options)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"accessKey": "me", "secretKey": "12345678"}, "accessKey works only with nameServer"),
        ({"useTls": "true"}, "useTls works only with nameServer"),
        ({"path": "s3://bucket/mq", "archive": "s3://bucket/other"}, "archive works only with the path of a store"),
        (
            {"path": "", "nameServer": "a:1", "archive": "s3://b/mq"},
            "archive does not work with nameServer: a cluster has",
        ),
    ],
)
def test_options_without_effect_are_refused(filled: Filled, more: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        address_of({"path": filled.path, **more})


@pytest.mark.parametrize("given", ["{", "[]", "anon=true"])
def test_storage_options_are_always_parsed(filled: Filled, given: str) -> None:
    with pytest.raises(ConfigError, match=r"storage options are (no JSON|not a JSON object)"):
        address_of({"path": filled.path, "storageOptions": given})


BASE = {"nameServer": "a:1;b:2", "subscribe": "orders"}
A0 = Queue("orders", 0, broker="broker-a")
PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


def test_name_servers_are_an_address() -> None:
    assert SourceOptions.parse(BASE).address == ClusterAddress(("a:1", "b:2"))
    account = {"accessKey": "me", "secretKey": "12345678", "consumerGroup": "billing"}
    parsed = SourceOptions.parse({**BASE, **account})
    assert parsed.address == ClusterAddress(("a:1", "b:2"), Credentials("me", "12345678"), "billing")
    assert "12345678" not in repr(parsed)
    written = WriteOptions.parse({"nameServer": "a:1", "topic": "t", "delivery": "at-least-once"})
    assert written.address == ClusterAddress(("a:1",))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"path": "/data/mq"}, "path and nameServer exclude each other"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger does not work with nameServer: .*maxOffsetsPerTrigger"),
        ({"archive": "s3://bucket/mq"}, "archive does not work with nameServer: a cluster has no archive"),
        ({"consumerGroup": "g", "consumeMode": "orderly"}, "consumeMode does not work with nameServer"),
        ({"accessKey": "me"}, "accessKey and secretKey belong together"),
        ({"nameServer": "9876"}, "nameServer: address '9876': must be host:port"),
        ({"nameServer": " ; "}, "nameServer: .*must be host:port"),
        ({"useTls": "yes"}, "useTls takes true or false, got 'yes'"),
        ({"tlsCaFile": "/etc/mq/ca.pem"}, "tlsCaFile needs useTls=true"),
        ({"useTls": "true", "tlsCaFile": "/nowhere/ca.pem"}, "tlsCaFile: /nowhere/ca.pem: .*No such file"),
        ({"useTls": "true", "tlsCaFile": __file__}, f"tlsCaFile: {__file__}: no certificates can be read"),
    ],
)
def test_wrong_options_of_a_cluster_are_refused(more: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        SourceOptions.parse({**BASE, **more})


def test_certificates_are_sent_with_the_options(tmp_path: Path) -> None:
    assert SourceOptions.parse({**BASE, "useTls": "false"}).address == ClusterAddress(("a:1", "b:2"))
    assert SourceOptions.parse({**BASE, "useTls": "True"}).address == ClusterAddress(("a:1", "b:2"), tls=Tls())
    made = certificate(tmp_path).path
    parsed = SourceOptions.parse({**BASE, "useTls": "true", "tlsCaFile": str(made)})
    assert parsed.address == ClusterAddress(("a:1", "b:2"), tls=Tls(made.read_text()))
    assert "CERTIFICATE" not in repr(parsed)
    made.unlink()
    assert pickle.loads(pickle.dumps(parsed)).address.tls.context().get_ca_certs()


def test_exactly_once_is_refused() -> None:
    with pytest.raises(OptionError, match="Set delivery to at-least-once"):
        WriteOptions.parse({"nameServer": "a:1", "topic": "t"})


def test_real_time_needs_a_place_for_its_ledger() -> None:
    options = SourceOptions.parse({**BASE, "realTime": "true"})
    with pytest.raises(OptionError, match=r"cluster at a:1;b:2 has no directory for them\. Set ledgerPath"):
        options.stream_start()


def test_queues_of_brokers_are_named_in_json() -> None:
    assert SourceOptions.parse({"nameServer": "a:1", "assign": '{"orders": ["broker-a:0"]}'}).subscription.assigned == (
        A0,
    )
    json_ = {"orders": {"broker-a:0": 23, "broker-b:10": 5}}
    assert positions_from_json(json_) == {A0: 23, Queue("orders", 10, broker="broker-b"): 5}
    assert to_json(positions_from_json(json_)) == json_
    for text in (":0", "broker-a:", "broker-a:x", "broker-a:-1", "a:b:0", "broker-a:99999999999"):
        with pytest.raises(ValueError, match="a queue number"):
            positions_from_json({"orders": {text: 1}})


def test_page_describes_every_option_on_a_cluster() -> None:
    names = {*names_of(READ_OPTIONS), *names_of(WRITE_OPTIONS)}
    assert names >= NOT_ON_A_CLUSTER.keys() | OTHERWISE_ON_A_CLUSTER.keys()
    page = PAGE.read_text("utf-8")
    for name, what in {**NOT_ON_A_CLUSTER, **OTHERWISE_ON_A_CLUSTER}.items():
        assert f"| `{name}` | {what} |\n" in page
    for option in CLUSTER_OPTIONS:
        assert f"| `{option.name}` | `{option.example}` | {option.meaning} |\n" in page
