"""The contract: RLTrainingRun and RLTrainingProfile, their rules, status and errors. Imports neither side."""

from rl_api.base import Duration
from rl_api.progress import Progress, RunStatus
from rl_api.run import RLTrainingRun, RunSpec

__all__ = ["Duration", "Progress", "RLTrainingRun", "RunSpec", "RunStatus"]
