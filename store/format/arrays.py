"""Arrow arrays of what numpy and Python have, and back, without pandas.

pyarrow's own ways (`pa.array`, `pa.scalar`, `to_numpy`, and plain values among the arguments of its functions) first
ask whether it is pandas that they were given, and import it for that wherever it is installed: all else that a process
needs to start takes less time and memory. So what a writer or a reader goes through makes its arrays here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow(values: npt.NDArray[Any], *, nulls: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """n numbers or truth values, shape (n,), in the machine's byte order, as Arrow has them; null where `nulls` is."""
    validity = None if nulls is None else _bits(~nulls)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [validity, data])


def numbers(array: pa.Array) -> npt.NDArray[Any]:
    """n numbers or truth values, without nulls, as numpy has them, shape (n,)."""
    kind, data = array.type.to_pandas_dtype(), array.buffers()[1]
    if not len(array):
        return np.empty(0, kind)
    if kind is not np.bool_:
        return np.frombuffer(data, kind, len(array), array.offset * np.dtype(kind).itemsize)
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=array.offset + len(array))
    return bits[array.offset :].view(np.bool_)


def texts(values: Sequence[str]) -> pa.StringArray:
    """Raises `UnicodeEncodeError` for a lone surrogate."""
    joined = "".join(values)
    if joined.isascii():
        return _binary(joined.encode(), values).view(pa.string())
    return blobs([value.encode() for value in values]).view(pa.string())


def blobs(values: Sequence[bytes]) -> pa.BinaryArray:
    return _binary(b"".join(values), values)


@lru_cache(maxsize=1024)
def constant(value: str | bytes) -> pa.Scalar:
    """A text, or bytes, for a function that takes arrays."""
    return (texts([value]) if isinstance(value, str) else blobs([value]))[0]


def _binary(data: bytes, values: Sequence[str] | Sequence[bytes]) -> pa.BinaryArray:
    bounds = np.fromiter(accumulate(map(len, values), initial=0), np.int32, len(values) + 1)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(data)])


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
