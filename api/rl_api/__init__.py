"""The contract: RLTrainingRun and RLTrainingProfile, their rules, status and errors. Imports neither side."""

from rl_api.algorithm import AlgorithmSpec
from rl_api.base import Duration
from rl_api.documents import dump_yaml
from rl_api.errors import InvalidConfig, InvalidDocuments
from rl_api.profile import RLTrainingProfile
from rl_api.progress import Attempt, CheckpointStatus, Progress, RunStatus
from rl_api.roles import LoraSpec
from rl_api.rules import check_rules
from rl_api.run import ModelSpec, RLTrainingRun, RunSpec, StopSpec
from rl_api.task import RewardRule, TaskSpec
from rl_api.validation import check_document, check_files, load_run, validate_files

__all__ = [
    "AlgorithmSpec",
    "Attempt",
    "CheckpointStatus",
    "Duration",
    "InvalidConfig",
    "InvalidDocuments",
    "LoraSpec",
    "ModelSpec",
    "Progress",
    "RLTrainingProfile",
    "RLTrainingRun",
    "RewardRule",
    "RunSpec",
    "RunStatus",
    "StopSpec",
    "TaskSpec",
    "check_document",
    "check_files",
    "check_rules",
    "dump_yaml",
    "load_run",
    "validate_files",
]
