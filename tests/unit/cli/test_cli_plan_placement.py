"""`rltrain plan --profile-of`: who shares devices, by a profile."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from plan_command import Command

from rl_api.planner.of_run import under_limit
from rl_api.planner.profile import (
    PROFILE_FILE,
    DecodeProfile,
    DevicesProfile,
    LearnerProfile,
    Memories,
    RoleMemory,
    RunProfile,
    save_profile,
)
from rl_api.run import RunSpec
from rl_cli.placement_plan import placement_plan

PROFILE = RunProfile(
    steps=30,
    group_size=8,
    prompts_per_step=16,
    decode=DecodeProfile(base=0.01, per_active=0.0004, slots=64),
    lengths=tuple(range(8, 128, 3)),
    limit=128,
    learner=LearnerProfile(alpha=0.1, beta=0.0004),
    publish_seconds=0.1,
)
SMALL = (
    *("--set", "algorithm.promptsPerStep=8", "--set", "sampler.maxNewTokens=64"),
    *("--set", "sampler.tensorParallelSize=1"),
)


def test_the_plan_its_reasons_the_alternatives_and_one_step(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_profile(PROFILE, tmp_path / PROFILE_FILE)
    assert command("--profile-of", str(tmp_path), "--gantt", "step.svg", *SMALL) == 0
    printed = capsys.readouterr().out
    assert f"placement, by 30 steps of {tmp_path}:" in printed
    assert "per step; next " in printed
    assert "s sampler decodes, L learner computes" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith(("disagg", "colloc", "hybrid"))]
    assert {row[0] for row in rows} == {"disaggregated", "collocated", "hybrid"}
    assert [line for line in printed.splitlines() if line.endswith("as the file has it")]
    assert ET.parse("step.svg").getroot().tag.endswith("svg")


def test_what_other_numbers_of_workers_would_do_is_said(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of a profile with one reward model, for groups of 8 where the file has others."""
    judged = {"devices": PROFILE.devices.model_copy(update={"reward_models": 1}), "judge_seconds": 2.0}
    save_profile(PROFILE.model_copy(update=judged), tmp_path / PROFILE_FILE)
    assert command("--profile-of", str(tmp_path), "--json", *SMALL, "--set", "algorithm.groupSize=4") == 0
    found = json.loads(capsys.readouterr().out)["placement"]
    assert "reward models score for 8 s: that is what limits" in found["limits"]
    (said,) = found["workers"]
    assert said.startswith("reward models limit: with ")
    assert command("--profile-of", str(tmp_path), *SMALL, "--set", "algorithm.groupSize=4") == 0
    assert f"  {said}\n" in capsys.readouterr().out


def test_as_json_and_with_a_mode_that_is_fixed(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    save_profile(PROFILE, tmp_path / PROFILE_FILE)
    fixed = ("--set", "placement.mode=hybrid", "--set", "placement.sharedSamplers=1")
    assert command("--profile-of", str(tmp_path / PROFILE_FILE), "--json", *SMALL, *fixed) == 0
    found = json.loads(capsys.readouterr().out)["placement"]
    assert (found["mode"], found["learners"], found["samplers"], found["shared"]) == ("hybrid", 2, 3, 1)
    assert found["predictedStepSeconds"] > 0
    assert {one["shared"] for one in found["alternatives"]} == {1}


def test_what_cannot_be_planned_is_a_sentence(
    command: Command, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command("--profile-of", str(tmp_path / "none.json")) == 2
    said = capsys.readouterr().err
    assert (
        f"--profile-of: found {tmp_path / 'none.json'}, which is not there; allowed: placement-profile.json"
        in said
    )
    assert command("--gantt", "step.svg") == 2
    assert capsys.readouterr().err == (
        "rltrain: --gantt: found no --profile-of, allowed: with --profile-of or --placement, whose placement it draws\n"
    )


def lengths_of(tmp_path: Path, limit: int) -> tuple[int, ...]:
    """Answers that are planned with, of the profile in `tmp_path`."""
    document = {
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "algorithm": {"promptsPerStep": 8, "groupSize": 4},
        "sampler": {"maxNewTokens": limit},
    }
    return placement_plan(tmp_path, RunSpec.model_validate(document)).profile.lengths


def test_another_limit_cuts_long_answers_and_lengthens_those_that_were_cut(tmp_path: Path) -> None:
    measured = PROFILE.model_copy(update={"lengths": (10, 63, 64, 127, 128, 128)})
    save_profile(measured, tmp_path / PROFILE_FILE)
    assert lengths_of(tmp_path, 128) == measured.lengths
    assert lengths_of(tmp_path, 64) == (10, 63, 64, 64, 64, 64)
    assert lengths_of(tmp_path, 256) == (10, 63, 64, 127, 256, 256)
    save_profile(measured.model_copy(update={"limit": None}), tmp_path / PROFILE_FILE)
    assert lengths_of(tmp_path, 256) == measured.lengths, "none was cut"
    assert under_limit((5, 9), None, 8) == (5, 8)


GPU = (
    *("--set", "placement.mode=collocated", "--set", "sampler.replicas=2"),
    *("--set", "sampler.gpuMemoryUtilization=0.3"),
)


@pytest.mark.parametrize(
    ("measured_on", "options", "residency"),
    [
        (None, (), "keep"),  # nobody knows
        (None, ("--device-memory", "80G"), "keep"),
        (None, ("--device-memory", "56G"), "swap"),
        (80e9, (), "keep"),
        (56e9, (), "swap"),
        (80e9, ("--device-memory", "56G"), "swap"),
    ],
)
def test_what_stays_on_accelerators_is_planned_by_their_memory(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    measured_on: float | None,
    options: tuple[str, ...],
    residency: str,
) -> None:
    held = Memories(learner=RoleMemory(weights=10e9, moments=30e9), sampler=RoleMemory(weights=10e9))
    devices = DevicesProfile(learner=2, memory=measured_on)
    save_profile(PROFILE.model_copy(update={"memory": held, "devices": devices}), tmp_path / PROFILE_FILE)
    command("--profile-of", str(tmp_path), "--json", *options, *SMALL, *GPU)
    found = json.loads(capsys.readouterr().out)["placement"]
    assert (found["mode"], found["residency"]) == ("collocated", residency)


def test_before_anything_was_measured_a_prior_is_shown_as_one(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--placement", "--gantt", "step.svg", *SMALL) == 0
    printed = capsys.readouterr().out
    assert (
        "placement, by a prior: nothing was measured:\n  guessed are lengths of prompts and answers"
        in printed
    )
    assert "seconds are no seconds, and mean something only beside each other" in printed
    assert [line for line in printed.splitlines() if line.endswith("as the file has it")]
    assert ET.parse("step.svg").getroot().tag.endswith("svg")
    assert command("--placement", "--json", *SMALL) == 0
    found = json.loads(capsys.readouterr().out)["placement"]
    assert found["source"] == "a prior: nothing was measured"
    assert len(found["notes"]) == 2


def test_without_being_asked_for_no_prior_is_shown(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*SMALL) == 0
    assert "placement, by" not in capsys.readouterr().out


def test_a_prior_and_a_profile_are_two_things(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--placement", "--profile-of", "somewhere")
    assert "--profile-of: not allowed with argument --placement" in capsys.readouterr().err
