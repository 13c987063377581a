"""Items on the wire: several pickled items in one flat block, big buffers beside it.

An item is pickled once, by the producer. Buffers of `BIG_BUFFER` bytes and more (pickle protocol 5) stay out of
the pickle, so that an array is written into the object store straight from where it is and read from there
without a copy. A chunk is `[block, buffer, buffer, ...]`; `block` holds the pickles of all items, an index and a
footer::

    pickle 0 | pickle 1 | ... | index: 3 int64 per item (pickle bytes, weight, number of buffers) | footer

Arrays arrive read-only, as with Ray itself.
"""

from __future__ import annotations

import array
import copyreg
import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from ray import cloudpickle

BIG_BUFFER = 64 * 1024
_FOOTER = struct.Struct("<I4s")  # items, magic
_MAGIC = b"RLC1"

Bytes = npt.NDArray[np.uint8]


class Encoded(NamedTuple):
    """One pickled item: the pickle, its big buffers (views of the caller's arrays), its weight and size."""

    data: Any
    buffers: list[Bytes]
    weight: int
    nbytes: int


def _array(data: bytes, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, data)


def _reduce_array(value: npt.NDArray[Any]) -> Any:
    """Small plain arrays as bytes, type and shape: half the time of numpy's own way, which is for all arrays."""
    dtype = value.dtype
    if value.nbytes < BIG_BUFFER and dtype.kind in "biufc" and dtype.isnative:
        return _array, (value.tobytes(), dtype.char, value.shape)
    return value.__reduce_ex__(5)


class _Pickler(pickle.Pickler):
    dispatch_table = {**copyreg.dispatch_table, np.ndarray: _reduce_array}  # noqa: RUF012 - pickle reads it


def encode(item: Any, weight: int = 1) -> Encoded:
    """Pickle an item. What the caller's `__main__` or a closure defines is pickled by value (cloudpickle)."""
    big: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    try:
        _Pickler(out, 5, buffer_callback=big.append).dump(item)
        data = out.getvalue()
        if b"__main__" in data:
            raise pickle.PicklingError
    except (pickle.PicklingError, AttributeError, TypeError):
        big.clear()  # cloudpickle knows more types, and its message is the better one
        data = cloudpickle.dumps(item, 5, buffer_callback=big.append)
    if not big:
        return Encoded(data, [], weight, len(data))
    buffers = [np.frombuffer(buffer.raw(), np.uint8) for buffer in big]
    if sum(buffer.nbytes for buffer in buffers) < BIG_BUFFER:  # of some other type with small buffers
        data = cloudpickle.dumps(item, 5)
        return Encoded(data, [], weight, len(data))
    return Encoded(data, buffers, weight, len(data) + sum(buffer.nbytes for buffer in buffers))


def pack(message: tuple[Any, ...], *, references: bool) -> Any:
    """A message to or from the actor as one value that costs Ray little: it serializes every argument and every
    structure anew (0.02 ms each), but not bytes. Those with object references must stay visible to it."""
    return message if references else pickle.dumps(message, 5)


def unpack(message: Any) -> tuple[Any, ...]:
    """What was packed."""
    return cast("tuple[Any, ...]", pickle.loads(message) if isinstance(message, bytes) else message)


def join(items: Sequence[Encoded]) -> bytes:
    """The block of a chunk. Its buffers are those of the items in order."""
    index = array.array("q")
    for item in items:
        index.extend((len(item.data), item.weight, len(item.buffers)))
    return b"".join([*(item.data for item in items), index.tobytes(), _FOOTER.pack(len(items), _MAGIC)])


def split(block: Any, buffers: Sequence[Any], start: int, stop: int) -> list[Encoded]:
    """Items `start` to `stop` of a chunk, still pickled, as views of the block and the buffers."""
    view = memoryview(block)
    count, magic = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if magic != _MAGIC:
        raise ValueError("not a chunk")
    index = array.array("q")
    end = len(view) - _FOOTER.size
    index.frombytes(view[end - 24 * count : end])
    sizes, weights, counts = index[0::3].tolist(), index[1::3].tolist(), index[2::3].tolist()
    position, used = sum(sizes[:start]), sum(counts[:start])
    items = []
    for size, weight, number in zip(sizes[start:stop], weights[start:stop], counts[start:stop], strict=True):
        data = view[position : position + size]
        items.append(Encoded(data, list(buffers[used : used + number]), weight, size))
        position += size
        used += number
    return items


def decode(item: Encoded) -> Any:
    """The item itself. Big arrays are read-only views of the chunk."""
    return pickle.loads(item.data, buffers=item.buffers)


def cut(block: bytes, start: int, stop: int) -> bytes:
    """The block of the items `start` to `stop` alone, for a chunk without buffers."""
    return join(split(block, (), start, stop))
