"""The placement with which a run begins on this machine, where nothing was measured of it and it may change it later."""

from __future__ import annotations

from collections.abc import Callable

from rl_api.errors import RLTrainError
from rl_api.planner.first import First, begins_by_prior, first_placement
from rl_api.planner.prior import prior_of
from rl_api.run import ModelSpec, RLTrainingRun
from rl_api.sizes.shape import ModelShape, model_shape
from rl_api.sizes.speeds import speeds_of
from rl_trainer.model.source import source_config
from rl_trainer.run.supported import check_supported


def begun(run: RLTrainingRun, tell: Callable[[str], None]) -> First | None:
    """What a prior chooses where it may; says so. None: it may not, or chooses the file's own placement, and says that."""
    replan = run.spec.placement.replan
    if replan is None or not begins_by_prior(run.spec):
        return None
    learner, sampler = speeds_of(run.spec)
    prior = prior_of(run.spec, _shape(run.spec.model), learner, sampler)
    first = first_placement(run, prior, check_supported)
    if first is None:
        tell(
            f"the run begins with the placement of its file, than which no other saves {replan.threshold:.0%} of a step "
            f"({prior.words})"
        )
    else:
        tell(f"{first.reason}: the run begins with it")
    return first


def _shape(model: ModelSpec) -> ModelShape | None:
    """None: it cannot be read, or its family is not known; where it has to be, whoever loads the model says so."""
    try:
        return model_shape(source_config(model))
    except RLTrainError:
        return None
