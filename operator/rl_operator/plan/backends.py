"""What differs by `trainer.kind`, the program that trains: the one place of the operator that asks for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rl_api.problems import Problem
from rl_api.profile import PoolSpec
from rl_api.run import RunSpec
from rl_api.task import role_of
from rl_operator.model.names import LEARNER, SAMPLER
from rl_operator.plan.pools import where


class Backend:
    """rltrain's own trainer: learners and samplers, each with one process to a pod. Others differ from it."""

    follows_stop = True
    """Whether it does the steps that `spec.stop` says."""
    workers_write = False
    """Whether not the head alone writes checkpoints."""
    workers_need_secrets = False
    """Whether workers get the Secrets of the run: they read models, data and object stores themselves."""
    learners_write = True
    """Whether learners write their part of a checkpoint where they reach its place, and send it to the head elsewhere."""

    samplers_leave = True
    """Whether a sampler gives its work back when its pod is told to go."""

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """The roles besides the head. Samplers that share learners' devices are in learners' pods."""
        roles = (LEARNER,) if 0 < spec.sampler.replicas <= spec.shared_samplers else (LEARNER, SAMPLER)
        return (*roles, *map(role_of, spec.task.workers))

    def learner_accelerators(self, pool: PoolSpec) -> int:
        """Accelerators of a learner's pod in a pool that has some."""
        return 1

    def misplaced(self, pools: Mapping[str, Sequence[PoolSpec]]) -> Iterator[Problem]:
        """What is wrong with the pools of the roles."""
        return iter(())

    def environment(self, learner_accelerators: int) -> dict[str, str]:
        """What the head's process is told besides; a learner's pod may have no accelerators."""
        return {}


class Command(Backend):
    """A program of the user's: it knows for itself how many steps it does, and may do without workers."""

    follows_stop = False
    workers_need_secrets = True
    learners_write = False
    samplers_leave = False

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """Those that it names."""
        return spec.trainer.workers


class Verl(Backend):
    """verl: it samples where it learns, with all accelerators of a node in one pod, which writes checkpoints itself."""

    workers_write = True
    workers_need_secrets = True

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """Learners alone."""
        return (LEARNER,)

    def learner_accelerators(self, pool: PoolSpec) -> int:
        """All of a node."""
        return pool.accelerators_per_node or 1

    def misplaced(self, pools: Mapping[str, Sequence[PoolSpec]]) -> Iterator[Problem]:
        """It trains on GPUs only, and a learner's pod has as many as a node of the first pool."""
        first, *others = pools[LEARNER]
        if first.accelerator is None:
            yield Problem(
                ("spec", "learner", "pools"),
                f"found {where(pools[LEARNER])}, without accelerators, allowed with trainer.kind verl: pools with "
                "accelerators, as verl trains on GPUs only",
            )
        all_of_a_node = self.learner_accelerators(first)
        for pool in others:
            if pool.accelerators_per_node is not None and pool.accelerators_per_node < all_of_a_node:
                yield Problem(
                    ("spec", "learner", "pools"),
                    f"found pool {pool.name}, whose nodes have {pool.accelerators_per_node} accelerators, allowed beside "
                    f"{first.name} with trainer.kind verl: pools whose nodes have {all_of_a_node} or more, as a pod takes "
                    f"all of a node of {first.name}",
                )

    def environment(self, learner_accelerators: int) -> dict[str, str]:
        """How many accelerators a node has."""
        return {"RLTRAIN_ACCELERATORS": str(learner_accelerators)}


_BACKENDS: Final[Mapping[str, Backend]] = {"rltrain": Backend(), "command": Command(), "verl": Verl()}


def backend_of(spec: RunSpec) -> Backend:
    """What follows from the trainer of a run."""
    return _BACKENDS[spec.trainer.kind]
