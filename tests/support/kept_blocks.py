"""A store of weight blocks in this process, in place of Ray's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rl_trainer.weights.payload import WeightsBlock


class KeptBlocks:
    """Blocks by number. Like Ray's store it gives memory that nobody may write to."""

    def __init__(self) -> None:
        self.blocks: dict[int, WeightsBlock] = {}

    def put(self, block: WeightsBlock) -> int:
        kept = np.frombuffer(block.block.tobytes(), np.uint8)
        self.blocks[len(self.blocks)] = replace(block, block=kept)
        return len(self.blocks) - 1

    def get(self, handles: Sequence[int], timeout: float) -> list[WeightsBlock]:
        if any(handle not in self.blocks for handle in handles):
            raise TimeoutError(f"{handles}, {timeout} s")
        return [self.blocks[handle] for handle in handles]
