"""An in-memory file system whose reads wait for the test."""

from __future__ import annotations

import re
import threading
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Gated(MemoryFileSystem):  # type: ignore[misc]
    """gate: reads wait until it is set. error: raised by reads. reads: their number; waiting: those waiting now."""

    protocol = "gated"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    gate = threading.Event()
    error: OSError | None = None
    reads = waiting = 0
    _count = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """Remove a secret: all users see the same files."""
        return str(super()._strip_protocol(re.sub("^gated://(me:secret@)?", "memory://", path)))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with Gated._count:
            Gated.reads += 1
            Gated.waiting += 1
        try:
            assert Gated.gate.wait(60)
        finally:
            with Gated._count:
                Gated.waiting -= 1
        if Gated.error is not None:
            raise Gated.error
        return bytes(super().cat_file(path, start, end))


fsspec.register_implementation("gated", Gated, clobber=True)


def new_url() -> str:
    Gated.gate.set()
    Gated.error = None
    Gated.reads = Gated.waiting = 0
    return f"gated://me:secret@{uuid4().hex}/archive"
