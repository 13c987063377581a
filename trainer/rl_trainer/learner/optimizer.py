"""AdamW over named parameters, on torch's own fused step.

The update is `torch.optim.AdamW(fused=True)`'s, bit for bit. The class around it is our own because torch's imports
its compiler when an optimizer is made, which doubles the start of every learner process (4 s of CPU time).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from rl_api.algorithm import OptimizerSpec
from rl_trainer.model.rows import Rows, fill, local

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW:
    """Decoupled weight decay regularisation (Loshchilov and Hutter, arXiv 1711.05101).

    `parameters`: by name, fp32; gradients are read from `.grad`. Of divided ones each rank moves its rows. The weight decay
    is the share of a parameter taken away per step, times the learning rate.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: OptimizerSpec):
        self._parameters, self._options = parameters, options
        self._state: dict[str, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One update of every parameter that has a gradient."""
        names = [name for name, parameter in self._parameters.items() if parameter.grad is not None]
        states = [self._of(name) for name in names]
        parameters = [self._parameters[name] for name in names]
        adamw(
            [local(parameter) for parameter in parameters],
            [local(parameter.grad) for parameter in parameters if parameter.grad is not None],
            [local(state["exp_avg"]) for state in states],
            [local(state["exp_avg_sq"]) for state in states],
            [],
            [state["step"] for state in states],
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
                **{key: torch.zeros_like(parameter) for key in MOMENTS},
            }
        return self._state[name]
