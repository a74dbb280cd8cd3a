"""The slots of an index file: for each the number of its newest entry, mapped for the one who writes."""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from store.files.segment_file import SegmentFile
from store.format.layout import INDEX_HEADER, INDEX_SLOT
from store.model.system_errors import system_errors

Ints = npt.NDArray[np.int64]

_PAGE = mmap.PAGESIZE


class IndexSlots:
    """Many slots at once, read and set as elements of an array: keys hash to any of them.

    A page that is a hole needs space when it is touched, and where there is none the kernel kills the process. So
    `reserve` writes every page once, as it is, before its slots are used: that fails with an error.
    """

    def __init__(self, file: SegmentFile, slots: int) -> None:
        """Map the `slots` slots of an index file; `file` is open for writing."""
        self._file = file
        with system_errors(file.path):
            fd = os.open(file.path, os.O_RDWR)
            try:
                mapped = mmap.mmap(fd, INDEX_HEADER.itemsize + slots * INDEX_SLOT.itemsize)
            finally:
                os.close(fd)
        self._values = np.frombuffer(mapped, INDEX_SLOT, slots, INDEX_HEADER.itemsize)
        self._reserved = np.zeros(len(mapped) // _PAGE + 1, np.bool_)

    def reserve(self, slots: Ints) -> None:
        """Make sure that `slots` (ascending) can be used; call under the store lock.

        Raises `StoreFull`, and `CorruptSegment` where the file was cut short.
        """
        self._file.read(self._file.size - 1, 1)  # a page behind the file's end kills, too
        pages = (slots * INDEX_SLOT.itemsize + INDEX_HEADER.itemsize) // _PAGE
        new = pages[~self._reserved[pages]]
        new = new[np.diff(new, prepend=-1) > 0]
        for run in np.split(new, np.flatnonzero(np.diff(new) > 1) + 1) if len(new) else ():
            where, length = int(run[0]) * _PAGE, len(run) * _PAGE
            self._file.write(where, memoryview(self._file.read(where, length)))
        self._reserved[new] = True

    def get(self, slots: Ints) -> Ints:
        """Numbers of the newest entries of reserved slots, int64, the shape of `slots`."""
        return self._values[slots].astype(np.int64)

    def set(self, slots: Ints, numbers: Ints) -> None:
        """Name the newest entries of reserved slots; the newest of all last, by which one knows that all are named."""
        last = int(numbers.argmax())
        for part in (slice(last), slice(last + 1, None), slice(last, last + 1)):
            self._values[slots[part]] = numbers[part]
