"""Learners and samplers really compute for a moment, at once and with less to do, to know what a plan for others needs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from rl_api import RunSpec
from rl_api.planner.profile import RunProfile
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.model.config import UnsupportedModelError, read_config
from rl_trainer.model.excerpt import Excerpt
from rl_trainer.profile.contention import contention

# Seconds of pieces of work by one process, and by all: in turn, as the speed of a machine changes from second to second. By
# all again, for longer, where a busy machine has let one of them begin when the others were done.
_ROUNDS, _ALONE, _TOGETHER = 3, 0.3, (0.5, 1.0, 2.0)
# Seconds of passes of two sizes in turn.
_IN_TURN = 1.5
# For answers of processes that have nothing else to do.
_PATIENCE = 60.0


@dataclass(frozen=True)
class Tried:
    """What was found.

    Attributes:
        contention: by role `contention`; without roles of which nothing can be said.
        per_pass: seconds of a learner's pass that do not grow with its tokens; None: not known.
    """

    contention: dict[str, float] = field(default_factory=dict)
    per_pass: float | None = None


def excerpts(spec: RunSpec, profile: RunProfile, model: Path) -> dict[str, Excerpt]:
    """By role a piece of its work as the run has it; none for a model that is too large, or not our decoder's."""
    try:
        config = read_config(model)
    except UnsupportedModelError:
        return {}
    length = _length(profile)
    active = min(profile.decode.slots, profile.answers // spec.sampler.replicas)
    found = {
        "learner": Excerpt(config, _rows(spec, profile), length, True, spec.learner.threads).short(),
        "sampler": Excerpt(config, max(1, active), 1, False, spec.sampler.threads).short(),
    }
    return {role: piece for role, piece in found.items() if piece is not None}


def _length(profile: RunProfile) -> int:
    return max(1, round(profile.prompt_tokens + profile.mean_length))


def _rows(spec: RunSpec, profile: RunProfile) -> int:
    """Sequences of a learner's pass."""
    most = spec.learner.tokens_per_micro_batch // _length(profile)
    return max(1, min(profile.answers // spec.learner.ranks, most))


@dataclass(frozen=True)
class InTurn:
    """Work of two sizes, one after the other."""

    first: Excerpt
    second: Excerpt

    def __call__(self) -> Callable[[], None]:
        """See `Excerpt`; the first call is of the second one."""
        turns = cycle([self.second(), self.first()])
        return lambda: next(turns)()


def per_pass(group: WorkerGroup, work: Excerpt, spec: RunSpec, profile: RunProfile) -> float | None:
    """Seconds of a learner's pass that do not grow with its tokens: of passes of `work`, and of half of it, a straight line;
    its share at no tokens, of what a pass was measured to take. None: a single sequence has no half.

    Raises as `Handle.wait`.
    """
    few = replace(work, rows=work.rows // 2)
    if not few.rows:
        return None
    (told,) = group.one(min(group.actors), "repeat", InTurn(work, few), _IN_TURN).wait(
        "computing alone", _PATIENCE
    )
    seconds = [end - begin for begin, end in told]  # the first one was not told
    less = statistics.median(half / whole for whole, half in zip(seconds[::2], seconds[1::2], strict=False))
    each = (1 - less) / (work.rows - few.rows)
    rows, fixed = _rows(spec, profile), max(0.0, 1 - each * work.rows)
    learner = profile.learner
    measured = (learner.beta + learner.log_prob + learner.value) * rows * _length(profile)
    share = fixed / (fixed + each * rows) if each > 0 else 1.0
    return share * (measured + (learner.per_pass or 0.0))


def contend(groups: Mapping[str, WorkerGroup], work: Mapping[str, Excerpt]) -> dict[str, float]:
    """By role its `contention`: one of its processes does the work alone, then all of both roles do, a few times; the
    median. Without roles of which that says nothing.

    `groups` by role; none of them does anything else. Raises as `Handle.wait`.
    """
    found = {}
    for role, piece in work.items():
        shares = [share for _ in range(_ROUNDS) if (share := _share(groups, role, piece)) is not None]
        if shares:
            found[role] = statistics.median(shares)
    return found


def _share(groups: Mapping[str, WorkerGroup], role: str, piece: Excerpt) -> float | None:
    rank = min(groups[role].actors)
    (alone,) = groups[role].one(rank, "repeat", piece, _ALONE).wait("computing alone", _PATIENCE)
    for seconds in _TOGETHER:
        handles = [group.all("repeat", piece, seconds) for group in groups.values()]
        together = [times for handle in handles for times in handle.wait("computing at once", _PATIENCE)]
        if (share := contention(alone, together)) is not None:
            return share
    return None
