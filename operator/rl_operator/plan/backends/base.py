"""What a run owes to the program that trains, whatever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from rl_api.problems import Problem
from rl_api.profile import PoolSpec
from rl_api.run import RunSpec


class Backend(ABC):
    """What differs by `trainer.kind`."""

    follows_stop = True
    """Whether it does the steps that `spec.stop` says."""
    workers_write = False
    """Whether not the head alone writes checkpoints."""

    @abstractmethod
    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """The roles besides the head."""

    def learner_accelerators(self, pool: PoolSpec) -> int:
        """Accelerators of a learner's pod in a pool that has some."""
        return 1

    def misplaced(self, pools: Mapping[str, Sequence[PoolSpec]]) -> Iterator[Problem]:
        """What is wrong with the pools of the roles."""
        return iter(())

    def environment(self, learner_accelerators: int) -> dict[str, str]:
        """What the head's process is told besides.

        Args:
            learner_accelerators: of a learner's pod; 0: none, or no learner.
        """
        return {}
