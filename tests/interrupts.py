"""Interrupting: an exception, or a signal's handler, before any instruction of the store's."""

from __future__ import annotations

import dis
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import store
from store import StoreConfig
from tests.waiting import PATIENCE

INTERRUPTS = int(os.environ.get("INTERRUPTS", "200"))  # in all, of each kind of test
_A_BENCH = 300
_CODE = str(Path(store.__file__).parent)
SMALL = StoreConfig(
    mappedFileSizeCommitLog=4096,
    mappedFileSizeConsumeQueue=200,
    maxHashSlotNum=50,
    maxIndexNum=60,
    flushIntervalCommitLog=3_600_000,
)


class Interrupt(BaseException):
    pass


@cache
def no_places(code: CodeType) -> set[int]:
    """Where no exception comes from elsewhere.

    Where a `with` block that went well calls `__exit__`: the interpreter looks for signals before and after it; an
    `__exit__` in Python is looked into itself. And where it keeps account of the exception that is handled, which it
    would have, with all its frames, for ever.
    """
    found: set[int] = set()
    instructions = list(dis.get_instructions(code))
    for at in range(len(instructions) - 4):
        nones, after = instructions[at : at + 3], instructions[at + 3 : at + 5]
        if all(each.opname == "LOAD_CONST" and each.argval is None for each in nones) and "CALL" in after[0].opname:
            calls = [each for each in after if "CALL" in each.opname]
            found.update(each.offset for each in (*nones, *calls))
    for each, behind in pairwise(instructions):
        if each.opname in ("PUSH_EXC_INFO", "POP_EXCEPT") or (each.opname, behind.opname) == ("COPY", "POP_EXCEPT"):
            found.add(each.offset)
    return found


def interrupt_here() -> None:
    raise Interrupt


def interrupted_at(
    place: int,
    verb: Callable[[], object],
    handler: Callable[[], object] = interrupt_here,
    function: str = "",
    also: Sequence[str] = (),
) -> int:
    """Run `verb`, with `handler` called before the instruction number `place` of this package, or as it is called.

    function: only its instructions count. also: those of these files count, too. Returns how many there were; raises
    what `handler` does.
    """
    at = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        nonlocal at
        if not frame.f_code.co_filename.startswith((_CODE, *also)):
            return None
        frame.f_trace_opcodes = True
        if frame.f_lasti in no_places(frame.f_code) or function not in frame.f_code.co_name:
            return trace
        at += 1
        if at == place:
            sys.settrace(None)
            handler()
            return None
        return trace

    sys.settrace(trace)
    try:
        verb()
    finally:
        sys.settrace(None)
    return at


def is_free(path: Path, byte: int) -> bool:
    """Whether nobody holds a byte of the lock file."""
    fd = os.open(path / "lock", os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def interrupts_of_a_bench(in_all: int) -> list[int]:
    """A store with a long life takes long to check."""
    return [min(_A_BENCH, in_all - before) for before in range(0, in_all, _A_BENCH)]


def ends_in_time(work: Callable[[], object], where: Callable[[], str]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), where()


def at_every_place(at: Callable[[int], int], step: int = 1) -> None:
    """`at`, which calls `interrupted_at`, with every `step`-th place there is: it comes to its end at each."""
    places: list[int] = []

    def at_all() -> None:
        places.append(at(-1))
        places.extend(map(at, range(1, places[0] + 1, step)))

    ends_in_time(at_all, lambda: f"at place {len(places)} of {places[:1]}")
    assert len(places) > places[0] / step > 0
