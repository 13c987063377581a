"""`rltrain plan` of runs with models that score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_command import Command, texts_of

ROOT = Path(__file__).parents[3]

SCORED = (
    "{environment: reasoning-gym, name: chain_sum}",
    "{environment: reasoning-gym, name: chain_sum, rewards: [{rule: model}], rewardModel: {source: model, replicas: 2}}",
)


def test_models_that_score_are_planned_where_they_have_accelerators(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    one_each = ("--set", "task.rewardModel.accelerators=1")
    assert command("--device-memory", "200G", *one_each, "--svg", "plan.svg", change=SCORED) == 0
    output = capsys.readouterr()
    assert output.err == ""
    rows = {line[:17].strip(): line.split()[-2:] for line in output.out.splitlines()}
    assert rows["weights"] == ["28", "GB"], "in float32, with a row in place of the output head"
    assert (rows["pods"][-1], rows["devices"][-1]) == ("2", "2")
    assert "\nreward models beside them: 2, each with an accelerator, 1 cores and 2.1 GB\n" in output.out
    assert "2 learners, 3 samplers of 2 devices, 2 reward models (copy 0 to copy 1)\n" in output.out
    texts = texts_of(Path("plan.svg"))
    assert any(text.startswith("one device of reward model: ") for text in texts)
    assert "reward model pod 1" in texts
    assert command("--device-memory", "200G", "--json", change=SCORED) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["roles"].keys() == {"learner", "sampler"}, "on one machine nobody looks at main memory"
    assert command("--device-memory", "20G", *one_each, change=SCORED) == 2
    refused = capsys.readouterr().err.splitlines()[-1]
    assert refused == (
        "rltrain: run.yaml: reward model: 7.6 B parameters need 28 GB on one 20 GB device; no batchSize would do: take "
        "larger devices"
    )


def test_models_that_score_are_planned_in_the_pools_of_a_profile(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = ("--profile", str(ROOT / "examples" / "profile-gpu.yaml"), "--json")
    options = {"model": "Qwen2.5-0.5B", "change": SCORED}
    assert command(*profile, "--set", "task.rewardModel.accelerators=1", **options) == 0
    plan = json.loads(capsys.readouterr().out)
    role = plan["roles"]["reward model"]
    assert (role["pool"], role["pods"], role["devices"], role["deviceMemory"]) == ("h100", 2, 2, 80 * 10**9)
    seats = [seat["role"] for node in plan["nodes"] if node["pool"] == "h100" for seat in node["seats"]]
    assert seats.count("reward model") == 2
    assert plan["workers"]["reward model"]["accelerators"] == 1
    on_cores = ("--set", "task.rewardModel.batchSize=1", "--set", "task.rewardModel.memory=")
    assert command(*profile, *on_cores[:-1], f"{on_cores[-1]}1Gi", **options) == 2
    assert capsys.readouterr().err == (
        "rltrain: run.yaml: reward model: 494 M parameters need 2.0 GB on one 1.7 GB pod; set task.rewardModel.memory: 3Gi, "
        "or more\n"
    )
    assert command(*profile, *on_cores[:-1], f"{on_cores[-1]}3Gi", **options) == 0
    assert json.loads(capsys.readouterr().out)["roles"]["reward model"]["pool"] == "cpu"


def test_a_model_that_scores_and_cannot_be_read_is_held_against_nothing(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be in the image, or of a family that the library alone knows."""
    options = ("--device-memory", "200G", "--set", "task.rewardModel.accelerators=1", "--set")
    assert command(*options, "task.rewardModel.source=/models/judge", change=SCORED) == 0
    output = capsys.readouterr()
    assert output.err.startswith(
        "rltrain: what a reward model needs is not known, so that nothing is held against it: task.rewardModel: "
        "/models/judge is not a folder; "
    )
    assert next(line for line in output.out.splitlines() if line.startswith("sum")).endswith(" unknown")
    assert command(*options, "task.rewardModel.source=/models/judge", "--json", change=SCORED) == 0
    role = json.loads(capsys.readouterr().out)["roles"]["reward model"]
    assert (role["parts"], role["total"], role["devices"]) == (None, None, 2)
    Path("other").mkdir()
    Path("other/config.json").write_text('{"model_type": "bert"}')
    assert command(*options, "task.rewardModel.source=other", change=SCORED) == 0
    assert "task.rewardModel: config.json of other: model_type: found 'bert'" in capsys.readouterr().err
