"""verl as the program of a run: its command line, and its metrics as ours. The configuration is `rl_api.verl`'s."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from rl_api import RunSpec
from rl_api.errors import InvalidConfig
from rl_api.verl import hydra_overrides, verl_config

LOG_VARIABLE: Final = "VERL_FILE_LOGGER_PATH"
"""Where verl's logger `file` writes a line per step: {"step": 1, "data": {"actor/entropy": 0.5, ...}}."""

_NAMES: Final = {
    "reward_mean": "critic/score/mean",
    "response_length_mean": "response_length/mean",
    "response_length_max": "response_length/max",
    "truncated_fraction": "response_length/clip_ratio",
    "kl": "actor/kl_loss",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "learning_rate": "actor/lr",
    "wall_seconds": "perf/time_per_step",
    "time_generate": "timing_s/gen",
    "time_score": "timing_s/reward",
    "time_train": "timing_s/update_actor",
}
"""verl's names by ours."""


def verl_command(spec: RunSpec, *, name: str, checkpoints: str, gpus_per_node: int) -> tuple[str, ...]:
    """The command that trains the run with verl.

    Raises:
        InvalidConfig: there are no GPUs.
    """
    if gpus_per_node < 1:
        raise InvalidConfig(
            "spec.trainer.kind: found 'verl', allowed where there are GPUs, and this machine has none: rltrain or command"
        )
    config = verl_config(spec, name=name, checkpoints=checkpoints, gpus_per_node=gpus_per_node)
    return (sys.executable, "-m", "verl.trainer.main_ppo", *hydra_overrides(config))


def from_verl(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of verl's log as one of ours."""
    data = line["data"]
    return {"step": line.get("step")} | {
        ours: data[theirs] for ours, theirs in _NAMES.items() if theirs in data
    }
