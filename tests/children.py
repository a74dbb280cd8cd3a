"""What is done in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.waiting import until


def in_a_child(work: Callable[[], object]) -> str:
    """What `work` answers in a forked process, as text; nothing where that is killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the parent's test says what it was
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        ended(child)
        return answer.read().decode()


def ended(child: int) -> int:
    """The exit code of a forked process, when it has ended. One that hangs is killed: at the fork it may have been left
    with a lock of a thread that it does not have."""
    try:
        until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
    finally:
        os.kill(child, signal.SIGKILL)  # which is nothing to one that has ended
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
