"""What a model learns with on one data-parallel rank: gradients, what ranks exchange of a step, and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rl_api import RunSpec
from rl_trainer.algorithms.loss_metrics import merge_metrics, metric_means, passes_ratio_bound
from rl_trainer.algorithms.schedule import learning_rate
from rl_trainer.learner.gradients import Gradients
from rl_trainer.learner.optimizer import AdamW
from rl_trainer.learner.results import UpdateResult

MakeGradients = Callable[[Sequence[nn.Parameter]], Gradients]


class Training:
    """Gradients and optimizer of what `model` lets learn.

    Args:
        model: fp32, on `device`.
        spec: the run.
        peak: the learning rate that the schedule begins from.
        limit: norm to which gradients are clipped.
        gradients: makes the gradients of its parameters.
        ranks: with more than one, `torch.distributed` must be initialised.
        device: of what ranks exchange.
        counts: whether this rank's metrics do; another one has the same samples, and the same metrics, where they do not.
        stepping: what the optimizer's own part of a step is done in, such as a meter.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: RunSpec,
        *,
        peak: float,
        limit: float,
        gradients: MakeGradients,
        ranks: int,
        device: torch.device,
        counts: bool = True,
        stepping: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        # What learned before and is frozen now would keep all of its buffer alive by a view.
        model.zero_grad(set_to_none=True)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(named.values())
        self.optimizer = AdamW(named, spec.algorithm.optimizer, offload=spec.learner.optimizer_offload)
        self.steps = 0
        self._spec, self._peak, self._limit, self._ranks = spec, peak, limit, ranks
        self._device, self._counts, self._stepping = device, counts, stepping
        self._gradients = gradients(self.parameters)
        self._spent = True  # the gradients are zeros, or of a step that was taken

    def zero(self) -> None:
        """Forgets the gradients."""
        self._gradients.zero()
        self._spent = False

    def memory(self) -> tuple[list[Tensor], list[Tensor]]:
        """Moments, and gradients that wait for their step; and what is void till the next `zero`: gradients of one taken."""
        moments = list(self.optimizer.state().values())
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return (moments, gradients) if self._spent else (moments + gradients, [])

    def over_ranks(self, metrics: Mapping[str, float], maxima: Collection[str] = ()) -> dict[str, float]:
        """Gradients and metrics summed over all ranks; of those in `maxima` the largest. All call it, with equal names."""
        self._gradients.add_up()
        if self._ranks == 1:
            return dict(metrics)
        names = sorted(metrics)
        sums = torch.tensor([metrics[name] for name in names], dtype=torch.float64).to(self._device)
        largest = sums.clone()
        if not self._counts:
            sums.zero_()
        dist.all_reduce(sums)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return {name: float(largest[i] if name in maxima else sums[i]) for i, name in enumerate(names)}

    def scale(self, factor: float) -> None:
        """Multiplies the gradients."""
        self._gradients.scale(factor)

    def rate(self, steps_per_batch: int) -> float:
        """Learning rate of the next step, where a training step of the run has so many."""
        total = self._spec.stop.max_steps * steps_per_batch
        return learning_rate(self.steps, self._peak, total, self._spec.algorithm.optimizer)

    def step(self, loss: float, rate: float) -> float | None:
        """Clips and applies the gradient; its norm before. None, and nothing changed, when that or the loss is no number."""
        norm = self._gradients.norm()
        self._spent = True
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return None
        if norm > self._limit:
            self._gradients.scale(self._limit / norm)
        with self._stepping():
            self.optimizer.step(rate)
        self.steps += 1
        return norm

    def take_steps(self, backward: Iterable[dict[str, float]], count: int) -> UpdateResult:
        """`count` optimizer steps, each after the next of `backward`, which makes its gradients and gives its metrics."""
        merged: list[dict[str, float]] = []
        norms: list[float] = []
        skipped = stopped = 0
        rate = 0.0
        for index, metrics in enumerate(backward):
            if passes_ratio_bound(metrics, self._spec.algorithm.ratio_bound):
                stopped = count - index
                break
            rate = self.rate(count)
            norm = self.step(metrics["loss"], rate)
            if norm is None:
                skipped += 1
                continue
            merged.append(metrics)
            norms.append(norm)
        return UpdateResult(
            metrics=metric_means(merge_metrics(merged)) if merged else {},
            grad_norm=sum(norms) / len(norms) if norms else math.nan,
            learning_rate=rate,
            optimizer_steps=len(norms),
            skipped=skipped,
            stopped_early=stopped,
        )


def memory_of(
    models: Sequence[nn.Module], trainings: Sequence[Training]
) -> tuple[list[Tensor], list[Tensor]]:
    """What a rank keeps of them between two steps, and what of it is void: see `Training.memory`."""
    kept: list[Tensor] = [one for model in models for one in (*model.parameters(), *model.buffers())]
    void: list[Tensor] = []
    for training in trainings:
        more, spent = training.memory()
        kept, void = kept + more, void + spent
    return kept, void
