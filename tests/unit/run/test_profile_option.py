"""`rltrain run --profile`: where it would do nothing it is refused, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_api.planner.profile import (
    PROFILE_FILE,
    DecodeProfile,
    LearnerProfile,
    RunProfile,
    save_profile,
)
from rl_trainer.cli import main


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "placement.mode=disaggregated",
            "placement.mode disaggregated, which is not planned; allowed with auto",
        ),
        (
            "trainer={kind: command, command: [a]}",
            "trainer.kind command, whose placement is its own; allowed with rltrain",
        ),
    ],
)
def test_a_profile_that_nothing_is_planned_by(
    change: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = RunProfile(
        group_size=1,
        prompts_per_step=1,
        decode=DecodeProfile(base=1.0, slots=1),
        lengths=(1,),
        learner=LearnerProfile(beta=1.0),
    )
    save_profile(profile, tmp_path / PROFILE_FILE)
    run = tmp_path / "run.yaml"
    run.write_text(
        "apiVersion: rltrain.dev/v1alpha1\nkind: RLTrainingRun\nmetadata: {name: one}\n"
        "spec: {model: {source: tiny}, task: {environment: reasoning-gym, name: chain_sum}}\n"
    )
    words = ["run", str(run), "--out", str(tmp_path / "out"), "--profile", str(tmp_path), "--set", change]
    assert main(words) == 2
    assert f"--profile: found with {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
