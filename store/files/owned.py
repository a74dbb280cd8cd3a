"""Does the calling thread hold a lock?"""

from __future__ import annotations

from threading import Condition


def is_owned(condition: Condition) -> bool:
    """Return whether the calling thread holds the condition's lock, as in a signal handler amid a verb that has it.

    Only the lock's owner may notify, and `Condition` has no other public verb that tells.
    """
    try:
        condition.notify(0)
    except RuntimeError:
        return False
    return True
