"""`rltrain plan --measured`: seconds of a step by what another run measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_configs import MODELS
from plan_command import Command, measured_run

from rl_api.planner.profile import PROFILE_FILE, DecodeProfile, LearnerProfile, RunProfile, save_profile
from rl_trainer.run.attempts_file import note_attempt

ROOT = Path(__file__).parents[3]


def test_seconds_of_a_step_by_what_another_run_measured(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    assert "a step: " not in capsys.readouterr().out
    measured_run(Path("before"))
    steps = ("--set", "algorithm.promptsPerStep=32", "--set", "algorithm.groupSize=8")
    assert command("--measured", "before", *steps) == 0
    # Answers may be twice as long, and of those measured all ended before that.
    assert (
        "a step: 13.5 s for 76,800 tokens of answers: generating 6 s, scoring 0.5 s, training 5 s, publishing 2 s, "
        "one after the other\n"
        "a checkpoint holds training up for 4 s\n"
        "  scaled from 4 steps of before (qwen2, 7,615,616,512 parameters, learners on devices that it has not "
        "recorded, ranks: 2, samplers: 3, 300 tokens per answer)\n"
    ) in capsys.readouterr().out
    faster = ("--set", "learner.replicas=4", "--set", "buffer.maxStaleness=1")
    assert command("--measured", "before", "--json", *steps, *faster) == 0
    found = json.loads(capsys.readouterr().out)["step"]
    assert (found["train"], found["total"], found["overlaps"]) == (2.5, 6.5, True)


def tokens_of(command: Command, capsys: pytest.CaptureFixture[str], limit: int) -> float:
    """Of an answer, as planned for this limit: --measured had 1,536."""
    size = ("--set", "algorithm.promptsPerStep=32", "--set", "algorithm.groupSize=8")
    options = ("--measured", "before", "--json", "--set", f"sampler.maxNewTokens={limit}")
    capsys.readouterr()
    assert command(*options, *size) == 0
    return float(json.loads(capsys.readouterr().out)["step"]["tokens"]) / 256


def test_another_limit_cuts_long_answers_and_lengthens_those_that_were_cut(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    measured_run(Path("before"), truncated_fraction=0.125)
    assert tokens_of(command, capsys, 1536) == 300
    assert tokens_of(command, capsys, 3072) == 300 + 1536 / 8
    # How long single answers were is not known: of 300 tokens each, none is cut.
    assert tokens_of(command, capsys, 768) == 300
    assert tokens_of(command, capsys, 200) == 200
    # Seven of 123 or 124, and one of 1,536: 300 on average.
    lengths = [*([123, 124] * 3), 123, 1536]
    profile = RunProfile(
        group_size=8,
        prompts_per_step=32,
        decode=DecodeProfile(base=0.01, slots=64),
        lengths=tuple(lengths),
        limit=1536,
        learner=LearnerProfile(beta=0.001),
    )
    save_profile(profile, Path("before") / PROFILE_FILE)
    share = 300 / sum(lengths)
    assert tokens_of(command, capsys, 1536) == pytest.approx(300)
    assert tokens_of(command, capsys, 3072) == pytest.approx(share * (sum(lengths) + 1536))
    assert tokens_of(command, capsys, 768) == pytest.approx(share * (sum(lengths) - 768))
    assert tokens_of(command, capsys, 100) == pytest.approx(share * 800)
    (Path("before") / PROFILE_FILE).write_text("{}")
    assert tokens_of(command, capsys, 3072) == 300 + 1536 / 8


def test_what_has_measured_nothing_is_refused(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert command("--measured", "empty") == 2
    assert capsys.readouterr().err == (
        "rltrain: --measured: found empty without run.yaml, allowed: the folder of a run\n"
    )
    measured_run(Path("early"), steps=0)
    measured_run(Path("untimed"), time_train=float("nan"))
    for name in ("early", "untimed"):
        assert command("--measured", name) == 2
        assert capsys.readouterr().err == (
            f"rltrain: --measured: found no step with times in {name}/metrics.jsonl, allowed: the folder of a run that "
            "has trained\n"
        )


def test_times_of_other_devices_or_of_a_much_smaller_model_come_with_a_warning(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    measured_run(Path("before"))
    capsys.readouterr()
    divided = ("learner: {replicas: 2,", "learner: {replicas: 8, parallelism: fsdp2,")
    on_gpus = ("--measured", "before", "--device-memory", "200G")
    for gpus, words in ((True, "GPUs"), (False, "CPUs")):
        note_attempt(Path("before"), "begun", attempt=None, step=0, learner_gpus=gpus)
        assert command(*on_gpus, change=divided) == 0
        output = capsys.readouterr()
        assert f"learners on {words}, ranks: 2" in output.out
        assert output.err == (
            ""
            if gpus
            else "rltrain: --measured: the learners of before were on CPUs, and those of this run are on GPUs, which have "
            "another speed: measure a run on the same devices\n"
        )
    assert command("--measured", "before") == 0
    assert "--measured" not in capsys.readouterr().err, "nobody knows the devices of this run"
    document = Path("before/run.yaml").read_text()
    small = Path("small").absolute()
    small.mkdir()
    (small / "config.json").write_text(json.dumps(MODELS["Qwen2.5-0.5B"]))
    Path("before/run.yaml").write_text(document.replace(str(Path("model").absolute()), str(small)))
    note_attempt(Path("before"), "begun", attempt=None, step=0, learner_gpus=True)
    sentence = (
        "--measured: the model of before has 494,032,768 parameters and that of this run 7,615,616,512, more than 10 times "
        "apart: measure a model of about its size"
    )
    assert command(*on_gpus, change=divided) == 0
    assert capsys.readouterr().err == f"rltrain: {sentence}\n"
    assert command(*on_gpus, "--json", change=divided) == 0
    assert json.loads(capsys.readouterr().out)["step"]["warnings"] == [sentence]
