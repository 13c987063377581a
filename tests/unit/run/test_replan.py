"""Which placement a run with mode auto has, and when it changes."""

import json
import math
import resource

import pytest

from rl_api.errors import InvalidConfig, RLTrainError
from rl_api.planner.first import room_as_asked
from rl_api.planner.forecast import Forecast, fits, forecast, is_planned, placed, same, sentence, wanted_of
from rl_api.planner.profile import RunProfile
from rl_api.planner.room import placement_of
from rl_api.progress import read_progress
from rl_api.roles import ReplanSpec
from rl_api.run import RLTrainingRun
from rl_trainer.run import forecasting as forecasting_module
from rl_trainer.run import planning as planning_module
from rl_trainer.run.forecasting import Forecasting
from rl_trainer.run.planning import EVERY_STEPS, Planning, planned
from rl_trainer.run.profiler import Profiler
from rl_trainer.run.replan import Replanning, placement_status


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


def test_the_status_says_who_shares_devices_and_what_a_step_takes():
    said = placement_status(run().spec, math.nan, 1.23456)
    assert said is not None
    assert (said.mode, said.samplers, said.shared, said.learners) == ("disaggregated", 1, 0, 2)
    assert (said.part_groups, said.predicted_step_seconds, said.measured_step_seconds) == (None, None, 1.23)
    parts = run(placement={"partGroups": 4}).spec
    assert placement_status(parts, 2.0).part_groups == 4
    assert placement_status(parts, 2.0).predicted_step_seconds == 2.0


class Clock:
    """A profile that is asked for, and when."""

    def __init__(self, **fields):
        self.asked = 0
        self.fields = fields

    def __call__(self):
        self.asked += 1
        return profile(**self.fields)


def steps_of(planning, count, measured):
    """So many steps, each after the forecast under way is made."""
    said = []
    for number in range(1, count + 1):
        if planning._making is not None:
            planning._making.result(60)
        said.append(planning.step(number, measured))
    return said


def test_on_a_cluster_there_are_as_many_samplers_and_learners_as_before():
    whole = run(buffer={"maxStaleness": 0}, sampler={"replicas": 2, "maxSequences": 32, "maxNewTokens": 64})
    measured = profile(beta=0.005, maxStaleness=0, devices={"learner": 2, "sampler": 2})
    for check in (no_sharing, anything):
        found = forecast(measured, whole, check, as_many=True)
        assert (found.best.samplers, found.best.learners) == (2, 2)
        wanted = wanted_of(found, whole.spec)
        assert wanted.mode == found.best.mode
        assert wanted.shared_samplers == found.best.shared
        assert wanted.reason == sentence(found, 8)
        after = placed(whole, found.best).spec
        assert (after.sampler, after.learner) == (whole.spec.sampler, whole.spec.learner)
        assert after.placement.part_groups == wanted.part_groups
        said = placement_status(whole.spec, found.now, 1.0, wanted)
        assert read_progress({"placement": said.to_document()}).placement == said


class AtOnce:
    """A forecast in this process, by what can be run without sharing."""

    def __init__(self, profile, run, as_many, by_prior):
        room = room_as_asked(run.spec) if by_prior else None
        self.found = forecast(profile, run, no_sharing, as_many=as_many, room=room)

    def done(self):
        return True

    def result(self, timeout=None):
        return self.found, 0.01

    def kill(self):
        pass


class Failing(AtOnce):
    """One that comes to no end that anybody has thought of."""

    def result(self, timeout=None):
        raise AssertionError("nothing happens any more")


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(planning_module, "Forecasting", AtOnce)
    monkeypatch.setattr(planning_module, "SHARE", math.inf)


@pytest.mark.parametrize(("change", "on_cluster"), [(True, True), (True, False), (False, False)])
def test_a_run_that_is_measured_changes_its_placement_where_it_may(monkeypatch, at_once, change, on_cluster):
    told, warned, measured = [], [], Clock()
    replan = {"threshold": 0.1, "steps": 3} if change else None
    monkeypatch.setattr(planning_module, "ReplanSpec", lambda: ReplanSpec(threshold=0.1, steps=3))
    # Parts are what another placement of as many gains.
    spec = {"placement": {"replan": replan}, "buffer": {"maxStaleness": 0 if on_cluster else 1}}
    if on_cluster:
        measured = Clock(beta=0.002, maxStaleness=0, lengths=[4, 8, 8, 8, 8, 8, 16, 64])
    left = None if change else []
    with Planning(run(**spec), told.append, warned.append, on_cluster=on_cluster, left=left) as planning:
        assert planning.wanted is None
        assert math.isnan(planning.predicted)
        said = steps_of(planning, EVERY_STEPS + 4, measured)
        # The forecast is there a step after it was begun, and has to hold for three steps.
        assert [one is not None for one in said] == [False] * (EVERY_STEPS + 2) + [True, False]
        assert (measured.asked, warned) == (1, [])
        assert planning.due is (change and not on_cluster)
        [sentence] = told
        if on_cluster:
            assert planning.wanted.part_groups < 8
            assert "learners 2, samplers 1" in sentence
            assert "the operator is asked for it" in sentence
            return
        assert planning.wanted is None
        assert planning.predicted == pytest.approx(1.5, rel=0.5)
        assert "learners 1, samplers 2" in sentence
        if change:
            moved = planning.change()
            assert (moved.run.spec.sampler.replicas, moved.run.spec.learner.replicas) == (2, 1)
            assert moved.left == [placement_of(run(**spec).spec)]
        else:
            assert "with placement.replan the run would change to it" in sentence
            assert "--profile" in sentence


