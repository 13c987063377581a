"""Who trains: rltrain's own loop, any program of the user's, or verl. `spec.trainer` of a run."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rl_api.base import MOST_ITEMS, NO_NUL, Allowed, Model, ObjectName, Text
from rl_api.roles import ResourcesSpec

OWN_VARIABLES: Final = ("RLTRAIN_", "RAY_ADDRESS", "RAY_AUTH_")
"""What variables begin with that a program is given by rltrain, and that `trainer.env` cannot set."""


class EnvSpec(Model):
    """One environment variable of the program."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253),
        Allowed("letters, digits and '_', the first no digit"),
    ]
    """Name; RAY_ADDRESS and names that begin with RLTRAIN_ or RAY_AUTH_ are rltrain's own."""
    value: Annotated[
        str, Field(max_length=16384, pattern=NO_NUL), Allowed("text of at most 16384 characters without NUL")
    ]
    """Value."""


class TrainerSpec(Model):
    """Who trains."""

    kind: Literal["rltrain", "command", "verl"] = "rltrain"
    """rltrain: its own loop; command: your program, which is given the run and reports its progress
    (docs/backends.md); verl: verl's RayPPOTrainer, configured from the run, on GPUs only."""
    command: tuple[Text, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Program and arguments, without a shell; required for kind command. It runs beside the run's file (on a cluster:
    in the image's working directory) and finds the run at RLTRAIN_CONFIG."""
    env: tuple[EnvSpec, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """Environment variables of the program, for kind command or verl."""
    config: Annotated[dict[str, Any], Field(max_length=MOST_ITEMS)] | None = None
    """Settings of your own, for kind command: the program reads them in the run at RLTRAIN_CONFIG; null: none."""
    workers: tuple[Literal["learner", "sampler"], ...] = Field(
        default=(), max_length=MOST_ITEMS, strict=False
    )
    """For kind command on a cluster: roles whose pods join the program's Ray cluster, as many and as large as learner
    and sampler say; empty: the program's pod is alone."""
    pools: tuple[ObjectName, ...] = Field(default=(), max_length=MOST_ITEMS, strict=False)
    """For kind command on a cluster: pools of the profile for the program's pod, the most wanted first; empty: the
    pool of heads, without accelerators."""
    resources: ResourcesSpec | None = None
    """For kind command on a cluster: resources of the program's pod; null: those of a head."""
