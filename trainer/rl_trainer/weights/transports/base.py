"""What every way of weights has in common: a publisher in the learner, a receiver in each sampler, and what goes between.

A way keeps these promises: a version arrives whole, with every block checked, or not at all; nobody waits past a deadline;
and what was published can be received at any time later, by those who were not there as well, until the next version is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_trainer.weights.merged import Adapted
from rl_trainer.weights.source import TensorSource
from rl_trainer.weights.transports.publication import Publication

HOST: Final = torch.device("cpu")


@dataclass(frozen=True)
class AdapterOffer:
    """LoRA's part of what a learner has to give.

    Attributes:
        tensors: every A and B.
        base: all of the policy without them, in the number format that samplers compute with; weights that they change in
            fp32, where that format does not hold them exactly.
        adapted: the weights of the base that they change, and how.
        dtype: the number format that samplers compute with.
    """

    tensors: Callable[[], TensorSource]
    base: Callable[[], TensorSource]
    adapted: Mapping[str, Adapted]
    dtype: torch.dtype


@dataclass(frozen=True)
class Offer:
    """What a learner has to give, made when it is asked for; all ranks iterate the same source together.

    Attributes:
        weights: all of the policy, LoRA's merged, in the number format that samplers compute with.
        laid: as `weights`, with what our decoder has in an order of its own in that order, which saves it and samplers that
            compute with it a copy each (`Tensors` gives Hugging Face's to others); None: `weights`.
        adapter: LoRA's part; None from it: the policy has no adapter, or none yet. Raises ModelError where files hold an
            adapted weight in a form that no adapter changes.
        device: the learner's.
    """

    weights: Callable[[], TensorSource]
    adapter: Callable[[], AdapterOffer | None] = lambda: None
    laid: Callable[[], TensorSource] | None = None
    device: torch.device = HOST

    def as_laid(self) -> TensorSource:
        """The source of `laid`, or of `weights`."""
        return (self.laid or self.weights)()


class Store(Protocol):
    """Where blocks lie until a sampler takes them. Ray's object store, or a dictionary."""

    def put(self, block: Any) -> Any:
        """Keeps a copy of a block; returns its handle, and keeps it as long as somebody has that."""
        ...

    def get(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        """The blocks, read-only. Raises TimeoutError when they are not there after `timeout` seconds."""
        ...

    def watch(self, handle: Any) -> Callable[[], bool]:
        """What says whether anybody has a handle that was put here still; it does not keep it itself. From any thread."""
        ...

    def check(self, handles: Sequence[Any], blocks: Sequence[Any], check: Callable[[Any], None]) -> None:
        """Calls `check` with each of the blocks that `get` gave for the handles, but for those that others have found right
        who have the same memory."""
        ...


Lends = Callable[[Sequence[npt.NDArray[np.uint8]]], bool]
"""Lends blocks of a version to an engine that computes with them where they lie; whether the store has room for that."""


def never(arrays: Sequence[npt.NDArray[np.uint8]]) -> bool:
    """`Lends` of a store that keeps nothing for long."""
    return False


class Publisher(Protocol):
    """The learner's side; every rank has one."""

    def publish(self, offer: Offer, version: int) -> Publication | None:
        """Makes the weights that the learner has now available as `version`; None on every rank but the first.

        All ranks call it together. When it returns, the weights may be changed: what is published is a copy, in host memory
        or, with ipc, on the learner's device. At most two blocks are held beside it.
        """
        ...


class Receiver(Protocol):
    """The sampler's side; one for as long as the sampler lives."""

    def receive(self, publication: Publication, timeout: float) -> Mapping[str, Tensor]:
        """All tensors of the policy in this version, under Hugging Face names: to be read only, and not for long but for
        what is lent (`payload.lent_rows`).

        Raises:
            DeadlineExceeded: not all of it was there after `timeout` seconds.
            ModelError: not the bytes that were sent.
        """
        ...