REPLAN = {"placement": {"replan": {"threshold": 0.15, "steps": 12}}}


@pytest.mark.parametrize("spec", [{"placement": {"mode": "disaggregated"}}, {}])
def test_runs_that_ask_for_none_have_no_forecasts(at_once, spec):
    measured = Clock()
    with Planning(run(**spec), print, print) as planning:
        assert steps_of(planning, 2 * EVERY_STEPS, measured) == [None] * (2 * EVERY_STEPS)
    assert measured.asked == 0


def test_one_forecast_speaks_for_no_more_than_the_steps_until_the_next(at_once, monkeypatch):
    told, measured = [], Clock()
    with Planning(run(**REPLAN), told.append, print) as planning:
        steps_of(planning, EVERY_STEPS + 1 + EVERY_STEPS, measured)
        monkeypatch.setattr(planning, "_not_before", math.inf)
        planning._making = None
        assert [planning.step(step, measured) for step in range(22, 60)] == [None] * 38
        monkeypatch.setattr(planning, "_not_before", 0.0)
        assert [planning.step(step, measured) is not None for step in (60, 61, 62)] == [False, False, True]
    assert measured.asked == 3


@pytest.mark.parametrize(("factor", "changes"), [(1.0, True), (1.2, True), (1.5, False), (0.5, False)])
def test_a_forecast_that_does_not_know_the_run_as_it_is_changes_nothing(at_once, factor, changes):
    now = forecast(profile(), run(), no_sharing).now
    told = []
    with Planning(run(**REPLAN), told.append, print) as planning:
        for step in range(1, 40):
            planning.step(step, profile, now * factor)
    assert bool(told) is changes


def test_a_run_does_not_go_back_to_a_placement_that_it_has_left(at_once):
    told = []
    left = [forecast(profile(), run(), no_sharing).best.placement]
    with Planning(run(**REPLAN), told.append, print, left=left) as planning:
        steps_of(planning, 40, Clock())
    assert told == []


def nonsense():
    return RunProfile.model_validate({})


@pytest.mark.parametrize(("forecasting", "measured"), [(Failing, profile), (AtOnce, nonsense)])
def test_a_forecast_that_fails_is_none_and_one_warning(monkeypatch, at_once, forecasting, measured):
    monkeypatch.setattr(planning_module, "Forecasting", forecasting)
    told, warned = [], []
    with Planning(run(**REPLAN), told.append, warned.append) as planning:
        assert [planning.step(step, measured) for step in range(1, 50)] == [None] * 49
        assert math.isnan(planning.predicted)
    assert told == []
    [warning] = warned
    assert warning.startswith("no placement is foretold, and the run keeps its own: ")


def processor_seconds_of_ended_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_a_forecast_is_made_in_a_process_of_its_own_which_ends_with_the_run():
    making = Forecasting(profile(), run(), as_many=True)
    before = processor_seconds_of_ended_children()
    found, took = making.result(60)
    assert (found.best.samplers, found.best.learners) == (1, 2)
    assert found.now == pytest.approx(forecast(profile(), run(), no_sharing).now)
    # Waiting for a processor it took nothing; its very end is not counted.
    spent = processor_seconds_of_ended_children() - before
    assert 0.5 * spent < took <= spent
    making.kill()
    ended = Forecasting(profile(), run(), as_many=False)
    assert not ended.done()
    ended.kill()
    assert ended.done()


def test_a_process_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(forecasting_module, "json", Sent({"profile": {}}))
    making = Forecasting(profile(), run(), as_many=True)
    with pytest.raises(RLTrainError, match="validation error"):
        making.result(60)
    making.kill()


class Sent:
    """Says this instead of what is asked."""

    def __init__(self, document):
        self.document = document

    def dumps(self, _):
        return json.dumps(self.document)


def test_what_was_measured_and_makes_no_profile_ends_no_run(tmp_path):
    warned = []
    profiler = Profiler(run().spec, tmp_path, warned.append)
    profiler.measurements.profile = nonsense
    assert profiler.profile() is None
    assert profiler.write() is None
    [warning] = warned
    assert warning.startswith("what was measured makes no profile: ")


def test_a_run_begins_with_the_placement_that_its_profile_speaks_for(monkeypatch):
    monkeypatch.setattr(planning_module, "check_supported", no_sharing)
    told = []
    after = planned(run(), profile(), told.append)
    assert (after.spec.sampler.replicas, after.spec.learner.replicas) == (2, 1)
    assert planned(after, profile(), told.append) is after
    assert planned(run(), profile(groupSize=8), told.append).spec == run().spec
    fixed = run(placement={"mode": "disaggregated"})
    assert planned(fixed, profile(), told.append) is fixed
    assert told[0].endswith(": the run has it from the start")
    assert "stays as it is" in told[1]
    assert "not of a run like this one" in told[2]
    assert len(told) == 3
