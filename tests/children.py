"""What is done in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.waiting import PATIENCE


def in_a_child(work: Callable[[], object]) -> str:
    """What `work` answers in a forked process, as text; nothing where it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(int(PATIENCE))
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the parent's test says what it was
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(child, 0)
    return text
