"""A short campaign of faults against one real run, whose two ranks divide the model; `make chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from campaign import Disturbance
from fault_plan import Fault, draw
from fault_report import Campaign

# A campaign's own deadlines, each for one wait of many, say what hangs.
pytestmark = pytest.mark.timeout(1500)

SEED = 1
# Each kind, and each target; which of several, and how long, the seed says. (A killed driver: `test_run_resume.py`.)
WHAT = (
    ("kill", "sampler", "evaluate"),
    ("stop", "rank", "train"),
    ("pause", "buffer", "publish"),
    ("pause", "driver", "checkpoint"),
    ("kill", "rank", "resume"),
)


def one(number: int, kind: str, target: str, phase: str) -> Fault:
    chosen = {"worlds": ["ranks"], "kinds": [kind], "targets": [target], "phases": [phase]}
    return draw(SEED, number + 1, longest_pause=0.5, **chosen)[number]


def test_a_run_that_is_hit_again_and_again_learns_what_it_learns_undisturbed(tmp_path: Path):
    campaign = Campaign({"seed": SEED})
    told: list[str] = []
    faults = [one(number, *what) for number, what in enumerate(WHAT)]
    Disturbance(campaign, [], tmp_path, tell=told.append).inject(faults, tmp_path)
    assert campaign.problems == [], "\n".join(told)
    assert [result.how for result in campaign.results] == [
        "went on",
        "resumed",
        "went on",
        "went on",
        "resumed",
    ]
    assert all("learner" in campaign.results[index].sentence for index in (1, 4))
    assert "bit by bit the same curve" in campaign.runs[0]
