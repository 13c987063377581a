"""The one family of errors that users see: each is a sentence, with the exit code of the command line.

A message names what was found and what to do. Nothing else is ever shown to a user without `--debug`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

INVALID_INPUT: Final = 2
REWARD_FAILED: Final = 3
FINAL_EXIT_CODES: Final = frozenset({INVALID_INPUT, REWARD_FAILED})
"""Of errors that another attempt would end with as well: the operator begins none."""


class RLTrainError(Exception):
    """An error a user can act on. `str(error)` is the sentence; `exit_code` is the process's exit status."""

    exit_code = 1


class InvalidConfig(RLTrainError):
    """The user's input is wrong: a field, a file or an option. Nothing was started."""

    exit_code = INVALID_INPUT


class InvalidDocuments(InvalidConfig):
    """Files, documents or options of the user are wrong: `problems` has a sentence for each thing."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class ModelError(RLTrainError):
    """A model folder, hub id or URI cannot be loaded."""

    exit_code = INVALID_INPUT


class TaskError(RLTrainError):
    """A task, its data file, a prompt or its reward cannot be used."""

    exit_code = INVALID_INPUT


class RewardError(RLTrainError):
    """A reward function or environment raised, hung past its deadline, or returned no number."""

    exit_code = REWARD_FAILED


class ObjectiveError(RLTrainError):
    """The user's own objective raised, or returned something else than one loss per token."""

    exit_code = REWARD_FAILED


class RunFolderBusy(RLTrainError):
    """Another process is training in this run folder, or it holds a run that `--resume` was not asked for."""

    exit_code = INVALID_INPUT


class PortInUse(RLTrainError):
    """The status port is taken by another program."""

    exit_code = INVALID_INPUT


class DeadlineExceeded(RLTrainError):
    """A wait passed its deadline. The sentence names the phase, the actor, the node and what to do."""


class PlacementError(DeadlineExceeded):
    """The Ray cluster cannot hold the run's actors together within `placement.timeout`."""


class ActorDied(RLTrainError):
    """An actor the run cannot go on without has died. The run can be resumed from its last checkpoint."""


class CheckpointError(RLTrainError):
    """A checkpoint cannot be written or read."""


class Unavailable(CheckpointError):
    """A place cannot be reached now: nothing is known against what lies there."""


class ModelUnavailable(ModelError):
    """A model cannot be brought here now: a bucket or a hub does not answer."""


class TrainingDiverged(RLTrainError):
    """The loss was not a number several times in a row."""


class EndpointError(RLTrainError):
    """An inference server outside the run refuses what it is asked, or answers otherwise than it should."""


class PolicyMismatch(RLTrainError):
    """Samplers and learner give the same tokens other probabilities, though both have the same weights."""

    exit_code = INVALID_INPUT


class ProgramFailed(RLTrainError):
    """The program of `trainer.command` has ended, but not with exit code 0. The sentence has its last lines."""


class Interrupted(RLTrainError):
    """The run was asked to stop (Ctrl-C or SIGTERM), wrote a checkpoint and can be resumed."""

    exit_code = 130
