"""Record each change of a run to a directory by replacing system functions.

It records paths and bytes only, so it does not depend on the store's code. Files are opened with `_pyio`, so that
Python's file objects call `os`. Writes through shared mappings are found at the next call, by comparison with the last
content.
"""

from __future__ import annotations

import _pyio
import builtins
import io
import mmap
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, NamedTuple
from unittest.mock import patch

from tests.device.disk import TOP, Change, Names, Resize, Sync, Tree, Write

_WORD = 8  # bytes that a processor stores atomically
_REAL = {name: getattr(os, name) for name in ("close", "dup", "lseek", "pread")}
_open_for_reading = io.open
_map = mmap.mmap


class Fault(NamedTuple):
    """From the `call`-th call of a function on (from 0), `times` calls fail. error: an errno; 0 writes half of the
    bytes."""

    function: str
    call: int
    error: int
    times: int = 1


class Recorder:
    """Records changes below the directory `root`, which holds `tree` when the run begins."""

    def __init__(self, root: Path, tree: Tree | None = None, fault: Fault | None = None) -> None:
        self.changes: list[Change] = []
        self.calls: Counter[str] = Counter()
        self.struck = False
        self._root = os.path.abspath(root)
        self._fault = fault
        self._turn = threading.RLock()
        self._names: dict[tuple[int, str], int] = {}
        self._nodes = TOP + 1
        self._opened: dict[int, int] = {}  # descriptor to node
        self._mapped: dict[int, tuple[int, bytes]] = {}  # node to (own descriptor, last seen content)
        for path in tree or {}:
            place = self._place_in(path)
            assert place is not None
            self._names[place] = self._new_node()

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Record all changes of this process during the block."""
        replaced = {getattr(os, name): self._replacement(name, recorded) for name, recorded in self._recorded().items()}
        with ExitStack() as stack:
            for module in [module for name, module in sys.modules.items() if name == "os" or name.startswith("store")]:
                for name, value in list(vars(module).items()):
                    if isinstance(value, BuiltinFunctionType) and value in replaced:
                        stack.enter_context(patch.object(module, name, replaced[value]))
            for opener in (io, builtins):
                stack.enter_context(patch.object(opener, "open", self._open_file))
            stack.enter_context(patch.object(mmap, "mmap", self._mmap))
            try:
                yield self
            finally:
                self.look()
                for descriptor, _ in self._mapped.values():
                    _REAL["close"](descriptor)
                self._mapped.clear()

    def look(self) -> int:
        """Record writes through mappings since the last call; return the number of changes."""
        with self._turn:
            for node, (descriptor, before) in self._mapped.items():
                now = _REAL["pread"](descriptor, len(before), 0)
                if now != before:
                    self._mapped[node] = descriptor, now
                    for at in range(0, len(now), _WORD):
                        if now[at : at + _WORD] != before[at : at + _WORD]:
                            self.changes.append(Write(node, at, now[at : at + _WORD]))
            return len(self.changes)

    def _replacement(self, name: str, recorded: Callable[..., Any]) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._turn:
                self.look()
                if self._concerns(args[0], kwargs.get("dir_fd")):
                    args = self._answer(name, args)
                result = recorded(real, *args, **kwargs)
                for node, (descriptor, before) in self._mapped.items():
                    self._mapped[node] = descriptor, _REAL["pread"](descriptor, len(before), 0)
                return result

        return call

    def _concerns(self, first: Any, dir_fd: int | None) -> bool:
        return first in self._opened if isinstance(first, int) else self._place(first, dir_fd) is not None

    def _answer(self, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the call that the device carries out. Raises the fault's error."""
        fault, number = self._fault, self.calls[name]
        self.calls[name] += 1
        if fault is None or name != fault.function or not 0 <= number - fault.call < fault.times:
            return args
        self.struck = True
        if not fault.error:
            return (args[0], bytes(args[1])[: max(1, len(args[1]) // 2)], *args[2:])
        if name in ("fsync", "fdatasync"):
            self.changes.append(Sync(self._opened[args[0]], failed=True))
        raise OSError(fault.error, os.strerror(fault.error), None if isinstance(args[0], int) else os.fspath(args[0]))

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """Return the directory and name of a path; None if outside of `root` or missing."""
        text = os.fspath(path)
        if dir_fd is not None and not os.path.isabs(text):
            at = self._opened.get(dir_fd)
            return None if at is None else (at, text)
        absolute = os.path.abspath(text)
        return self._place_in(absolute[len(self._root) + 1 :]) if absolute.startswith(f"{self._root}/") else None

    def _place_in(self, path: str) -> tuple[int, str] | None:
        *parents, name = path.split("/")
        at: int | None = TOP
        for parent in parents:
            at = None if at is None else self._names.get((at, parent))
        return None if at is None else (at, name)

    def _new_node(self) -> int:
        self._nodes += 1
        return self._nodes - 1

    def _change_names(self, *changes: tuple[tuple[int, str] | None, int | None]) -> None:
        known = [(place, node) for place, node in changes if place is not None]
        for place, node in known:
            if node is None:
                self._names.pop(place, None)
            else:
                self._names[place] = node
        if known:
            self.changes.append(Names(tuple((*place, node) for place, node in known)))

    def _recorded(self) -> dict[str, Callable[..., Any]]:
        """Return the replacements for functions of `os`."""
        return {
            **({"pread": lambda real, *args: real(*args)} if self._fault and self._fault.function == "pread" else {}),
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "writev": self._write,
            "pwrite": self._pwrite,
            "pwritev": self._pwrite,
            "ftruncate": self._truncate,
            "truncate": self._truncate,
            "posix_fallocate": self._allocate,
            "fsync": self._sync,
            "fdatasync": self._sync,
            "mkdir": self._mkdir,
            "link": self._link,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._remove,
            "remove": self._remove,
            "rmdir": self._remove,
        }

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode).isdisjoint("wax+"):
            return _pyio.open(file, mode, *args, **kwargs)
        with self._turn:
            if not isinstance(file, int) and self._concerns(file, None):
                self._answer("open", (file,))
        return _open_for_reading(file, mode, *args, **kwargs)

    def _mmap(self, descriptor: int, *args: Any, **kwargs: Any) -> mmap.mmap:
        mapped = _map(descriptor, *args, **kwargs)
        is_writable = kwargs.get("access", mmap.ACCESS_DEFAULT) in (mmap.ACCESS_DEFAULT, mmap.ACCESS_WRITE)
        with self._turn:
            node = self._opened.get(descriptor)
            if is_writable and node is not None and node not in self._mapped:
                own = _REAL["dup"](descriptor)
                self._mapped[node] = own, _REAL["pread"](own, os.fstat(own).st_size, 0)
        return mapped

    def _open(self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        descriptor: int = real(path, flags, mode, dir_fd=dir_fd)
        place = self._place(path, dir_fd)
        if place is None:
            node = TOP if os.path.abspath(os.fspath(path)) == self._root else None
        elif place not in self._names:
            node = self._new_node()
            self.changes.append(Resize(node, 0))
            self._change_names((place, node))
        else:
            node = self._names[place]
            if flags & os.O_TRUNC:
                self.changes.append(Resize(node, 0))
        self._opened.pop(descriptor, None)
        if node is not None:
            self._opened[descriptor] = node
        return descriptor

    def _close(self, real: Any, descriptor: int) -> None:
        self._opened.pop(descriptor, None)
        real(descriptor)

    def _write(self, real: Any, descriptor: int, data: Any) -> int:
        written: int = real(descriptor, data)
        if descriptor in self._opened:
            self._wrote(descriptor, data, written, _REAL["lseek"](descriptor, 0, os.SEEK_CUR) - written)
        return written

    def _pwrite(self, real: Any, descriptor: int, data: Any, position: int, *flags: int) -> int:
        written: int = real(descriptor, data, position, *flags)
        self._wrote(descriptor, data, written, position)
        return written

    def _wrote(self, descriptor: int, data: Any, written: int, position: int) -> None:
        if descriptor in self._opened and written:
            joined = b"".join(map(bytes, data)) if isinstance(data, list) else bytes(data)
            self.changes.append(Write(self._opened[descriptor], position, joined[:written]))

    def _truncate(self, real: Any, file: Any, length: int) -> None:
        real(file, length)
        place = None if isinstance(file, int) else self._place(file)
        node = self._opened.get(file) if place is None else self._names[place]
        if node is not None:
            self.changes.append(Resize(node, length))

    def _allocate(self, real: Any, descriptor: int, position: int, length: int) -> None:
        real(descriptor, position, length)
        if descriptor in self._opened:
            self.changes.append(Resize(self._opened[descriptor], os.fstat(descriptor).st_size))

    def _sync(self, real: Any, descriptor: int) -> None:
        real(descriptor)
        if descriptor in self._opened:
            self.changes.append(Sync(self._opened[descriptor]))

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        self._change_names((self._place(path, dir_fd), self._new_node()))

    def _link(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        place = self._place(source, kwargs.get("src_dir_fd"))
        self._change_names(
            (self._place(target, kwargs.get("dst_dir_fd")), None if place is None else self._names[place])
        )

    def _rename(self, real: Any, source: Any, target: Any, **kwargs: Any) -> None:
        real(source, target, **kwargs)
        place = self._place(source, kwargs.get("src_dir_fd"))
        node = None if place is None else self._names[place]
        self._change_names((place, None), (self._place(target, kwargs.get("dst_dir_fd")), node))

    def _remove(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        real(path, dir_fd=dir_fd)
        self._change_names((self._place(path, dir_fd), None))
