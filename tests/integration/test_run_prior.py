"""A run that may change its placement begins with what a prior chooses, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_runs import RunFiles

from rl_api import load_run

pytestmark = pytest.mark.usefixtures("local_ray")

# One answer at a time, by a model whose passes take longer than calls do: learners could begin with the first ones.
WAVES: dict[str, Any] = {
    "model": {"tiny": {"hiddenSize": 256, "layers": 2, "heads": 4, "kvHeads": 2, "intermediateSize": 512}},
    "algorithm": {"promptsPerStep": 8},
    "sampler": {"maxSequences": 1, "maxNewTokens": 16},
    "placement": {"replan": {}},
    "stop": {"maxSteps": 2},
}
CHOSEN = (
    "placement disaggregated: learners 1, samplers 1, parts of 2 of 8 groups would take 22% less time per step than "
    "disaggregated in one part (nothing was measured: a prior, good for ratios alone): the run begins with it"
)


def told(out: str) -> str:
    return " ".join(out.split())


def test_its_first_step_is_in_the_parts_that_the_prior_speaks_for(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, **WAVES)
    assert told(files.run().assert_well().out).count(CHOSEN) == 1
    placement = load_run(files.out / "run.yaml").spec.placement
    assert (placement.mode, placement.shared_samplers, placement.part_groups) == ("auto", 0, 2)
    assert [len(one.prompts) for one in files.steps] == [8, 8]
    files.assert_nothing_lost_or_twice()
    # What goes on with it has measured no more of another placement.
    resumed = files.run("--resume", "--set", "stop.maxSteps=3").assert_well()
    assert CHOSEN in told(resumed.out)
    assert "resumed from step 2" in resumed.out
    assert len(files.steps) == 3


def test_a_run_that_says_who_shares_begins_as_it_says(tmp_path: Path) -> None:
    files = RunFiles(tmp_path, **WAVES | {"placement": {"replan": {}, "sharedSamplers": 0}})
    assert "prior" not in files.run().assert_well().out
    assert load_run(files.out / "run.yaml").spec.placement.part_groups is None
