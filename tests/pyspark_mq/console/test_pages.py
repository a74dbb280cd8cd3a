from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from pyspark_mq.planning.query_figures import QueryFigures
from store import Message, MessageStore, StoreConfig
from store.api.group_protocol import Subscription
from store.broker.retries import send_back
from store.cluster.address import ClusterAddress
from store.directory.directory_log import DirectoryAddress, DirectoryGroup
from store.format.layout import COMMIT_LOG_DIR
from store.model.log_protocol import Queue
from store.remoting.served_broker import BrokerConfig
from store.remoting.serving import serve
from tests.pyspark_mq.console.conftest import HOSTILE, Visit, Visitor
from tests.store.format.test_inflating import put
from tests.waiting import until

GOLDEN = Path(__file__).parents[2] / "golden"


def poison(shop: Path, body: bytes) -> None:
    """Change a byte of a body in the log, so that its checksum is wrong."""
    (segment,) = sorted((shop / COMMIT_LOG_DIR).iterdir())[:1]
    data = segment.read_bytes()
    at = data.index(body)
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))


def test_topics_with_sizes_and_lag(visitor: Visitor) -> None:
    page = visitor.page("/")
    assert '<a href="/topic?topic=orders">orders</a>' in page
    assert "<b>4</b> messages" in page
    assert "messages not read by 1 groups" in page


def test_empty_store_shows_the_first_steps(visit: Visit, tmp_path: Path) -> None:
    MessageStore.open(tmp_path / "new").close()
    page = visit(DirectoryAddress(str(tmp_path / "new"))).enter().page("/")
    assert "There are no topics yet" in page


def test_topic_page_shows_newest_first(visitor: Visitor) -> None:
    page = visitor.page("/topic?topic=orders")
    assert page.index("script&gt;document.title") < page.index("{&#34;id&#34;: &#34;o-1&#34;")
    assert 'data-live="/live?part=messages&amp;topic=orders&amp;count=50"' in page


def test_hostile_text_is_escaped_everywhere(visitor: Visitor) -> None:
    for path in (
        "/topic?topic=orders",
        "/message?topic=orders&queue=1&offset=0",
        "/message?topic=orders&queue=1&offset=0&as=text",
        "/topic?topic=orders&tags=%3Cscript%3E&sql=%3Cscript%3E",
        "/topic?topic=orders&place=%22%3E%3Cscript%3E",
        "/group?group=%3Cscript%3E",
        "/topic?topic=%3Cscript%3E",
        "/message?topic=orders&queue=%3Cscript%3E&offset=0",
        "/group/reset?group=billing&topic=orders&place=%3Cscript%3E",
    ):
        text = visitor.client.get(path).text
        assert "<script>" not in text, path
        assert "&lt;" in text, path
        assert not [tag for tag in ("<b>document", "<i>", "<u>") if tag in text], path


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ("queue=0", [2, 1, 0]),
        ("tags=A&queue=0", [2, 0]),
        ("sql=TAGS+%3D+%27B%27", [1]),
        ("key=o-1", [1]),
        ("key=absent", []),
        ("place=1&queue=0", [1, 2]),
        ("place=earliest&queue=0&count=1", [0]),
        ("place=1h&queue=0", [0, 1, 2]),
        ("place=2100-01-01", []),
        ("place=99&queue=0", []),
    ],
)
def test_messages_are_found(visitor: Visitor, query: str, offsets: list[int]) -> None:
    page = visitor.page(f"/topic?topic=orders&{query}")
    links = [int(part.partition('"')[0]) for part in page.split("queue=0&amp;offset=")[1:]]
    assert links == offsets
    assert ("No message matches" in page) == (not offsets)


