"""Items on the wire: several pickled items in one flat block, big buffers beside it. No Ray here.

An item is pickled once, by the producer. Buffers of `BIG_BUFFER` bytes and more (pickle protocol 5) stay out
of the pickle, so that an array is written into the object store straight from where it is and read from there
without a copy. A chunk is `[block, buffer, buffer, ...]`; `block` holds the pickles of all items, an index
and a footer::

    pickle 0 | pickle 1 | ... | index: 3 int64 per item (pickle bytes, weight, number of buffers) | footer
"""

from __future__ import annotations

import array
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
    """One pickled item: the pickle, its big buffers (views of the caller's arrays) and its weight."""

    data: bytes
    buffers: list[Bytes]
    weight: int

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return len(self.data) + sum(buffer.nbytes for buffer in self.buffers)


def encode(item: Any, weight: int = 1) -> Encoded:
    """Pickle an item. What the caller's `__main__` or a closure defines is pickled by value (cloudpickle)."""
    buffers: list[Bytes] = []

    def keep_inside(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < BIG_BUFFER:
            return True
        buffers.append(np.frombuffer(raw, np.uint8))
        return False

    try:
        data = pickle.dumps(item, 5, buffer_callback=keep_inside)
        if b"__main__" not in data:
            return Encoded(data, buffers, weight)
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # cloudpickle knows more types, and its message is the better one
    buffers.clear()
    data = cast(bytes, cast(Any, cloudpickle).dumps(item, 5, buffer_callback=keep_inside))
    return Encoded(data, buffers, weight)


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
        items.append(Encoded(view[position : position + size], list(buffers[used : used + number]), weight))  # type: ignore[arg-type]
        position += size
        used += number
    return items


def decode(item: Encoded) -> Any:
    """The item itself. Its big arrays are read-only views of the chunk; everything else is its own copy."""
    return pickle.loads(item.data, buffers=item.buffers)


def cut(block: bytes, start: int, stop: int) -> bytes:
    """The block of the items `start` to `stop` alone, for a chunk without buffers."""
    return join(split(block, (), start, stop))
