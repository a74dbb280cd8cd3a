"""RocketMQ's unchanged Go client with a served store."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pytest

from store import MessageStore
from store.remoting.access import Access
from store.remoting.serving import serve
from tests.rocketmq.harness import COMMAND_SECONDS, HERE, Json
from tests.rocketmq.served import until

pytestmark = pytest.mark.rocketmq

SOURCE = HERE / "go"
UNREACHABLE = ("dial tcp", "lookup ", "proxyconnect", "module lookup disabled", "i/o timeout")


@pytest.fixture(scope="module")
def program() -> Path:
    """Built on first use, and again when its source changed."""
    if shutil.which("go") is None:
        pytest.skip("needs go")
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))).hexdigest()
    built = HERE / "target" / "go" / digest
    if not built.exists():
        done = subprocess.run(
            ["go", "build", "-o", built, "."], cwd=SOURCE, capture_output=True, text=True, check=False
        )
        if done.returncode and any(word in done.stderr for word in UNREACHABLE):
            pytest.skip(f"needs Go's module proxy: {done.stderr[-200:]}")
        assert done.returncode == 0, done.stderr
    return built


@contextmanager
def running(program: Path, *arguments: str) -> Iterator[Iterator[Json]]:
    with subprocess.Popen(
        [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield (json.loads(line) for line in process.stdout)
        _, errors = process.communicate(timeout=COMMAND_SECONDS)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("account", [(), ("gopher", "secret")])
def test_go_client_sends_and_consumes(program: Path, tmp_path: Path, account: tuple[str, ...]) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(
        "accounts:\n  - {accessKey: gopher, secretKey: secret, defaultGroupPerm: SUB, topicPerms: [orders=PUB|SUB]}"
    )
    with MessageStore.open(tmp_path / "mq") as store:
        store.create_topic("orders", 3)
        with (
            serve(store, "127.0.0.1:0", access=Access.load(path) if account else None) as serving,
            running(program, serving.address, "orders", "gophers", "20", *account) as said,
        ):
            lines = list(islice(said, 2 * 20))
            sent, came = ([line for line in lines if line["kind"] == kind] for kind in ("sent", "consumed"))
            ends = [store.max_offset("orders", queue) for queue in range(3)]
            until(lambda: [store.consumer_offset("gophers", "orders", queue) for queue in range(3)] == ends)
        assert {line["msgId"] for line in sent} == {line["msgId"] for line in came}
        assert len(sent) == len(came) == 20
        assert {(line["body"], line["keys"], line["tags"]) for line in came} == {
            (f"message {n}", f"key-{n}", "go") for n in range(20)
        }
        places = {(line["msgId"], line["queueId"], line["queueOffset"]) for line in sent}
        assert places == {(line["msgId"], line["queueId"], line["queueOffset"]) for line in came}
