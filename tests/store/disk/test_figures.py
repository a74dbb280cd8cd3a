from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from store.disk.figures import BUCKETS, DELIVERED, HELD, SENT, Figure, Figures, figures_in
from store.format.layout import CLIENTS_DIR
from tests.children import ended
from tests.device.recorder import Fault, Recorder


def seen(root: Path) -> list[tuple[str, str, str, list[int]]]:
    return [(each.name, each.topic, each.group, each.counts) for _, each in figures_in(root)]


def counted(root: Path | None) -> Figures:
    figures = Figures(root)
    figures.of(SENT, "t").add(1)
    return figures


def test_figures_are_visible_until_they_are_closed(tmp_path: Path) -> None:
    one, other = Figures(tmp_path), Figures(tmp_path)
    for milliseconds in (0.3, 1.0, 1.1, 500.0, 501.0):
        one.of(SENT, "orders").add(milliseconds)
    other.of(DELIVERED, "orders", "readers").add_all(np.array([0.0, 1, 2, 20, 21, 10_000]))
    other.of(HELD, "orders", "readers").set(7)
    assert seen(tmp_path) == []
    one.write()
    other.write()
    (first, sent), (second, delivered), (third, held) = figures_in(tmp_path)
    assert (sent.counts, sent.total) == ([2, 1, 0, 0, 0, 0, 1, 1], pytest.approx(1003.4))
    assert delivered == Figure(DELIVERED, "orders", "readers", 10_044.0, [2, 1, 0, 1, 1, 0, 0, 1])
    assert held.counts[0] == 7
    assert first != second == third

    other.of(HELD, "orders", "readers").set(3)
    other.drop(other.of(DELIVERED, "orders", "readers"))
    other.write()
    one.close()
    one.write()
    assert seen(tmp_path) == [(HELD, "orders", "readers", [3, *[0] * 7])]
    other.close()
    assert list((tmp_path / CLIENTS_DIR).iterdir()) == []


def test_bound_belongs_to_its_bucket(tmp_path: Path) -> None:
    figures = Figures(tmp_path)
    for bound in BUCKETS[SENT]:
        figures.of(SENT, "one by one").add(bound)
    figures.of(SENT, "together").add_all(np.array(BUCKETS[SENT], float))
    figures.write()
    assert [counts for *_, counts in seen(tmp_path)] == [[1] * 7 + [0]] * 2


def test_figures_of_a_killed_process_are_ignored_then_removed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from store.disk.figures import *; "
        "f = Figures(Path(sys.argv[1])); f.of(SENT, 't').add(1); f.write(); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [topic for _, topic, *_ in seen(tmp_path)] == ["t"]
        process.send_signal(signal.SIGKILL)
    (left,) = (tmp_path / CLIENTS_DIR).iterdir()
    assert seen(tmp_path) == []
    figures = counted(tmp_path)
    figures.write()
    assert not left.exists()
    figures.close()


def test_file_of_a_reused_process_id_is_ignored(tmp_path: Path) -> None:
    (tmp_path / CLIENTS_DIR).mkdir()
    (tmp_path / CLIENTS_DIR / f"{os.getpid()}-1-0.json").write_text('[{"name":"sent","topic":"t","group":""}]')
    assert seen(tmp_path) == []


def test_forked_child_leaves_figures_to_its_parent(tmp_path: Path) -> None:
    figures = counted(tmp_path)
    figures._turn.acquire()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        figures.of(SENT, "t").add(1)
        figures.write()
        figures.close()
        os._exit(0)
    figures._turn.release()
    assert ended(child) == 0
    figures.write()
    assert seen(tmp_path) == [(SENT, "t", "", [1, *[0] * 7])]


def test_no_file_without_figures_or_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for figures in (Figures(tmp_path), counted(tmp_path / "deleted"), counted(None)):
        figures.write()
        figures.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["[{", '[{"name":"sent","topic":"t","group":"","counts":[1]}]', None])
def test_unreadable_file_is_left_out(tmp_path: Path, content: str | None) -> None:
    figures = counted(tmp_path)
    figures.write()
    ((owner, _),) = figures_in(tmp_path)
    strange = tmp_path / CLIENTS_DIR / f"{owner}7.json"
    (strange.mkdir if content is None else lambda: strange.write_text(content))()
    with pytest.warns(RuntimeWarning, match=f"{strange}: the statistics of this process are ignored"):
        assert [topic for _, topic, *_ in seen(tmp_path)] == ["t"]
    figures.close()


@pytest.mark.parametrize("function", ["write", "mkdir", "open", "replace"])
def test_full_disk_loses_only_figures(tmp_path: Path, function: str, caplog: pytest.LogCaptureFixture) -> None:
    figures = counted(tmp_path)
    recorder = Recorder(tmp_path, fault=Fault(function, 0, errno.ENOSPC))
    with recorder.recording():
        figures.write()
        assert seen(tmp_path) == []
        figures.write()
    assert recorder.struck
    assert caplog.text.count("statistics of this process cannot be written") == 1
    assert [topic for _, topic, *_ in seen(tmp_path)] == ["t"]
    figures.close()
