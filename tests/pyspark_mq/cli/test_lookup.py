import json
from pathlib import Path

import pytest

from store import Message, MessageStore
from tests.pyspark_mq.cli.process import run, succeed
from tests.store.format.test_inflating import mark


def test_query_finds_messages(path: Path) -> None:
    with MessageStore.open(path) as store:
        results = [store.put(Message("orders", f"body {n}".encode(), "paid", (f"k{n}", "all"))) for n in range(6)]
        store.put(Message("orders", b"own id", properties={"UNIQ_KEY": "7F000001ABCD"}))
        times = [store.message_by_id(result.msg_id).store_timestamp for result in results]
    assert succeed("query", path, "orders", "--key", "k3") == "body 3\n"
    assert succeed("query", path, "orders", "--key", "all", "--count", 2) == "body 4\nbody 5\n"
    assert succeed("query", path, "orders", "--id", results[2].msg_id) == "body 2\n"
    assert succeed("query", path, "orders", "--id", "7F000001ABCD") == "own id\n"
    found = json.loads(succeed("query", path, "orders", "--key", "k3", "--json"))
    tailed = json.loads(succeed("tail", path, "orders", "--from", 1, "--queue", 1, "--count", 1, "--json"))
    assert found == tailed
    assert succeed("query", path, "orders", "--time", times[0]) == "queue 0: offset 0\nqueue 1: offset 0\n"
    assert succeed("query", path, "orders", "--time", "2100-01-01") == "queue 0: offset 4\nqueue 1: offset 3\n"
    one = succeed("query", path, "orders", "--time", "2100-01-01T06:00:00", "--queue", 1, "--json")
    assert json.loads(one) == {"queueId": 1, "queueOffset": 3}


def test_query_by_id_ignores_messages_with_that_id_as_key(path: Path) -> None:
    with MessageStore.open(path) as store:
        placed = store.put(Message("orders", b"placed")).msg_id
        store.put(Message("orders", b"own id", properties={"UNIQ_KEY": "7F000001ABCD"}))
        store.put_many(Message("orders", b"answer", keys=(placed, "7F000001ABCD")) for _ in range(5))
    assert succeed("query", path, "orders", "--id", "7F000001ABCD") == "own id\n"
    assert succeed("query", path, "orders", "--id", placed) == "placed\n"


def test_query_prints_why_a_body_cannot_be_read(path: Path) -> None:
    with MessageStore.open(path) as store:
        sent = [Message("orders", body, queue_id=0, keys=("k",)) for body in (b"good", b"poison", b"more")]
        results = store.put_many(sent)
        mark(store, results[1].physical_offset, 0x301)
    done = run("query", path, "orders", "--key", "k")
    assert (done.returncode, done.stdout) == (0, "good\nmore\n")
    assert done.stderr.startswith("queue 0, offset 1: a zlib body of 6 bytes does not decompress")
    assert succeed("query", path, "orders", "--key", "k", "--json") == succeed(
        "tail", path, "orders", "--until-end", "--json"
    )
    done = run("query", path, "orders", "--id", results[1].msg_id)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("queue 0, offset 1: a zlib body of 6 bytes does not decompress")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["orders", "--key", "nobody"], 1, "No message of topic orders has the key 'nobody'"),
        (["orders", "--key", ""], 1, "No message of topic orders has the key ''"),
        (["orders", "--id", "nobody"], 1, "is not an offset message id"),
        (["nobody", "--key", "k"], 1, "Topic 'nobody' does not exist"),
        (["ordrs", "--key", "k"], 1, "Did you mean orders?"),
        (["orders", "--time", "soon"], 2, "'soon' is no time"),
        (["orders", "--time", "9" * 5000], 2, "is no time"),
        (["orders"], 2, "Give exactly one of --key, --id and --time"),
        (["orders", "--key", "k", "--time", "1"], 2, "Give exactly one of --key, --id and --time"),
        (["orders", "--time", "1", "--queue", "7"], 1, "has queues 0 to 1, not 7"),
    ],
)
def test_query_without_a_match_is_an_error(path: Path, arguments: list[str], code: int, words: str) -> None:
    done = run("query", path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
