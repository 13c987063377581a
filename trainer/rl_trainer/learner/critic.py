"""The critic of one rank: a value for every sampled token, learned beside the policy with an optimizer of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_loss import clipped_value_loss
from rl_trainer.learner.batch import MicroBatch
from rl_trainer.learner.training import Training

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


class Critic:
    """Value model and its training on one data-parallel rank.

    It begins as a copy of `policy`; the run's estimator is gae. `precision`: context of the forward pass.
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
        self._clip, self._precision = options.value_clip or None, precision
        self.model = ValueModel(policy, device)
        self.training = Training(
            self.model,
            spec,
            peak=options.learning_rate,
            limit=options.gradient_clip,
            ranks=ranks,
            device=device,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """V [N], float32, of the state before each trained token of `batch`; with gradient where that is on."""
        with self._precision():
            states = self.model.states(batch)
        return states.float() @ self.model.value_head

    def update(
        self, plan: Sequence[tuple[Sequence[MicroBatch], LossDenominators]]
    ) -> tuple[dict[str, float], int]:
        """One optimizer step per mini-batch of `plan`, in order: micro-batches with returns and old values.

        Returns:
            `value_loss` (mean over optimizer steps) and `value_clip_fraction` (share of tokens), empty without a step; and
            how many steps were not taken because loss or gradient was not a number. The same on every rank.
        """
        losses: list[float] = []
        clipped = tokens = 0.0
        for batches, denominators in plan:
            metrics = self._backward(batches, denominators)
            if self.training.step(metrics["loss"], self.training.rate(len(plan))) is None:
                continue
            losses.append(metrics["loss"])
            clipped, tokens = clipped + metrics["clipped"], tokens + metrics["tokens"]
        means = {"value_loss": sum(losses) / len(losses)} if losses else {}
        if tokens:
            means["value_clip_fraction"] = clipped / tokens
        return means, len(plan) - len(losses)

    def state(self) -> dict[str, Tensor]:
        """Weights, optimizer moments and steps by name; the first two change with the next step."""
        weights = {_WEIGHT + name: value.detach() for name, value in self.model.named_parameters()}
        return weights | self.training.optimizer.state() | {_STEPS: torch.tensor(self.training.steps)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`; asks for each tensor once. Raises KeyError when a part is missing."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(tensors[_WEIGHT + name])
        self.training.steps = int(tensors[_STEPS])
        learned = any(name != _STEPS and not name.startswith(_WEIGHT) for name in tensors)
        self.training.optimizer.load(tensors if learned else {})

    def _backward(self, batches: Sequence[MicroBatch], denominators: LossDenominators) -> dict[str, float]:
        """Gradients of the global loss; its value, tokens and clipped tokens, of all ranks together."""
        self.training.zero()
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
                clip=self._clip,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            metrics["loss"] += float(loss.detach())
            metrics["clipped"] += float(clipped)
            metrics["tokens"] += len(values)
        return self.training.over_ranks(metrics)
