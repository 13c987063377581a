"""Learners and samplers really compute at once, for a moment, to know what that costs each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_api import RunSpec
from rl_api.planner.profile import RunProfile
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.model.config import UnsupportedModelError, read_config
from rl_trainer.model.excerpt import Excerpt
from rl_trainer.profile.contention import contention

# Seconds of pieces of work by one process, and by all: of shorter ones the share is off by more. By all again, for longer,
# where a busy machine has let one of them begin when the others were done.
_ALONE, _TOGETHER = 0.5, (0.8, 1.6, 3.2)
# For answers of processes that have nothing else to do.
_PATIENCE = 60.0


def excerpts(spec: RunSpec, profile: RunProfile, model: Path) -> dict[str, Excerpt]:
    """By role a piece of its work as the run has it; none for a model that is too large, or not our decoder's."""
    try:
        config = read_config(model)
    except UnsupportedModelError:
        return {}
    length = max(1, round(profile.prompt_tokens + profile.mean_length))
    rows = min(profile.answers // spec.learner.ranks, spec.learner.tokens_per_micro_batch // length)
    active = min(profile.decode.slots, profile.answers // spec.sampler.replicas)
    found = {
        "learner": Excerpt(config, max(1, rows), length, True, spec.learner.threads).short(),
        "sampler": Excerpt(config, max(1, active), 1, False, spec.sampler.threads).short(),
    }
    return {role: piece for role, piece in found.items() if piece is not None}


def contend(groups: Mapping[str, WorkerGroup], work: Mapping[str, Excerpt]) -> dict[str, float]:
    """By role its `contention`: one of its processes does the work alone, then all of both roles do. Without roles of which
    that says nothing.

    `groups` by role; none of them does anything else. Raises as `Handle.wait`.
    """
    found = {}
    for role, piece in work.items():
        rank = min(groups[role].actors)
        (alone,) = groups[role].one(rank, "repeat", piece, _ALONE).wait("computing alone", _PATIENCE)
        for seconds in _TOGETHER:
            handles = [group.all("repeat", piece, seconds) for group in groups.values()]
            together = [times for handle in handles for times in handle.wait("computing at once", _PATIENCE)]
            if (share := contention(alone, together)) is not None:
                found[role] = share
                break
    return found
