"""A program of the user's."""

from __future__ import annotations

from rl_api.run import RunSpec
from rl_operator.plan.backends.base import Backend


class Command(Backend):
    """It knows for itself how many steps it does, and may do without workers."""

    follows_stop = False

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """Those that it names."""
        return spec.trainer.workers
