"""`rltrain plan --measured`: seconds of a step by what another run measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from model_configs import MODELS
from plan_command import Command, measured_run

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
    # Answers may be twice as long.
    assert (
        "a step: 24.5 s for 153,600 tokens of answers: generating 12 s, scoring 0.5 s, training 10 s, publishing 2 s, "
        "one after the other\n"
        "a checkpoint holds training up for 4 s\n"
        "  scaled from 4 steps of before (qwen2, 7,615,616,512 parameters, learners on devices that it has not "
        "recorded, ranks: 2, samplers: 3, 300 tokens per answer)\n"
    ) in capsys.readouterr().out
    faster = ("--set", "learner.replicas=4", "--set", "buffer.maxStaleness=1")
    assert command("--measured", "before", "--json", *steps, *faster) == 0
    found = json.loads(capsys.readouterr().out)["step"]
    assert (found["train"], found["total"], found["overlaps"]) == (5.0, 12.5, True)


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
