"""Convert numpy arrays and Python values to Arrow arrays and back, without importing pandas.

`pa.array`, `pa.scalar`, `to_numpy` and pyarrow functions with plain arguments import pandas, which takes more time and
memory than all other imports.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Value = TypeVar("Value", bound=str | bytes)
Result = TypeVar("Result")
_SHORT = 256
Bytes = npt.NDArray[np.uint8]
_INLINE_VIEW_BYTES = 12  # Arrow stores shorter values inside their views


class _Compute:
    """Imports `pyarrow.compute` at its first use, because the import is slow."""

    def __getattr__(self, name: str) -> Any:
        import pyarrow.compute

        found = getattr(pyarrow.compute, name)
        setattr(self, name, found)
        return found


pc = _Compute()


def arrow(values: npt.NDArray[Any], *, nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array. values: shape (n,), native byte order. nulls: a mask of null values."""
    validity = None if nulls is None else _bits(~nulls)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [validity, data])


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an array without nulls."""
    kind, data = array.type.to_pandas_dtype(), array.buffers()[1]
    if not len(array):
        return np.empty(0, kind)
    if kind is not np.bool_:
        return np.frombuffer(data, kind, len(array), array.offset * np.dtype(kind).itemsize)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=array.offset + len(array))
    return bits[array.offset :].view(np.bool_)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Return an Arrow array of texts. Raises `UnicodeEncodeError` for a lone surrogate."""
    joined = "".join(values)
    if joined.isascii():
        return _binary(joined.encode(), values).view(pa.string())
    return blobs([value.encode() for value in values]).view(pa.string())


def blobs(values: Sequence[bytes]) -> pa.BinaryArray:
    return _binary(b"".join(values), values)


def cached_if_short(function: Callable[[Value], Result]) -> Callable[[Value], Result]:
    """Cache the results for short texts only, which limits the cache's memory."""
    cached = lru_cache(maxsize=1024)(function)

    @wraps(function)
    def call(value: Value) -> Result:
        return cached(value) if len(value) <= _SHORT else function(value)

    return call


@cached_if_short
def constant(value: str | bytes) -> pa.Scalar:
    return (texts([value]) if isinstance(value, str) else blobs([value]))[0]


def _binary(data: bytes, values: Sequence[str] | Sequence[bytes]) -> pa.BinaryArray:
    bounds = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


def flat(strings: pa.StringArray | pa.BinaryArray) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the bytes of n strings, without a copy, and their n + 1 bounds. Nulls have an arbitrary length."""
    offsets, data = strings.buffers()[1:]
    if not len(strings):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    bounds = np.frombuffer(offsets, np.int32)[strings.offset : strings.offset + len(strings) + 1].astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    return np.frombuffer(data if data is not None else b"", np.uint8)[first:last], bounds - first


def lengths(strings: pa.StringArray | pa.BinaryArray) -> npt.NDArray[np.int64]:
    """Return byte lengths. Nulls have an arbitrary length."""
    return np.diff(flat(strings)[1])


def cut(buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Copy n pieces, which must ascend without overlap. buffer: less than 2 GiB."""
    if len(sizes) and sizes.min() > _INLINE_VIEW_BYTES:
        views = np.zeros((len(starts), 4), np.int32)  # Arrow's: length, first bytes, buffer, offset
        views[:, 0], views[:, 3] = sizes, starts
        buffers = [None, pa.py_buffer(views), pa.py_buffer(buffer)]
        return pa.Array.from_buffers(pa.binary_view(), len(starts), buffers).cast(pa.binary())
    bounds = np.empty(2 * len(starts), np.int32)  # of pieces and gaps, alternating
    bounds[0::2], bounds[1::2] = starts, starts + sizes
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    pieces = pa.BinaryArray.from_buffers(pa.binary(), max(0, len(bounds) - 1), buffers)
    return pieces.take(arrow(np.arange(0, len(bounds), 2, dtype=np.int32)))
