"""rltrain's own trainer."""

from __future__ import annotations

from rl_api.run import RunSpec
from rl_operator.model.names import LEARNER, SAMPLER
from rl_operator.plan.backends.base import Backend


class RLTrain(Backend):
    """Learners and samplers, each with one process to a pod."""

    def workers(self, spec: RunSpec) -> tuple[str, ...]:
        """Both."""
        return (LEARNER, SAMPLER)
