"""verl: it samples where it learns, with all accelerators of a node in one pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rl_api.problems import Problem
from rl_api.profile import PoolSpec
from rl_api.run import RunSpec
from rl_operator.model.names import LEARNER
from rl_operator.plan.backends.base import Backend
from rl_operator.plan.pools import where


class Verl(Backend):
    """Its workers write its checkpoints themselves."""

    workers_write = True

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """Learners alone."""
        return (LEARNER,)

    def learner_accelerators(self, pool: PoolSpec) -> int:
        """All of a node."""
        return pool.accelerators_per_node or 1

    def misplaced(self, pools: Mapping[str, Sequence[PoolSpec]]) -> Iterator[Problem]:
        """It trains on GPUs only."""
        if pools[LEARNER][0].accelerator_resource is None:
            yield Problem(
                ("spec", "learner", "pools"),
                f"found {where(pools[LEARNER])}, without accelerators, allowed with trainer.kind verl: pools with "
                "accelerators, as verl trains on GPUs only",
            )

    def environment(self, learner_accelerators: int) -> dict[str, str]:
        """How many accelerators a node has."""
        return {"RLTRAIN_ACCELERATORS": str(learner_accelerators)}
