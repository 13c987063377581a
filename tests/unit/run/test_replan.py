"""Which placement a run with mode auto has, and when it changes."""

import pytest

from rl_api.errors import InvalidConfig
from rl_api.planner.profile import RunProfile
from rl_api.roles import ReplanSpec
from rl_api.run import RLTrainingRun
from rl_trainer.run.replan import Forecast, Replanning, fits, forecast, is_planned, placed, same, sentence


def run(**spec):
    return RLTrainingRun.model_validate(
        {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "metadata": {"name": "planned"},
            "spec": {
                "model": {"source": "tiny"},
                "task": {
                    "environment": "prompts",
                    "file": "prompts.jsonl",
                    "rewards": [{"rule": "exactMatch"}],
                },
                "algorithm": {"promptsPerStep": 8, "groupSize": 4},
                "sampler": {"replicas": 1, "maxSequences": 32, "maxNewTokens": 64},
                "learner": {"replicas": 2},
                "buffer": {"maxStaleness": 1},
                **spec,
            },
        }
    )


def profile(decode=0.02, beta=1e-5, slots=32, **fields):
    """Of a run whose samplers take long; learners are done in no time."""
    return RunProfile.model_validate(
        {
            "groupSize": 4,
            "promptsPerStep": 8,
            "maxStaleness": 1,
            "steps": 20,
            "devices": {"learner": 2, "sampler": 1},
            "decode": {"base": decode / 20, "perActive": decode / 20, "slots": slots},
            "lengths": [64] * 16,
            "limit": 64,
            "promptTokens": 16,
            "learner": {"beta": beta},
            **fields,
        }
    )


def no_sharing(spec):
    if spec.shared_samplers:
        raise InvalidConfig("cannot share")


def anything(spec):
    return None


def test_devices_go_to_whom_the_step_waits_for():
    found = forecast(profile(), run(), no_sharing)
    assert found is not None
    assert (found.best.shared, found.best.samplers, found.best.learners) == (0, 2, 1)
    assert found.gain > 0.4
    assert "learners 1, samplers 2" in sentence(found, 8)
    assert "per step where this one takes" in sentence(found, 8)
    # The other way about.
    slow = forecast(
        profile(decode=0.0001, beta=0.01),
        run(learner={"replicas": 1}, sampler={"replicas": 2, "maxSequences": 32, "maxNewTokens": 64}),
        no_sharing,
    )
    assert slow is not None
    assert (slow.best.samplers, slow.best.learners) == (1, 2)


def test_a_placement_that_this_version_cannot_run_is_passed_over():
    def only_as_it_is(spec):
        if (spec.sampler.replicas, spec.learner.replicas, spec.shared_samplers) != (1, 2, 0):
            raise InvalidConfig("no")

    found = forecast(profile(), run(), only_as_it_is)
    assert found is None or (found.best.samplers, found.best.learners) == (1, 2)
    assert found is None or found.gain < 0.01


def test_the_run_with_a_plan_is_one_that_a_user_could_have_written():
    before = run()
    found = forecast(profile(), before, no_sharing)
    after = placed(before, found.best)
    assert (after.spec.sampler.replicas, after.spec.learner.replicas) == (2, 1)
    assert after.spec.placement.mode == "auto"
    assert after.spec.shared_samplers == 0
    assert same(found.best, after.spec)
    assert not same(found.best, before.spec)
    # With that placement there is nothing left to gain.
    assert forecast(profile(), after, no_sharing).gain < 0.02


def test_a_plan_that_does_not_go_with_the_run_is_refused():
    found = forecast(profile(), run(), anything)
    too_many = found.best.model_copy(update={"samplers": 3, "shared": 3, "learners": 1})
    with pytest.raises(InvalidConfig, match="does not go with the run"):
        placed(run(), too_many)


@pytest.mark.parametrize(
    "changed",
    [{"groupSize": 8}, {"promptsPerStep": 4}, {"maxStaleness": 0}, {"slots": 64}],
)
def test_a_profile_of_another_kind_of_run_plans_nothing(changed):
    assert fits(profile(), run().spec)
    assert not fits(profile(**changed), run().spec)
    assert forecast(profile(**changed), run(), anything) is None


@pytest.mark.parametrize(
    ("spec", "planned"),
    [
        ({}, True),
        ({"placement": {"mode": "disaggregated"}}, False),
    ],
)
def test_only_mode_auto_is_planned(spec, planned):
    assert is_planned(run(**spec).spec) is planned


def test_a_placement_changes_when_it_would_have_gained_enough_for_long_enough():
    best = forecast(profile(), run(), no_sharing).best
    seconds = best.predicted_step_seconds
    gains, little = Forecast(seconds / 0.8, best), Forecast(seconds / 0.9, best)
    replanning = Replanning(ReplanSpec(threshold=0.15, steps=3))
    assert [replanning.step(one) for one in (gains, gains, little, gains, gains)] == [False] * 5
    assert replanning.step(gains)
    assert not replanning.step(None)
    assert replanning.steps == 0