def test_message_is_found_by_its_id(visitor: Visitor) -> None:
    page = visitor.page("/message?topic=orders&queue=0&offset=1")
    msg_id = page.partition("<dt>Id</dt><dd>")[2].partition("<")[0]
    assert "größer" in visitor.page(f"/topic?topic=orders&key={msg_id}")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sql=region+%3D", "SQL"),
        ("place=soon", "is not a place in a topic. Give earliest, latest"),
        ("count=0", "Give a number from 1 to 500"),
        ("count=x", "Give a number from 1 to 500"),
        ("tags=A&sql=TRUE", "Give one of them"),
    ],
)
def test_wrong_search_is_reported_beside_the_form(visitor: Visitor, query: str, words: str) -> None:
    page = visitor.page(f"/topic?topic=orders&{query}")
    assert words in page
    assert 'role="search"' in page


def test_pages_of_a_queue_lead_to_older_and_newer(visitor: Visitor) -> None:
    page = visitor.page("/topic?topic=orders&queue=0&place=1&count=1")
    assert 'href="/topic?topic=orders&amp;queue=0&amp;place=0&amp;count=1">Older' in page
    assert 'href="/topic?topic=orders&amp;queue=0&amp;place=2&amp;count=1">Newer' in page


@pytest.mark.parametrize("query", ["tags=A&queue=0", "sql=TRUE&queue=0", "key=o-0&queue=0"])
def test_no_page_leads_to_older_matches_of_a_filter(visitor: Visitor, query: str) -> None:
    page = visitor.page(f"/topic?topic=orders&{query}")
    assert "/message?topic=orders" in page
    assert ">Older" not in page


def test_message_is_shown_as_json_text_and_hex(visitor: Visitor) -> None:
    where = "/message?topic=orders&queue=0&offset="
    assert "&#34;total&#34;: 7" in visitor.page(where + "0")
    assert "größer" in visitor.page(where + "1")
    assert "00 ff fe" in visitor.page(where + "2")
    assert "7b 22 69 64" in visitor.page(where + "0&as=hex")
    assert "not UTF-8" in visitor.page(where + "2&as=text")


def test_control_characters_are_visible(visitor: Visitor, shop: Path) -> None:
    with MessageStore.open(shop) as store:
        store.put(Message("orders", "a\x1b[31m\u202eb".encode(), keys=["k\u202e"], queue_id=1))
    for path in ("/topic?topic=orders", "/message?topic=orders&queue=1&offset=1"):
        page = visitor.page(path)
        assert "a\\x1b[31m\\u202eb" in page
        assert "k\\u202e" in page


def test_download_is_never_a_page(visitor: Visitor) -> None:
    answer = visitor.client.get("/body?topic=orders&queue=1&offset=0")
    assert answer.content == HOSTILE
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="message-1-0.bin"'


def test_poison_message_has_a_page_and_hides_no_other(visitor: Visitor, shop: Path) -> None:
    poison(shop, "größer".encode())
    page = visitor.page("/topic?topic=orders&queue=0")
    assert "cannot be decoded" in page
    assert "o-1" in page
    assert "00 ff fe" in page
    page = visitor.page("/message?topic=orders&queue=0&offset=1")
    assert "This message cannot be decoded" in page
    assert "Its record, as it stands in the log" in page
    assert "00000000  " in page
    assert "offset=2" in page


def test_body_that_does_not_decompress_is_shown_as_stored(visit: Visit, tmp_path: Path) -> None:
    config = StoreConfig(maxDecompressedMessageSize=1_000)
    with MessageStore.open(tmp_path / "mq", config=config) as store:
        store.create_topic("t", 1)
        put(store, b"x" * 10_000)
    visitor = visit(DirectoryAddress(str(tmp_path / "mq"))).enter()
    assert "maxDecompressedMessageSize" in visitor.page("/topic?topic=t")
    page = visitor.page("/message?topic=t&queue=0&offset=0")
    assert "The body is shown as it is stored" in page
    assert "28 b5 2f fd" in page
    assert "<dt>Keys</dt><dd>k0</dd>" in page


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topic?topic=nowhere", 400),
        ("/topic", 400),
        ("/message?topic=orders&queue=9&offset=0", 400),
        ("/message?topic=orders&queue=0&offset=99", 400),
        ("/message?topic=orders&queue=0&offset=-1", 400),
        ("/message?topic=orders&queue=0&offset=1e9", 400),
        ("/group?group=nobody", 404),
        ("/nowhere", 404),
        ("/live?part=nothing", 404),
        ("/static/../access.py", 404),
    ],
)
def test_missing_objects_get_an_error_page(visitor: Visitor, path: str, status: int) -> None:
    assert '<p class="failure">' in visitor.page(path, status)


