from pathlib import Path

import pytest

from store import MessageStore
from store.directory.directory_log import DirectoryAddress
from tests.pyspark_mq.console.conftest import HERE, Visit, Visitor

RESET = {"group": "billing", "topic": "orders", "place": "earliest"}


def offset(shop: Path) -> int | None:
    with MessageStore.open(shop, read_only=True) as store:
        return store.consumer_offset("billing", "orders", 0)


def test_pages_need_the_token(visit: Visit, shop: Path) -> None:
    visitor = visit(DirectoryAddress(str(shop)))
    for path in ("/", "/topic?topic=orders", "/live?part=topics", "/chart?topic=orders", "/nowhere"):
        assert "Open the whole address" in visitor.page(path, 403)
    assert "Open the whole address" in visitor.page("/?token=wrong", 403)
    assert "orders" not in visitor.page("/", 403)
    visitor.page("/static/console.css")
    assert "orders" in visitor.enter().page("/")


def test_token_moves_from_the_address_into_a_cookie(visit: Visit, shop: Path) -> None:
    visitor = visit(DirectoryAddress(str(shop)))
    answer = visitor.client.get(f"/topic?topic=%25DLQ%25a&token={visitor.keys.token}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/topic?topic=%25DLQ%25a")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert cookie.startswith("pyspark-mq-console-8770=")


def test_every_answer_restricts_the_browser(visitor: Visitor) -> None:
    for path in ("/", "/nowhere", "/static/console.js", "/body?topic=orders&queue=0&offset=0"):
        headers = visitor.client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "https://127.0.0.1:8770", "http://127.0.0.1"])
def test_form_of_another_site_changes_nothing(visitor: Visitor, shop: Path, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    answer = visitor.client.post("/group/reset", data={**RESET, "csrf": visitor.keys.csrf}, headers=headers)
    assert answer.status_code == 403
    assert offset(shop) == 2


@pytest.mark.parametrize("csrf", ["", "wrong", "größer"])
def test_form_without_its_secret_changes_nothing(visitor: Visitor, shop: Path, csrf: str) -> None:
    answer = visitor.client.post("/group/reset", data={**RESET, "csrf": csrf}, headers={"Origin": HERE})
    assert answer.status_code == 403
    assert offset(shop) == 2


def test_read_only_console_changes_nothing(visit: Visit, shop: Path) -> None:
    visitor = visit(DirectoryAddress(str(shop))).enter()
    assert "--allow-changes" in visitor.send("/group/reset", 400, **RESET)
    assert "--allow-changes" in visitor.send("/dead/again", 400, topic="orders", queue="0", offset="0")
    assert offset(shop) == 2
    assert '<form method="post" action="/group/reset"' not in visitor.page(
        "/group/reset?group=billing&topic=orders&place=earliest"
    )


def test_large_form_is_refused(visitor: Visitor) -> None:
    visitor.send("/group/reset", 413, place="x" * 100_000)
