from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark_mq.planning.query_figures import QueryFigures
from pyspark_mq.stats.measures import RunningQuery, running_queries
from store import MessageStore
from store.cluster.address import ClusterAddress
from store.directory.directory_log import DirectoryAddress

PROGRAM = """
import os, signal, sys
from pyspark_mq.planning.query_figures import QueryFigures
from store.directory.directory_log import DirectoryAddress

QueryFigures(DirectoryAddress(sys.argv[1]), "killed").note(["orders"])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_query_is_recorded_until_it_closes(tmp_path: Path) -> None:
    MessageStore.open(tmp_path).close()
    one, other = (QueryFigures(DirectoryAddress(str(tmp_path)), group) for group in ("totals", "alerts"))
    one.note(["orders", "invoices"])
    other.note(["orders"])
    assert running_queries(tmp_path) == [
        RunningQuery("alerts", ("orders",), os.getpid()),
        RunningQuery("totals", ("invoices", "orders"), os.getpid()),
    ]
    one.close()
    assert [query.group for query in running_queries(tmp_path)] == ["alerts"]
    one.note(["orders"])
    assert [query.group for query in running_queries(tmp_path)] == ["alerts", "totals"]
    one.close()
    other.close()
    assert running_queries(tmp_path) == []


def test_killed_query_is_not_listed(tmp_path: Path) -> None:
    MessageStore.open(tmp_path).close()
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=False)
    assert running_queries(tmp_path) == []


def test_query_of_a_cluster_writes_nothing() -> None:
    figures = QueryFigures(ClusterAddress(("127.0.0.1:1",)), "totals")
    figures.note(["orders"])
    figures.close()