def test_group_with_members_and_lag(visitor: Visitor, shop: Path) -> None:
    assert "billing" in visitor.page("/groups")
    assert "No consumer is a member of this group now" in visitor.page("/group?group=billing")
    with DirectoryGroup(shop, "billing").join({"orders": Subscription("A")}) as member:
        member.lock([Queue("orders", 0)])
        page = visitor.page("/group?group=billing")
        assert page.count(member.id) == 2


def test_running_query_of_a_group(visitor: Visitor, shop: Path) -> None:
    assert "No Spark query of this machine reads this store" in visitor.page("/queries")
    query = QueryFigures(DirectoryAddress(str(shop)), "billing")
    query.note(["orders"])
    page = visitor.page("/queries")
    assert '<a href="/group?group=billing">billing</a></td><td><a href="/topic?topic=orders">orders</a>' in page
    assert '<td class="n">2</td>' in page
    page = visitor.page("/group?group=billing")
    assert f"A Spark query reads orders for this group. Process {os.getpid()} plans its batches" in page
    page = visitor.page("/group/reset?group=billing&topic=orders&place=earliest")
    assert "Stop the query first" in page
    assert "<button" not in page
    query.close()
    assert "<button" in visitor.page("/group/reset?group=billing&topic=orders&place=earliest")
    assert "A Spark query" not in visitor.page("/group?group=billing")


def test_lag_over_time(visitor: Visitor, shop: Path) -> None:
    with MessageStore.open(shop) as store:
        store.put_many([Message("orders", b"x", queue_id=0)] * 5)
    until(lambda: _chart(visitor)["values"][-1] == 7)
    chart = _chart(visitor)
    assert chart["values"][0] == 2
    assert len(chart["times"]) == len(chart["values"])


def _chart(visitor: Visitor) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(visitor.page("/chart?group=billing"))
    return found


def test_reset_is_shown_first_and_then_done(visitor: Visitor, shop: Path) -> None:
    where = "group=billing&topic=orders&place=earliest"
    page = visitor.page(f"/group/reset?{where}")
    assert "Nothing has changed yet" in page
    assert '<td>0</td><td class="n">2</td><td class="n">0</td><td class="n">3</td>' in page
    with MessageStore.open(shop, read_only=True) as store:
        assert store.consumer_offset("billing", "orders", 0) == 2
    assert "was moved" in visitor.send("/group/reset", group="billing", topic="orders", place="earliest")
    visitor.send("/group/reset", 400)
    with MessageStore.open(shop, read_only=True) as store:
        assert store.consumer_offset("billing", "orders", 0) == 0


def test_wrong_place_of_a_reset_is_said_beside_its_form(visitor: Visitor) -> None:
    page = visitor.page("/group/reset?group=billing&topic=orders&place=soon")
    assert "is not a place in a topic" in page
    assert 'action="/group/reset"' in page


def test_search_by_sql_says_what_it_compares(visitor: Visitor) -> None:
    assert "not fields of the body" in visitor.page("/topic?topic=orders&sql=total+%3D+7")


