"""The learner of one rank: forward, backward, all-reduce, AdamW. No Ray here: `learner.actor` carries it.

Losses are in sum form with global denominators (`losses`): ranks add, whatever the split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_api import LoraSpec, RunSpec
from rl_trainer.algorithms.batch_advantages import kl_in_reward
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.loss_metrics import (
    DIVIDED_METRICS,
    MAX_METRICS,
    empty_metrics,
    merge_metrics,
)
from rl_trainer.algorithms.losses import LossOutput, policy_loss, supervised_loss
from rl_trainer.algorithms.policy_losses import UserObjective
from rl_trainer.algorithms.reward_shaping import kl_estimates
from rl_trainer.learner.batch import MicroBatch, collate, idle_batch
from rl_trainer.learner.critic import Critic
from rl_trainer.learner.cuda_clock import CudaClock
from rl_trainer.learner.cuts import Cuts
from rl_trainer.learner.head_choice import HeadChooser
from rl_trainer.learner.layout import DividedLayout, layout_of
from rl_trainer.learner.objective import policy_loss_config
from rl_trainer.learner.policy import Policy
from rl_trainer.learner.results import TokenEstimates, UpdateResult
from rl_trainer.learner.training import Training, memory_of
from rl_trainer.model.offload import Offloader, held_bytes
from rl_trainer.model.rows import Rows
from rl_trainer.profile.meters import LearnerMeter
from rl_trainer.trajectory import Trajectory
from rl_trainer.weights.merged import Adapted


@dataclass(frozen=True)
class MiniBatch:
    """This rank's share of one optimizer step, or of a part of one; `denominators` are those of all ranks' shares."""

    samples: Sequence[Trajectory]
    denominators: LossDenominators


_NO_UPDATE = UpdateResult({}, math.nan, 0.0, 0, 0, 0)


class Learner:
    """One rank; with more, `torch.distributed` is initialised. Ranks that share sequences get the same samples."""

    training: Training

    def __init__(
        self,
        folder: Path,
        spec: RunSpec,
        *,
        rank: int = 0,
        ranks: int = 1,
        device: str = "cpu",
        objective: UserObjective | None = None,
    ):
        self.spec = spec
        self.rank = rank
        self.ranks = ranks
        self.device = torch.device(device)
        # Weights, gradients and moments stay in fp32; bfloat16 is the type of the forward pass and of what is published.
        self._layout = layout_of(
            spec.learner,
            ranks=ranks,
            device=self.device,
            dtype=getattr(torch, spec.model.dtype),
            precision=self._precision,
        )
        self.meter = LearnerMeter(CudaClock() if self.device.type == "cuda" else None)
        self.policy = self._layout.open(folder)
        self.reference: Policy | None = None
        self.critic: Critic | None = None
        self.cuts = Cuts(spec.learner.tokens_per_micro_batch, spec.learner.context_size)
        self._adapted: dict[str, Adapted] | None = None
        self._offloader = Offloader(f"learner {rank}")
        # Of a step that is learned in parts: this rank's metrics of each part so far, and its denominators.
        self._parts: list[tuple[dict[str, float], LossDenominators]] = []
        self._loss = policy_loss_config(spec, objective)
        self.head = HeadChooser(spec, self.device, ranks, self._loss.entropy_learns)
        # A warm start makes the base: all of it learns.
        if spec.learner.lora is None or spec.warm_start is not None:
            self._learn()

    @property
    def model(self) -> nn.Module:
        """The policy's `Decoder` or `LibraryModel`."""
        return self.policy.model

    @property
    def divided(self) -> bool:
        """Whether this rank holds some rows of every parameter only."""
        return isinstance(self._layout, DividedLayout)

    def offload(self) -> int:
        """Gives the memory of everything it keeps on its device back, between two calls, until `onload`; how many bytes.

        Each rank does it for itself. Whatever else is asked of it then is refused with a sentence. Raises as
        `Offloader.offload`.
        """
        return self._offloader.offload(*self._memory())

    def onload(self) -> int:
        """Takes it all up again, in place and with the same bits; how many bytes."""
        return self._offloader.onload()

    def require(self, doing: str) -> None:
        """Raises RLTrainError while it is offloaded: `doing` needs what it keeps."""
        self._offloader.require(doing)

    @property
    def device_bytes(self) -> int:
        """Bytes that it keeps on its device between two steps, gradients included."""
        return held_bytes([tensor for part in self._memory() for tensor in part])

    def _memory(self) -> tuple[list[Tensor], list[Tensor]]:
        models: list[nn.Module] = [self.policy]
        trainings = [self.training] if hasattr(self, "training") else []  # not yet where LoRA comes later
        if self.reference is not None:
            models.append(self.reference)
        if self.critic is not None:
            models.append(self.critic.model)
            trainings.append(self.critic.training)
        return memory_of(models, trainings)

    def start_reinforcement(self) -> None:
        """Forgets the warm start's optimizer; the policy becomes KL reference and critic, where the run has them."""
        self.require("starting reinforcement learning")
        if self.spec.learner.lora is not None:
            self._add_lora(self.spec.learner.lora)
        elif self.spec.algorithm.kl.coefficient:
            self.reference = self._layout.copy(self.policy).requires_grad_(False)
        self._learn()
        self._new_critic()
        self.meter.drain()  # of the warm start

    def resume(self, initial: Path | None, adapter: Mapping[str, Rows] | None) -> None:
        """Takes up a run whose weights it was opened with, instead of `start_reinforcement`.

        `initial`: folder of the policy that reinforcement learning began with, for LoRA and for a KL penalty. `adapter`:
        LoRA's state.
        """
        if self.spec.learner.lora is not None:
            assert initial is not None
            assert adapter is not None
            # The weights of the checkpoint are merged ones.
            self._layout.load(self.policy, initial)
            self._add_lora(self.spec.learner.lora)
            self.model.load_adapter_state(adapter)  # type: ignore[operator]
        elif self.spec.algorithm.kl.coefficient:
            assert initial is not None
            self.reference = self._layout.open(initial).requires_grad_(False)
        self._learn()

    def load_critic(self, tensors: Mapping[str, Rows] | None) -> None:
        """The critic of a resumed run, if it has one. None: the run began without one, and the policy becomes it now."""
        self._new_critic()
        if self.critic is not None and tensors is not None:
            self.critic.load(tensors)

    def adapted(self) -> dict[str, Adapted]:
        """See `Decoder.adapted`; worked out once, as the adapters stay the same ones. Empty before there are any."""
        if self._adapted is None:
            self._adapted = self.model.adapted()  # type: ignore[operator]
        return self._adapted

    def supervise(self, samples: Sequence[Trajectory], denominators: LossDenominators, rate: float) -> float:
        """One optimizer step of supervised learning on this rank's samples; returns the global mean loss."""
        self.require("a supervised step")

        def loss(batch: MicroBatch) -> LossOutput:
            log_probs, _ = self.policy(batch, 1.0, entropy=False)
            if batch.idle:
                return _idle_loss(log_probs)
            return supervised_loss(log_probs, torch.ones_like(log_probs), denominators)

        metrics = self._backward(self._cut(samples), loss)
        self.training.step(metrics["loss"], rate)
        return metrics["loss"]

    def update(
        self, plan: Sequence[MiniBatch], *, version: int = 0, train_policy: bool = True
    ) -> UpdateResult:
        """One training step: one optimizer step per mini-batch of `plan`, in order; of the critic too, where there is one.

        `version`: of the weights that are trained. `train_policy` False: only the critic learns.
        """
        self.require("a step")
        aged = version if self._loss.proximal == "interpolated" else None
        prepared = [self._cut(part.samples, aged) for part in plan]
        result = self._update_policy(plan, prepared) if train_policy else _NO_UPDATE
        if self.critic is None:
            return result
        denominators = [part.denominators for part in plan]
        with self.meter.during("passes"):
            metrics, skipped = self.critic.update(list(zip(prepared, denominators, strict=True)))
        return replace(result, metrics=result.metrics | metrics, skipped=result.skipped + skipped)

    def _update_policy(
        self, plan: Sequence[MiniBatch], prepared: Sequence[Sequence[MicroBatch]]
    ) -> UpdateResult:
        if len(plan) > 1 and self._loss.proximal == "recomputed":
            prepared = [[self._with_old_log_probs(batch) for batch in batches] for batches in prepared]
        backward = (
            self._backward(batches, self._policy_loss(part.denominators))
            for part, batches in zip(plan, prepared, strict=True)
        )
        with self.meter.during("reduce"):  # but for the passes
            return self.training.take_steps(backward, len(plan))

    def accumulate(self, part: MiniBatch, *, version: int = 0) -> None:
        """Gradients of a part of one optimizer step, while the rest of its batch is not known: sums, which `apply` divides.

        All ranks call it, with or without samples. `version`: as in `update`. No critic: its targets need the batch.
        """
        self.require("a part of a step")
        if not self._parts:
            self.training.zero()
        aged = version if self._loss.proximal == "interpolated" else None
        loss = self._policy_loss(part.denominators.undivided())
        self._parts.append((self._passes(self._cut(part.samples, aged), loss), part.denominators))

    def apply(self) -> UpdateResult:
        """The optimizer step of what was accumulated: that of `update` with all of it at once, up to rounding."""
        self.require("a step")
        whole = reduce(add, (denominators for _, denominators in self._parts))
        factor = whole.factor(self._loss.aggregation)
        sums = merge_metrics([metrics for metrics, _ in self._parts])
        self._parts = []
        with self.meter.during("reduce"):
            metrics = self.training.over_ranks(
                sums | {name: sums[name] * factor for name in DIVIDED_METRICS}, MAX_METRICS
            )
            self.training.scale(factor)
            return self.training.take_steps([metrics], 1)

    def _add_lora(self, options: LoraSpec) -> None:
        self.policy = self._layout.with_lora(self.policy, options, self.spec.seed)
        self._adapted = None
        if self.spec.weight_sync.transport == "adapter":
            self.adapted()  # now rather than at the first publication, as a family may refuse it

    def _learn(self) -> None:
        """What the model lets learn gets gradients and a new optimizer."""
        algorithm = self.spec.algorithm
        if hasattr(self, "training"):
            # The warm start's: its gradients and moments would lie beside what comes now.
            del self.training
            self.model.zero_grad(set_to_none=True)
        self.head.choose(self.policy, self.reference)
        self.training = Training(
            self.model,
            self.spec,
            peak=algorithm.learning_rate,
            limit=algorithm.gradient_clip,
            gradients=self._layout.gradients,
            ranks=self.ranks,
            device=self.device,
            counts=self._layout.counts,
            stepping=lambda: self.meter.during("optimizer"),
        )

    def _new_critic(self) -> None:
        if self.spec.algorithm.value_model is not None:
            self.critic = Critic(
                self._layout.value_model(self.policy),
                self.spec,
                gradients=self._layout.gradients,
                ranks=self.ranks,
                device=self.device,
                counts=self._layout.counts,
            )

    def _policy_loss(self, denominators: LossDenominators) -> Callable[[MicroBatch], LossOutput]:
        def loss(batch: MicroBatch) -> LossOutput:
            reference = None
            if self._loss.kl_coefficient:
                # Before the pass that the backward pass follows: with LoRA both are passes of the same divided model.
                with torch.no_grad():
                    reference = self._reference_log_probs(batch)
            log_probs, entropy = self.policy(batch, self.spec.sampler.temperature)
            if batch.idle:
                return _idle_loss(log_probs)
            return policy_loss(
                log_probs,
                batch.advantages,
                torch.ones_like(log_probs),
                denominators,
                self._loss,
                old_log_probs=batch.old_log_probs,
                sampler_log_probs=batch.sampler_log_probs,
                reference_log_probs=reference,
                entropy=entropy,
                sequence_ids=batch.sequence_ids,
                staleness=batch.staleness,
            )

        return loss

    @torch.no_grad()
    def token_estimates(self, samples: Sequence[Trajectory]) -> TokenEstimates:
        """What the advantages of `samples` need of every sampled token, with the weights as they are.

        A sampled first token, which nothing predicts, has 0.
        """
        self.require("computing KL and values")
        kl = [np.zeros(int(sample.mask.sum())) for sample in samples]
        values = [np.zeros_like(part) for part in kl]
        cuts = self.cuts.of(samples, self.model)
        for position, batch in enumerate(self._cut(samples)):
            cut = [] if batch.idle else cuts[position]
            counts = np.bincount(batch.sequence_ids.cpu().numpy(), minlength=len(cut))
            ends = np.cumsum(counts)[:-1]
            if kl_in_reward(self.spec):
                reference, estimator = self._reference_log_probs(batch), self.spec.algorithm.kl.estimator
                log_probs = self._found(self.policy, batch)
                found = kl_estimates(log_probs.cpu().numpy(), reference.cpu().numpy(), estimator)
                _fill_last([kl[index] for index in cut], np.split(found, ends) if cut else [])
            if self.critic is not None:
                with self.meter.during("values"):
                    found = self.critic.values(batch).cpu().numpy().astype(np.float64)
                _fill_last([values[index] for index in cut], np.split(found, ends) if cut else [])
        return TokenEstimates(
            kl if kl_in_reward(self.spec) else None, values if self.critic is not None else None
        )

    @torch.no_grad()
    def _with_old_log_probs(self, batch: MicroBatch) -> MicroBatch:
        return replace(batch, old_log_probs=self._found(self.policy, batch))

    def _cut(self, samples: Sequence[Trajectory], version: int | None = None) -> list[MicroBatch]:
        """The micro-batches of this rank, and idle ones where others have more."""
        found = [
            collate([samples[index] for index in cut], self.device, version)
            for cut in self.cuts.of(samples, self.model)
        ]
        return found + [idle_batch(self.device)] * self._layout.idle_passes(len(found))

    def _backward(
        self, batches: Sequence[MicroBatch], loss: Callable[[MicroBatch], LossOutput]
    ) -> dict[str, float]:
        """Gradients of the global loss; returns the metrics of all ranks together."""
        self.training.zero()
        return self.training.over_ranks(self._passes(batches, loss), MAX_METRICS)

    def _passes(
        self, batches: Sequence[MicroBatch], loss: Callable[[MicroBatch], LossOutput]
    ) -> dict[str, float]:
        """Adds this rank's gradients to those that there are; returns its metrics."""
        parts: list[dict[str, float]] = []
        with self.meter.during("passes"):
            for batch in batches:
                output = loss(batch)
                output.loss.backward()  # type: ignore[no-untyped-call]
                metrics = empty_metrics() | output.metrics
                parts.append({name: float(value) for name, value in metrics.items()})
        return merge_metrics(parts)

    def _reference_log_probs(self, batch: MicroBatch) -> Tensor:
        """Of the policy that reinforcement learning began with: with LoRA the base, else a copy that was kept."""
        if self.spec.learner.lora is not None:
            with self.model.without_lora():  # type: ignore[operator]
                return self._found(self.policy, batch)
        assert self.reference is not None, "there is a KL penalty, so a reference was kept"
        return self._found(self.reference, batch)

    def _found(self, policy: Policy, batch: MicroBatch) -> Tensor:
        with self.meter.during("log_probs"):
            log_probs: Tensor = policy(batch, self.spec.sampler.temperature, entropy=False)[0]
        return log_probs

    def _precision(self) -> AbstractContextManager[object]:
        if self.spec.model.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()


def _idle_loss(log_probs: Tensor) -> LossOutput:
    """Of a batch from which nothing is learned: zeros for every gradient."""
    return LossOutput((log_probs * 0).sum(), {})


def _fill_last(arrays: Sequence[npt.NDArray[np.float64]], parts: Sequence[npt.NDArray[np.float64]]) -> None:
    """Writes each part to the end of its array."""
    for array, part in zip(arrays, parts, strict=True):
        array[len(array) - len(part) :] = part
