"""The critic of one rank: a value for every sampled token, learned beside the policy with an optimizer of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.schedule import learning_rate
from rl_trainer.algorithms.value_loss import clipped_value_loss
from rl_trainer.learner.batch import MicroBatch
from rl_trainer.learner.collectives import FlatGradients, metrics_over_ranks
from rl_trainer.learner.optimizer import AdamW

_WEIGHT, _STEPS = "weight/", "steps"


class ValueModel(nn.Module):
    """A copy of the policy whose last hidden states [M, H] become values [M] by a head [H] that begins as zeros.

    So all values begin as 0, and the first step moves the head alone.
    """

    def __init__(self, policy: nn.Module, device: torch.device):
        super().__init__()
        self.body = copy.deepcopy(policy)
        if getattr(self.body, "head", None) is not None:
            # Logits are of no use here, and an untied head is large.
            self.body.register_parameter("head", None)
        width: int = policy.hidden_size  # type: ignore[assignment]
        self.value_head = nn.Parameter(torch.zeros(width, device=device))

    def states(self, batch: MicroBatch) -> Tensor:
        """Hidden states [N, H] of the positions that predict the batch's trained tokens."""
        states: Tensor = self.body.states_at(  # type: ignore[operator]
            batch.input_ids, batch.attention_mask, batch.positions, batch.shared
        )
        return states


@dataclass(frozen=True)
class CriticUpdate:
    """What one training step did to the critic; the same on every rank.

    Attributes:
        metrics: `value_loss` (mean over optimizer steps) and `value_clip_fraction` (share of tokens); empty without a step.
        skipped: steps not taken because loss or gradient was not a number.
    """

    metrics: dict[str, float]
    skipped: int


class Critic:
    """Value model, gradients and optimizer of one data-parallel rank.

    Args:
        policy: the model that the critic begins as a copy of.
        spec: the run; its estimator is gae.
        device: of the policy.
        ranks: data-parallel ranks; with more than one, `torch.distributed` must be initialised.
        precision: context of the forward pass.
    """

    def __init__(
        self,
        policy: nn.Module,
        spec: RunSpec,
        *,
        device: torch.device,
        ranks: int,
        precision: Callable[[], AbstractContextManager[object]],
    ):
        options = spec.algorithm.value_model
        assert options is not None, "only the estimator gae has a critic"
        self.spec, self.options = spec, options
        self._device, self._ranks, self._precision = device, ranks, precision
        self.model = ValueModel(policy, device)
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self._gradients = FlatGradients([parameter for _, parameter in named], device)
        self.optimizer_steps = 0
        optimizer = spec.algorithm.optimizer
        self._optimizer = AdamW(
            named,
            betas=optimizer.betas,
            epsilon=optimizer.epsilon,
            weight_decay=optimizer.weight_decay,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """V [N], float32, of the state before each trained token of `batch`; with gradient where that is on."""
        with self._precision():
            states = self.model.states(batch)
        return states.float() @ self.model.value_head

    def update(self, plan: Sequence[tuple[Sequence[MicroBatch], LossDenominators]]) -> CriticUpdate:
        """One optimizer step per mini-batch of `plan`, in order: micro-batches with returns and old values."""
        losses: list[float] = []
        clipped = tokens = 0.0
        for batches, denominators in plan:
            metrics = self._backward(batches, denominators)
            if not self._step(metrics["loss"], len(plan)):
                continue
            losses.append(metrics["loss"])
            clipped, tokens = clipped + metrics["clipped"], tokens + metrics["tokens"]
        means = {"value_loss": sum(losses) / len(losses)} if losses else {}
        if tokens:
            means["value_clip_fraction"] = clipped / tokens
        return CriticUpdate(means, skipped=len(plan) - len(losses))

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer moments and steps by name, on the CPU; weights share memory with the model there."""
        weights = {_WEIGHT + name: value.detach().cpu() for name, value in self.model.named_parameters()}
        return weights | self._optimizer.state() | {_STEPS: torch.tensor(self.optimizer_steps)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`. Raises KeyError when a part is missing."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[_WEIGHT + name])
        self.optimizer_steps = int(tensors[_STEPS])
        moments = {
            name: value for name, value in tensors.items() if name != _STEPS and not name.startswith(_WEIGHT)
        }
        self._optimizer.load(moments)

    def _backward(self, batches: Sequence[MicroBatch], denominators: LossDenominators) -> dict[str, float]:
        """Gradients of the global loss; its value, tokens and clipped tokens, of all ranks together."""
        self._gradients.zero()
        metrics = {"loss": 0.0, "clipped": 0.0, "tokens": 0.0}
        for batch in batches:
            assert batch.returns is not None
            assert batch.old_values is not None
            values = self.values(batch)
            loss, clipped = clipped_value_loss(
                values,
                batch.old_values,
                batch.returns,
                torch.ones_like(values),
                denominators,
                clip=self.options.value_clip or None,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            metrics["loss"] += float(loss.detach())
            metrics["clipped"] += float(clipped)
            metrics["tokens"] += len(values)
        if self._ranks == 1:
            return metrics
        self._gradients.sum_over_ranks()
        return metrics_over_ranks(metrics, (), self._device)

    def _step(self, loss: float, steps_per_batch: int) -> bool:
        """Clips and applies the gradient; False, and nothing changed, when it is not a number."""
        norm = self._gradients.clip(self.options.gradient_clip)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return False
        schedule = self.spec.algorithm.optimizer
        self._optimizer.step(
            learning_rate(
                self.optimizer_steps,
                base=self.options.learning_rate,
                total_steps=self.spec.stop.max_steps * steps_per_batch,
                warmup_steps=schedule.warmup_steps,
                decay=schedule.decay,
                min_ratio=schedule.min_ratio,
            )
        )
        self.optimizer_steps += 1
        return True
