"""The critic of one rank: a value for every sampled token, learned beside the policy with an optimizer of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_loss import clipped_value_loss
from rl_trainer.learner.batch import MicroBatch
from rl_trainer.learner.policy import Precision
from rl_trainer.learner.training import MakeGradients, Training
from rl_trainer.model.rows import Rows, fill

_WEIGHT, _STEPS = "weight/", "steps"


class ValueModel(nn.Module):
    """A model whose last hidden states become values by a head [H] that begins as zeros.

    So all values begin as 0, and the first step moves the head alone.

    Args:
        body: a `Decoder` or `LibraryModel` of its own, such as a copy of the policy's.
        precision: of the body's forward pass.
        device: of the head.
    """

    def __init__(self, body: nn.Module, precision: Precision, device: torch.device):
        super().__init__()
        self.body, self.precision = body, precision
        if getattr(self.body, "head", None) is not None:
            # Logits are of no use here, and an untied head is large.
            self.body.register_parameter("head", None)
        width: int = body.hidden_size  # type: ignore[assignment]
        self.value_head = nn.Parameter(torch.zeros(width, device=device))

    def forward(self, batch: MicroBatch) -> Tensor:
        """V [N], float32, of the state before each trained token of `batch`."""
        with self.precision():
            states, own = self.body.own_states_at(  # type: ignore[operator]
                batch.input_ids, batch.attention_mask, batch.positions, batch.shared
            )
        values: Tensor = states.float() @ self.value_head
        return values if own is None else self.body.context.joined(values, own)  # type: ignore[union-attr, operator]


class Critic:
    """Value model and its training on one rank; the run's estimator is gae. `gradients`: makes those of its parameters."""

    def __init__(
        self,
        model: ValueModel,
        spec: RunSpec,
        *,
        gradients: MakeGradients,
        ranks: int,
        device: torch.device,
        counts: bool = True,
    ):
        options = spec.algorithm.value_model
        assert options is not None, "only the estimator gae has a critic"
        self._clip = options.value_clip or None
        self.model = model
        self.training = Training(
            model,
            spec,
            peak=options.learning_rate,
            limit=options.gradient_clip,
            gradients=gradients,
            ranks=ranks,
            device=device,
            counts=counts,
        )

    def values(self, batch: MicroBatch) -> Tensor:
        """V [N], float32, of the state before each trained token of `batch`; with gradient where that is on."""
        values: Tensor = self.model(batch)
        return values

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

    def load(self, tensors: Mapping[str, Rows]) -> None:
        """The inverse of `state`; asks for each tensor once. Raises KeyError when a part is missing."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                fill(parameter, tensors[_WEIGHT + name])
        self.training.steps = int(tensors[_STEPS])  # type: ignore[call-overload]
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
            if batch.idle:
                (values * 0).sum().backward()  # type: ignore[no-untyped-call]
                continue
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
