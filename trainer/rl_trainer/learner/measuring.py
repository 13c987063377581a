"""What a learner measures of its own work: it goes with what it answers, as spans and as the arguments of one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rl_trainer.learner.rank import Learner
from rl_trainer.learner.share import Share
from rl_trainer.model.rows import local
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.profile.meters import BusyMeter, ProcessMeter


def device_memory() -> int:
    """Bytes of the GPU that this process computes on."""
    return int(torch.cuda.get_device_properties(0).total_memory)


class LearnerWork:
    """Hands `spans` what this process took for the batches of `learner`."""

    def __init__(
        self, learner: Learner, spans: SpanRecorder, node: str = "", gpu: BusyMeter | None = None
    ) -> None:
        """`node`: Ray's id of this process's; `gpu`: of its GPU, where it has one."""
        self._learner, self._spans, self._process = learner, spans, ProcessMeter(gpu)
        self._held: dict[str, float] = {}
        self._fetched = 0.0  # seconds of the batch under way
        self._node, self._elsewhere = node, dict[int, float]()

    @contextmanager
    def fetching(self, groups: int) -> Iterator[dict[str, Any]]:
        """The block, at the begin of work on a batch, brings its groups here; yields what is said of it."""
        began = time.perf_counter()
        with self._spans.span("fetch", groups=groups, source="buffer") as said:
            yield said
        self._fetched += time.perf_counter() - began

    def read(self, share: Share, payloads: Sequence[Any]) -> None:
        """What a share brought: which groups' bytes came from another node goes with the batch's numbers."""
        self._elsewhere |= share.elsewhere(self._node, payloads)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The block is work on a batch, `fetching` included. Passes for log-probs and for values are shown at its begin, and
        are no training."""
        start, began, self._fetched = time.time(), time.perf_counter(), 0.0
        yield
        seconds, at = self._learner.meter.drain(), start + self._fetched  # which waits for a GPU
        end = start + time.perf_counter() - began
        for name, part in (("log probs", "log_probs"), ("values", "values")):
            if took := seconds.get(part, 0.0):
                self._spans.add(name, at, at + took)
                at += took
        self._spans.add("train", at, max(at, end))
        self._held = self._held or self._holds()
        numbers = self._process.drain() | self._held | self._on_gpu()
        elsewhere, self._elsewhere = self._elsewhere, {}
        self._spans.measured(seconds=end - start, node=self._node, elsewhere=elsewhere, **seconds, **numbers)

    def _holds(self) -> dict[str, float]:
        """Bytes on the device: `weights`, and `moments` with gradients. The same from the first batch on."""
        learner = self._learner
        offloaded = learner.spec.learner.optimizer_offload and learner.device.type == "cuda"
        kept = 1 if offloaded else 3
        models: list[nn.Module] = [learner.model]
        models += [learner.reference] if learner.reference is not None else []
        models += [learner.critic.model] if learner.critic is not None else []
        sizes = [(local(one).nbytes, one.requires_grad) for model in models for one in model.parameters()]
        return {
            "weights": float(sum(size for size, _ in sizes)),
            "moments": float(kept * sum(size for size, learns in sizes if learns)),
        }

    def _on_gpu(self) -> dict[str, float]:
        """What a GPU counts: `memory`, the most bytes there were, `activations_per_token` of the largest pass, and
        `device_memory`, all that it has."""
        if self._learner.device.type != "cuda":
            return {}
        most, tokens = torch.cuda.max_memory_allocated(), max(self._learner.cuts.largest_pass, 1)
        return {
            "memory": float(most),
            "activations_per_token": (most - torch.cuda.memory_allocated()) / tokens,
            "device_memory": float(device_memory()),
        }
