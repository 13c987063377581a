"""A learner that publishes by `weightSync.transport: ipc`, and what its samplers are to receive."""

from __future__ import annotations

import gc
import time
from typing import Any

import torch
from kept_blocks import KeptBlocks

from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.ipc import IpcPublisher, IpcReceiver
from rl_trainer.weights.transports.publication import Publication

SECONDS = 30.0


def tensors(version: int) -> dict[str, torch.Tensor]:
    """Of that version; one is larger than a block."""
    return {
        "large": torch.arange(2000.0).view(4, 500) + version,
        "half": torch.full((30,), version).to(torch.bfloat16),
        "none": torch.empty(0, 3),
    }


def offer(version: int, device: str = "cpu") -> Offer:
    parts = {name: LazyTensor.of(value) for name, value in tensors(version).items()}
    return Offer(lambda: source_of(parts), device=torch.device(device))


def is_version(found: Any, version: int) -> bool:
    wanted = tensors(version)
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


class World:
    """A learner, and its samplers' store."""

    def __init__(self, *, others: bool = False):
        self.store = KeptBlocks()
        self.publisher = IpcPublisher(self.store, 0, limit=256, others=others)
        self.published: dict[int, Publication] = {}

    def publish(self, version: int) -> str:
        """The way that it goes."""
        found = self.publisher.publish(offer(version), version)
        assert found is not None
        self.published[version] = found
        return found.way

    def receive(self, version: int, receiver: IpcReceiver | None = None) -> Any:
        found = (receiver or IpcReceiver(self.store, "sampler 3")).receive(self.published[version], SECONDS)
        assert is_version(found, version)
        return found

    def forget(self, version: int) -> None:
        """Nobody has the publication any more."""
        for handle in self.published.pop(version).blocks:
            self.store.blocks[handle] = None

    @property
    def there(self) -> list[int]:
        """Versions in the learner's memory, by how often was published."""
        assert self.publisher._desk is not None
        with self.publisher._desk._lock:  # what is given back is so before it is left
            return [*self.publisher._desk._versions]

    def comes_to(self, there: list[int]) -> bool:
        """Whether these alone are left: the desk's thread looks now and then."""
        gc.collect()
        end = time.monotonic() + SECONDS
        while self.there != there and time.monotonic() < end:
            time.sleep(0.01)
        return self.there == there
