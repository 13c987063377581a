"""What the benchmark of modes counts as work beside who has the device."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rl_trainer.observe.timeline import Span


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench"))
    return importlib.import_module("modes_cores")


def test_what_an_actor_computes_while_the_other_one_works_is_beside_it(cores: Any) -> None:
    """Looks each second: the learner works from 1 to 3 s, of which the sampler takes 0.25 s; it has the core from 4 s on."""
    times = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    seconds = {
        "learner 0": [0.0, 0.0, 0.75, 1.5, 1.5, 1.625],
        "sampler 0": [0.0, 0.5, 0.5, 0.75, 0.75, 1.5],
        "sampler 1": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
    }
    spans = [
        Span("learner 0", "train", 1.0, 3.0),
        Span("learner 0", "wake", 3.0, 4.0),
        Span("sampler 0", "generate", 4.5, 5.0),
        Span("sampler 0", "lease", 1.0, 4.0),
        Span("sampler 1", "generate", 0.0, 5.0),
    ]
    pairs = [["learner 0", "sampler 0"]]
    assert cores.beside(times, seconds, pairs, spans) == pytest.approx(0.25 + 0.0625)
    assert cores.beside(times, seconds, [], spans) == 0.0
