"""AdamW over named parameters, on torch's own fused step.

The update is `torch.optim.AdamW(fused=True)`'s, bit for bit. The class around it is our own because torch's imports
its compiler when an optimizer is made, which doubles the start of every learner process (4 s of CPU time).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rl_api.algorithm import OptimizerSpec
from rl_api.sizes.learner import MOVED
from rl_trainer.model.rows import Rows, fill, local

MOMENTS = ("exp_avg", "exp_avg_sq")
_ALIGNED = (
    64  # rows: torch's kernel rounds the last numbers of a tensor, which fill no vector, in another way
)


class AdamW:
    """Decoupled weight decay regularisation (Loshchilov and Hutter, arXiv 1711.05101).

    `parameters`: by name, fp32; gradients are read from `.grad`. Of divided ones each rank moves its rows. The weight decay
    is the share of a parameter taken away per step, times the learning rate. `offload`: moments are kept in main memory
    (pinned, where the parameters are on an accelerator) and moved for the step (as ZeRO-Offload keeps them, Ren et al. 2021,
    arXiv 2101.06840, but computed on the device, so that the numbers are the same).
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], options: OptimizerSpec, *, offload: bool = False
    ):
        self._parameters, self._options, self._offload = parameters, options, offload
        self._state: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update of every parameter that has a gradient."""
        names = [name for name, parameter in self._parameters.items() if parameter.grad is not None]
        if not self._offload:
            rows = [self._rows(name) for name in names]
            self._adamw(rows, [self._of(name)["step"] for name in names], learning_rate)
            return
        for name in names:
            counted = self._of(name)["step"]
            for part in _parts(self._rows(name)):
                device = part[0].device
                moved = [part[0], part[1], *(moment.to(device, non_blocking=True) for moment in part[2:])]
                self._adamw([moved], [counted.clone()], learning_rate)
                for moment, there in zip(part[2:], moved[2:], strict=True):
                    moment.copy_(there, non_blocking=True)
            counted += 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a checkpoint reads moments with the CPU

    def _rows(self, name: str) -> list[Tensor]:
        """What this process holds of a parameter, its gradient and its moments."""
        parameter, state = self._parameters[name], self._of(name)
        assert parameter.grad is not None
        return [local(one) for one in (parameter, parameter.grad, *(state[key] for key in MOMENTS))]

    def _adamw(self, rows: Sequence[Sequence[Tensor]], steps: list[Tensor], learning_rate: float) -> None:
        parameters, gradients, first, second = (list(column) for column in zip(*rows, strict=True))
        adamw(
            parameters,
            gradients,
            first,
            second,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=self._options.betas[0],
            beta2=self._options.betas[1],
            lr=learning_rate,
            weight_decay=self._options.weight_decay,
            eps=self._options.epsilon,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """`exp_avg/NAME`, `exp_avg_sq/NAME` and `step/NAME`, which change with the next step; empty before the first one."""
        return {
            f"{key}/{name}": value.detach()
            for name, state in self._state.items()
            for key, value in state.items()
        }

    def load(self, tensors: Mapping[str, Rows]) -> None:
        """The inverse of `state`. Raises KeyError when a parameter's part is missing from what is not empty."""
        self._state = {}
        for name in self._parameters if tensors else ():
            for key, value in self._of(name).items():
                fill(value, tensors[f"{key}/{name}"])

    def _of(self, name: str) -> dict[str, Tensor]:
        if name not in self._state:
            parameter = self._parameters[name]
            self._state[name] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                **{key: self._zeros(parameter) for key in MOMENTS},
            }
        return self._state[name]

    def _zeros(self, parameter: nn.Parameter) -> Tensor:
        if not self._offload:
            return torch.zeros_like(parameter)
        return torch.zeros_like(parameter, device="cpu", pin_memory=parameter.device.type == "cuda")


def _parts(rows: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The same rows of each tensor, so many that they have `MOVED` numbers at most, or the fewest that are aligned."""
    length = len(rows[0]) if rows[0].dim() else 0
    if rows[0].numel() <= MOVED or not length:
        yield list(rows)
        return
    size = max(1, MOVED // (rows[0].numel() // length) // _ALIGNED) * _ALIGNED
    for start in range(0, length, size):
        yield [one[start : start + size] for one in rows]
