"""A store of weight blocks in this process, in place of Ray's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any


class KeptBlocks:
    """Blocks by number. Like Ray's store it gives memory that nobody may write to."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.bytes = 0
        """Of all that was put."""

    def put(self, block: Any) -> int:
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
        kept = [bytes(buffer.raw()) for buffer in buffers]
        self.bytes += len(data) + sum(map(len, kept))
        self.blocks[len(self.blocks)] = pickle.loads(data, buffers=kept)
        return len(self.blocks) - 1

    def get(self, handles: Sequence[int], timeout: float) -> list[Any]:
        if any(handle not in self.blocks for handle in handles):
            raise TimeoutError(f"{handles}, {timeout} s")
        return [self.blocks[handle] for handle in handles]

    def watch(self, handle: int) -> Callable[[], bool]:
        """A test that puts None in a block's place has nobody want it."""
        return lambda: self.blocks[handle] is not None

    def check(self, handles: Sequence[int], blocks: Sequence[Any], check: Callable[[Any], None]) -> None:
        for _, block in zip(handles, blocks, strict=True):
            check(block)
