"""The console in the system's Chromium, driven by Playwright; skipped if either is missing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import pytest

from pyspark_mq.console.console_server import ConsoleServer
from store import Message, MessageStore
from store.directory.directory_log import DirectoryAddress
from tests.pyspark_mq.console.conftest import HOSTILE
from tests.pyspark_mq.console.test_pages import poison

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root has no sandbox
        yield found
        found.close()


@pytest.fixture
def server(shop: Path) -> Iterator[ConsoleServer]:
    console = ConsoleServer(DirectoryAddress(str(shop)), "127.0.0.1", 0, interval=0.05, allow_changes=True)
    thread = threading.Thread(target=console.serve_pages)
    thread.start()
    yield console
    console.stop()
    thread.join()


@pytest.fixture
def page(browser: Browser, server: ConsoleServer) -> Iterator[Page]:
    """A page of the console. The test fails if the browser reports an error or runs a script."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    found, complaints = context.new_page(), list[str]()
    found.on("console", lambda message: complaints.append(message.text))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("dialog", lambda dialog: complaints.append(dialog.message))
    found.goto(server.url)
    yield found
    assert "hacked" not in found.title()
    context.close()
    assert complaints == []


def open_topic(page: Page, topic: str = "orders") -> None:
    page.get_by_role("link", name=topic, exact=True).click()
    page.wait_for_selector("table.messages")


def test_token_leaves_the_address(page: Page) -> None:
    assert "token" not in page.url
    assert page.title() == "Topics · pyspark-mq"


def test_message_appears_while_the_page_is_open(page: Page, shop: Path) -> None:
    open_topic(page)
    with MessageStore.open(shop) as store:
        store.put(Message("orders", b"sent just now"))
    page.get_by_text("sent just now").wait_for()
    page.get_by_text("messages/s, as long as").wait_for()
    page.wait_for_selector(".chart[data-points] canvas")


def test_counts_change_while_the_page_is_open(page: Page, shop: Path) -> None:
    page.locator("td.n", has_text="4").first.wait_for()
    with MessageStore.open(shop) as store:
        store.put_many([Message("orders", b"x")] * 1_230)
    page.locator("td.n", has_text="1,234").wait_for()


def test_filter_by_tag(page: Page) -> None:
    open_topic(page)
    page.get_by_label("Tags").fill("B")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**tags=B**")
    assert page.locator("table.messages tbody tr").count() == 1
    assert "größer" in page.inner_text("table.messages")


def test_reset_of_a_group(page: Page, shop: Path) -> None:
    page.get_by_role("link", name="Groups", exact=True).click()
    page.get_by_role("link", name="billing").click()
    page.get_by_label("To", exact=True).fill("earliest")
    page.get_by_role("button", name="Show what would change").click()
    page.get_by_text("Nothing has changed yet").wait_for()
    page.get_by_role("button", name="Move billing").click()
    page.wait_for_url("**/group?**")
    with MessageStore.open(shop, read_only=True) as store:
        assert store.consumer_offset("billing", "orders", 0) == 0


def test_page_of_a_poison_message(page: Page, shop: Path) -> None:
    poison(shop, "größer".encode())
    open_topic(page)
    page.locator("tr.bad a").click()
    page.get_by_text("This message cannot be decoded").wait_for()
    page.get_by_role("link", name="After").click()
    page.get_by_text("00 ff fe").wait_for()


def test_hostile_body_is_text(page: Page) -> None:
    open_topic(page)
    assert HOSTILE.decode() in page.inner_text("table.messages")
    page.locator("tr", has_text="hacked").get_by_role("link").click()
    assert page.inner_text("pre") == HOSTILE.decode()
    assert "<script>" in page.locator("dl").last.inner_text()


@pytest.mark.parametrize("width", [400, 1_400])
def test_pages_fit_the_window(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for path in (
        "/",
        "/topic?topic=orders",
        "/groups",
        "/group?group=billing",
        "/queries",
        "/delayed",
        "/dead",
        "/health",
    ):
        page.goto(urljoin(page.url, path))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