def test_dead_letter_is_sent_again(visitor: Visitor, shop: Path) -> None:
    with MessageStore.open(shop) as store:
        (message,) = store.get_message("", "orders", 0, 0, 1).messages
        send_back(store, "billing", [message], level=-1)
    until(lambda: "billing" in visitor.page("/dead"))
    where = {"topic": "%DLQ%billing", "queue": "0", "offset": "0"}
    assert "Send again" in visitor.page("/message?topic=%25DLQ%25billing&queue=0&offset=0")
    assert "was sent again" in visitor.send("/dead/again", **where)
    with MessageStore.open(shop) as store:
        until(lambda: store.topics().get("%RETRY%billing") and store.max_offset("%RETRY%billing", 0) == 1)
        (again,) = store.get_message("", "%RETRY%billing", 0, 0, 1).messages
    assert (again.body, again.properties["RETRY_TOPIC"], again.reconsume_times) == (message.body, "orders", 1)
    assert "is not the dead-letter topic of a group. Those are named %DLQ%GROUP" in visitor.send(
        "/dead/again", 400, topic="orders", queue="0", offset="0"
    )


def test_delayed_messages_wait_with_their_times(visitor: Visitor, shop: Path) -> None:
    assert "No message waits" in visitor.page("/delayed")
    with MessageStore.open(shop) as store:
        store.put(Message("orders", b"in an hour", delay_level=17))
        store.put(Message("orders", b"at a time", deliver_at=round(time.time() * 1000) + 600_000))
    page = visitor.page("/delayed")
    assert "After 3600 s: 1 waiting" in page
    assert "At a time of their own: 1 waiting" in page
    assert "in an hour" in page
    assert "at a time" in page


def test_health_with_a_verification(visitor: Visitor, shop: Path) -> None:
    page = visitor.page("/health")
    assert "1 segment," in page
    assert "This store has no archive" in page
    visitor.send("/health/verify")
    until(lambda: "4 records" in visitor.page("/health"))
    assert "no findings" in visitor.page("/health")
    poison(shop, HOSTILE)
    visitor.send("/health/verify")
    until(lambda: "restore the file from a copy" in visitor.page("/health"))


def test_archive_is_shown(visitor: Visitor, shop: Path, tmp_path: Path) -> None:
    with MessageStore.open(shop) as store:
        store.archive(str(tmp_path / "archive"))
    assert str(tmp_path / "archive") in visitor.page("/health")


def test_directory_of_a_broker_is_only_read(visit: Visit) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (GOLDEN / "clean").rglob("*"))
    visitor = visit(DirectoryAddress(str(GOLDEN / "clean"))).enter()
    assert "TopicA" in visitor.page("/")
    assert "/message?topic=TopicA" in visitor.page("/topic?topic=TopicA")
    for path in ("/groups", "/queries", "/delayed", "/dead", "/health"):
        visitor.page(path)
    assert sorted((path, path.stat().st_mtime_ns) for path in (GOLDEN / "clean").rglob("*")) == before


def test_console_of_a_cluster(visit: Visit, shop: Path) -> None:
    with (
        MessageStore.open(shop) as store,
        serve(store, "127.0.0.1:0", config=BrokerConfig(brokerName="broker-a")) as serving,
    ):
        address = ClusterAddress((serving.address,), patience=1.0, broker_timeout=1.0)  # the server closes first
        visitor = visit(address, allow_changes=True).enter()
        assert "orders" in visitor.page("/")
        page = visitor.page("/topic?topic=orders&queue=broker-a%3A0&tags=B")
        assert "größer" in page
        assert "größer" in visitor.page("/message?topic=orders&queue=broker-a%3A0&offset=1")
        assert "größer" in visitor.page("/topic?topic=orders&key=o-1")
        assert "billing" in visitor.page("/groups")
        assert "A cluster does not say" in visitor.page("/queries")
        visitor.page("/group?group=billing")
        assert "broker-a:0" in visitor.page("/group/reset?group=billing&topic=orders&place=earliest")
        assert "its brokers" in visitor.page("/health")
        assert "mqadmin" in visitor.send("/group/reset", 400, group="billing", topic="orders", place="earliest")
