"""`pyarrow.compute`, loaded at its first use: that takes nearly as long as `import store` does without it.

The driver of a query never uses it, nor does who puts and gets one message after the other.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
