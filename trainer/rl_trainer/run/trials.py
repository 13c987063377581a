"""Learners and samplers really compute for a moment, at once and with less to do, to know what a plan for others needs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
# Seconds of passes of two sizes in turn, and pairs of them at least.
_IN_TURN, _PAIRS = 1.5, 4
# Of a pass; more of it is the machine's doing.
_MOST_FIXED = 0.9
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


@dataclass(frozen=True)
class InTurn:
    """Work, and less of it, in turn: of `few` of its rows."""

    work: Excerpt
    few: int

    def __call__(self) -> Callable[[], None]:
        """See `Excerpt`; both have been done once, and the next one is of few rows."""
        once = self.work()
        once()
        once(self.few)
        rows = cycle([self.few, self.work.rows])
        return lambda: once(next(rows))


def fixed_tokens(group: WorkerGroup, work: Excerpt) -> float | None:
    """Tokens for which a learner's pass takes as long as for what does not grow with them: of a straight line through passes
    of `work` and of half of it. None: a single sequence has no half, or what was measured makes no sense.

    Raises as `Handle.wait`.
    """
    few = work.rows // 2
    if not few:
        return None
    handle = group.one(min(group.actors), "repeat", InTurn(work, few), _IN_TURN, 2 * _PAIRS)
    (told,) = handle.wait("computing alone", _PATIENCE)
    seconds = [end - begin for begin, end in told]  # the first one of few rows was not told
    less = statistics.median(half / whole for whole, half in zip(seconds[::2], seconds[1::2], strict=False))
    each = (1 - less) / (work.rows - few)
    fixed = max(0.0, 1 - each * work.rows)
    return fixed / each * work.length if fixed <= _MOST_FIXED else None


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
