import re
import signal
import subprocess
import sys
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

from tests.pyspark_mq.cli.process import TIMEOUT_SECONDS, run, started


def test_console_serves_until_interrupted(path: Path) -> None:
    with started("console", path, "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with browser.open(url, timeout=TIMEOUT_SECONDS) as answer:
            page = answer.read().decode()
        assert "orders" in page
        assert "Read-only" in page
        live = browser.open(url.partition("?")[0] + "live?part=topics", timeout=TIMEOUT_SECONDS)
        assert live.readline().startswith(b"data: ")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == 130
        live.close()
        out, error = process.communicate()
    assert (out, error.decode().splitlines()) == (b"", [f"Interrupted: no more console of {path}"])


def test_wrong_store_or_address_is_one_line(path: Path) -> None:
    for store, words in ((path / "nowhere", "nowhere"), ("rocketmq://nonsense", "host:port")):
        done = run("console", store, "--listen", "127.0.0.1:0")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert words in done.stderr
    done = run("console", path, "--listen", "nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_missing_packages_are_named(path: Path) -> None:
    program = (
        "import sys; sys.modules['uvicorn'] = None; from pyspark_mq.cli import main; "
        f"main(['console', {str(path)!r}], prog_name='pyspark-mq')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 1
    assert "pip install 'pyspark-mq[console]'" in done.stderr
