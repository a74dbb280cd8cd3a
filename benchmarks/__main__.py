"""`python -m benchmarks [reading] [appending] ...`: run all or the named benchmarks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import click

from benchmarks import (
    answering,
    appending,
    archiving,
    consuming,
    delaying,
    filtering,
    getting,
    indexing,
    narrowing,
    planning,
    processes,
    producing,
    putting,
    reading,
    remote_reading,
    serving,
    sqlite,
    starting,
    starting_query,
    writing,
)

# Waiting messages, due messages, and the seconds over which these become due.
_FEW = ((2_000, 500, 0.5),)
_DELAYED = ((100_000, 50_000, 20.0), (1_000_000, 50_000, 20.0))

BENCHMARKS: dict[str, Callable[[bool], None]] = {
    "appending": lambda small: appending.main(2_000 if small else 500_000, 0 if small else 5),
    "archiving": lambda small: archiving.main(2_000, 0, (100,)) if small else archiving.main(1_000_000, 5),
    "putting": lambda small: putting.main(80 if small else 20_000, 0 if small else 5),
    "sqlite": lambda small: sqlite.main(80 if small else 20_000, 0 if small else 5),
    "producing": lambda small: producing.main(2_000, 0, (100,)) if small else producing.main(300_000, 5),
    "starting": lambda small: starting.main(0 if small else 15),
    "starting_query": lambda small: starting_query.main(1, ((1, 1),)) if small else starting_query.main(15),
    "reading": lambda small: reading.main(2_000, 0, (100,)) if small else reading.main(2_000_000, 5),
    "remote_reading": lambda small: (
        remote_reading.main(2_000, 0, (100,)) if small else remote_reading.main(1_000_000, 5)
    ),
    "getting": lambda small: getting.main(2_000 if small else 200_000, 0 if small else 5),
    "consuming": lambda small: consuming.main(2_000 if small else 500_000, 0 if small else 5),
    "answering": lambda small: answering.main(40, 80, 0) if small else answering.main(20_000, 20_000, 5),
    "serving": lambda small: serving.main(20, 10, 20, 1 << 18) if small else serving.main(2_000, 200, 2_000, 64 << 20),
    "writing": lambda small: writing.main(2_000, 0, (100,)) if small else writing.main(2_000_000, 5),
    "delaying": lambda small: delaying.main(_FEW if small else _DELAYED),
    "filtering": lambda small: filtering.main(2_000 if small else 2_000_000, 0 if small else 3),
    "indexing": lambda small: indexing.main(2_000 if small else 10_000_000, 20 if small else 2_000),
    "narrowing": lambda small: narrowing.main(2_000 if small else 10_000_000, 0 if small else 3),
    "planning": lambda small: planning.main(1, (1, 10)) if small else planning.main(30),
    "processes": lambda small: (
        processes.main(10**6, 2 * 10**6, 1.0) if small else processes.main(40 * 10**6, 4 * 10**9)
    ),
    # These need settings from Spark's start, so they run in their own process.
    "kafka_source": lambda small: _in_a_process_of_its_own("kafka_source", small),
    "kafka_sink": lambda small: _in_a_process_of_its_own("kafka_sink", small),
    "latency": lambda small: _in_a_process_of_its_own("latency", small),
    "remote_latency": lambda small: _in_a_process_of_its_own("remote_latency", small),
}


def _in_a_process_of_its_own(name: str, small: bool) -> None:
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *(["--small"] if small else [])], check=True)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--small", is_flag=True, help="Small inputs: see that everything runs; the numbers mean nothing.")
def main(names: tuple[str, ...], small: bool) -> None:
    for name in names or BENCHMARKS:
        BENCHMARKS[name](small)


if __name__ == "__main__":
    main()
