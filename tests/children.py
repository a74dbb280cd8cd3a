from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.waiting import until


def in_a_child(work: Callable[[], object]) -> str:
    """Return the result of `work` in a forked process as text, "" if the process was killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the parent's test shows it
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        ended(child)
        return answer.read().decode()


def ended(child: int) -> int:
    """Return the exit code of a forked process. A child that hangs, on a lock copied at the fork, is killed."""
    try:
        until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
