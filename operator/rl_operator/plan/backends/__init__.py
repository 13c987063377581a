"""What differs by `trainer.kind`: the one place of the operator that asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rl_api.run import RunSpec
from rl_operator.plan.backends.base import Backend
from rl_operator.plan.backends.command import Command
from rl_operator.plan.backends.rltrain import RLTrain
from rl_operator.plan.backends.verl import Verl

BACKENDS: Final[Mapping[str, Backend]] = {"rltrain": RLTrain(), "command": Command(), "verl": Verl()}


def backend_of(spec: RunSpec) -> Backend:
    """What follows from the trainer of a run."""
    return BACKENDS[spec.trainer.kind]


__all__ = ["BACKENDS", "Backend", "backend_of"]
