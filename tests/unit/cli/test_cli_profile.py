import argparse

import pytest

from rl_api import load_run
from rl_api.errors import InvalidConfig
from rl_api.planner.profile import RunProfile
from rl_cli.main import main
from rl_cli.profile import as_profiled, lines, operations

PROFILE = RunProfile.model_validate(
    {
        "groupSize": 8,
        "promptsPerStep": 4,
        "steps": 12,
        "decode": {"base": 0.004, "perActive": 5e-5, "perCachedToken": 2e-7, "slots": 64},
        "prefillTokensPerSecond": 15000,
        "promptTokens": 21,
        "lengths": [10, 20, 32, 32],
        "limit": 32,
        "learner": {"alpha": 0.011, "beta": 5e-5, "allReduce": 0.001, "contention": 0.125},
        "switch": {"learner": {"onload": 0.25, "offload": 0.5}},
    }
)


def test_a_run_is_profiled_without_what_is_no_part_of_a_step():
    run = load_run("examples/quickstart.yaml", ["warmStart=null"])
    spec = as_profiled(run, 7).spec
    assert (spec.stop.max_steps, spec.stop.target_reward, spec.stop.max_duration) == (7, None, None)
    assert (spec.task.evaluation, spec.checkpoint) == (None, None)
    assert spec.algorithm == run.spec.algorithm


def test_a_warm_start_up_to_a_score_keeps_the_prompts_that_it_is_scored_on():
    evaluation = as_profiled(load_run("examples/quickstart.yaml"), 7).spec.task.evaluation
    assert evaluation is not None
    assert evaluation.every_steps > 1_000_000
    assert evaluation.samples == 200


def test_what_was_measured_is_said_in_units_that_people_read():
    found = dict(line.split(None, 1) for line in lines(PROFILE) if not line.startswith("decode"))
    assert lines(PROFILE)[0] == "decode step 4 ms, 0.05 ms per sequence, 0.2 ms per 1,000 cached tokens"
    assert found["prompts"] == "21 tokens each, 15,000 tokens/s"
    assert found["answers"] == "24 tokens, longest 32, 50% cut at the limit"
    assert found["training"] == "50 ms per 1,000 tokens of a rank, 11 ms for a part, 1 ms for a step"
    assert (found["judging"], found["simulating"]) == ("none", "none")
    devices = PROFILE.devices.model_copy(update={"reward_models": 2, "simulators": 1})
    workers = {"devices": devices, "judge_seconds": 0.25, "simulator_seconds": 0.02, "queued_seconds": 0.125}
    told = dict(line.split(None, 1) for line in lines(PROFILE.model_copy(update=workers)))
    assert told["judging"] == "250 ms per group, at 2 reward models"
    assert told["simulating"] == "20 ms per answer, which waits 125 ms for others' turns, at 1 simulator"
    assert found["at"] == "once     learner 12% slower for each other process, sampler not measured"
    assert found["switches"] == "learner 750 ms, sampler not measured"
    tried = PROFILE.learner.model_copy(update={"per_pass": 0.005})
    said = "\n".join(lines(PROFILE.model_copy(update={"learner": tried})))
    assert "50 ms per 1,000 tokens of a rank, 16 ms for a part" in said


def test_what_a_fit_does_not_tell_apart_is_no_fact():
    decode = PROFILE.decode.model_copy(update={"base": 0.0, "per_cached_token": 0.0})
    said = lines(PROFILE.model_copy(update={"decode": decode}))[0]
    assert said == "decode step not told apart, 0.05 ms per sequence, not told apart per 1,000 cached tokens"


def test_operations_are_of_what_the_model_needs_and_of_the_bytes_that_are_read():
    """Of the preset: 295,936 parameters in two layers of width 128, and 12,544 in the head."""
    sampler = {"weights": 1.2e6, "cacheBytesPerToken": 1536}
    profile = RunProfile.model_validate(PROFILE.to_document() | {"memory": {"sampler": sampler}})
    spec = load_run("examples/quickstart.yaml").spec
    decoding, learning = operations(profile, spec)
    # 32 sequences with 32.75 tokens in the cache each: 20.8 million operations in 5.81 ms, and 2.81 MB.
    assert (
        decoding
        == "decoding    3.58 GFLOP/s of a sampler with 32 sequences, 7.4 operations for each byte read"
    )
    # 413 million for a group, of 360 tokens with its prompt once for each answer, each of which takes 50 us.
    assert learning == "learning    22.9 GFLOP/s of a rank"
    nothing_read = operations(PROFILE, spec)
    assert nothing_read == [learning]
    unknown = load_run("examples/quickstart.yaml", ["model={source: ./no-such-folder}"]).spec
    assert operations(profile, unknown) == []


def test_another_trainer_and_a_folder_that_is_not_there_are_refused(tmp_path, capsys):
    run = load_run("examples/quickstart.yaml")
    other = run.model_copy(
        update={"spec": run.spec.model_copy(update={"trainer": argparse.Namespace(kind="verl")})}
    )
    with pytest.raises(
        InvalidConfig, match=r"trainer\.kind: found verl, allowed with rltrain profile: rltrain"
    ):
        as_profiled(other, 3)
    for out in (tmp_path, tmp_path / "nowhere" / "profile.json"):
        assert main(["profile", "examples/quickstart.yaml", "--out", str(out)]) == 2
        assert f"--out: found {out}, allowed: a file in a folder that is there" in capsys.readouterr().err
