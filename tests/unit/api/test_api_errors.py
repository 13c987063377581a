"""What a process ends with, by the error: what a person must change, what a new attempt may mend, what was asked for."""

from __future__ import annotations

import pytest

from rl_api import errors
from rl_api.errors import InvalidDocuments, RLTrainError

CODES = {
    1: (
        *(
            "RLTrainError",
            "DeadlineExceeded",
            "PlacementError",
            "ActorDied",
            "CheckpointError",
            "Unavailable",
        ),
        *("EndpointError", "TrainingDiverged", "ProgramFailed"),
    ),
    2: (
        "InvalidConfig",
        "InvalidDocuments",
        "ModelError",
        "ModelUnavailable",
        "PolicyMismatch",
        "TaskError",
        "RunFolderBusy",
        "PortInUse",
    ),
    3: ("RewardError", "ObjectiveError"),
    130: ("Interrupted",),
}


@pytest.mark.parametrize(("code", "names"), CODES.items())
def test_exit_codes(code: int, names: tuple[str, ...]) -> None:
    for name in names:
        kind = getattr(errors, name)
        assert issubclass(kind, RLTrainError)
        assert kind.exit_code == code, name


def test_every_error_has_its_code() -> None:
    kinds = {
        name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, RLTrainError)
    }
    assert kinds == {name for names in CODES.values() for name in names}


def test_several_problems_are_one_error_of_several_lines() -> None:
    error = InvalidDocuments(["a: wrong", "b: wrong"])
    assert (str(error), error.problems) == ("a: wrong\nb: wrong", ("a: wrong", "b: wrong"))
