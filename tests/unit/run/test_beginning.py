"""What a driver on this machine begins with, and what its status says of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rl_api.errors import ModelError
from rl_api.planner.first import PRIOR_VARIABLE, First
from rl_api.planner.room import placement_of
from rl_api.run import RLTrainingRun
from rl_trainer.run import beginning
from rl_trainer.run import planning as planning_module
from rl_trainer.run.beginning import begun
from rl_trainer.run.forecasting import Forecasting
from rl_trainer.run.planning import EVERY_STEPS, Planning
from rl_trainer.run.replan import placement_status
from rl_trainer.run.run_folder import RunFolder

WAVES: dict[str, Any] = {
    "model": {"source": "tiny", "tiny": {"hiddenSize": 512, "layers": 4, "heads": 4, "kvHeads": 2}},
    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    "algorithm": {"promptsPerStep": 16, "groupSize": 8},
    "sampler": {"replicas": 2, "maxSequences": 8},
    "learner": {"replicas": 2},
    "placement": {"replan": {"threshold": 0.15, "steps": 3}},
}


def run(**spec: Any) -> RLTrainingRun:
    return RLTrainingRun.model_validate({"metadata": {"name": "begins"}, "spec": WAVES | spec})


def chosen() -> First:
    found = begun(run(), lambda text: None)
    assert found is not None
    return found


def test_it_says_in_one_sentence_with_what_it_begins() -> None:
    told: list[str] = []
    found = begun(run(), told.append)
    assert found is not None
    assert told == [f"{found.reason}: the run begins with it"]
    assert "nothing was measured: a prior" in told[0]


def test_it_says_so_too_where_it_stays_with_its_file() -> None:
    told: list[str] = []
    assert begun(run(placement={"replan": {"threshold": 0.9}}), told.append) is None
    assert told == [
        "the run begins with the placement of its file, than which no other saves 90% of a step (nothing was measured: a "
        "prior, good for ratios alone)"
    ]


@pytest.mark.parametrize("placement", [{}, {"replan": {}, "partGroups": 4}, {"mode": "hybrid"}])
def test_of_a_run_that_does_not_begin_so_nothing_is_said(placement: dict[str, Any]) -> None:
    told: list[str] = []
    assert begun(run(placement=placement), told.append) is None
    assert told == []


def test_a_model_that_cannot_be_read_is_one_of_common_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(model: object) -> dict[str, Any]:
        raise ModelError("not there")

    monkeypatch.setattr(beginning, "source_config", gone)
    assert chosen().prior.profile.decode.base > 1


def test_the_status_says_why_and_predicts_nothing_of_what_is_only_a_ratio() -> None:
    found = chosen()
    said = placement_status(found.run.spec, math.nan, 1.0, None, found)
    assert said is not None
    assert said.reason == f"placement.mode is auto: {found.reason}"
    assert said.predicted_step_seconds is None
    measured = placement_status(found.run.spec, 2.0, 1.0, None, found)
    assert measured is not None
    assert measured.predicted_step_seconds == 2.0


@pytest.mark.parametrize("by_prior", [True, False])
def test_forecasts_of_a_run_that_began_by_a_prior_choose_from_all_that_its_user_left_open(
    monkeypatch: pytest.MonkeyPatch, by_prior: bool
) -> None:
    """In a process of their own, by what is measured. The user said nothing of who shares: a prior must not have."""
    began, told = chosen(), []
    monkeypatch.setattr(planning_module, "NEAR", math.inf)
    monkeypatch.setattr(planning_module, "SHARE", math.inf)
    # Tensors stay where they are, and learning takes most of the time: all devices had better learn.
    measured = began.prior.profile.model_copy(update={"steps": 20})
    with Planning(began.run, told.append, told.append, by_prior=by_prior) as planning:
        for step in range(1, EVERY_STEPS + 1):
            planning.step(step, lambda: measured)
        making = planning._making
        assert isinstance(making, Forecasting)
        making.result(60)
        planning.step(EVERY_STEPS + 1, lambda: measured)
        assert planning.forecast is not None
        assert (planning.forecast.best.shared > 0) is by_prior
    assert placement_of(began.run.spec).shared == 0


def test_a_folder_knows_that_an_operator_has_chosen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRIOR_VARIABLE, raising=False)
    with RunFolder(tmp_path / "run") as folder:
        assert not folder.by_prior
        monkeypatch.setenv(PRIOR_VARIABLE, "1")
        assert folder.by_prior
