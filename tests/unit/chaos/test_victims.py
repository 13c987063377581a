"""What is seen of a run from outside: when its dead are taken note of, and which phase it is in."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import victims
from victims import Death, Phases


def test_what_a_process_had_is_its_own_until_its_death_and_from_then_until_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
):
    lives, over, now = [True], [True], [100.0]
    monkeypatch.setattr(victims, "is_alive", lambda pid: lives[0])
    monkeypatch.setattr(victims, "time", SimpleNamespace(monotonic=lambda: now[0]))
    death = Death(4711, lambda: over[0])
    assert not death.look(), "it lives"
    lives[0], over[0] = False, False
    assert not death.look()
    now[0] = 102.5
    assert not death.look()
    assert math.isnan(death.seconds)
    over[0] = True
    assert death.look()
    now[0] = 110.0
    assert death.look()
    assert death.seconds == 2.5


@pytest.mark.parametrize(
    ("late", "titles", "met"),
    [
        (False, ["ray::LearnerActor.start", "ray::BufferActor"], True),
        (False, ["ray::SamplerActor.__init__", "ray::BufferActor"], True),
        (False, ["ray::LearnerActor.start"], False),
        (False, ["ray::LearnerActor.restore", "ray::BufferActor"], False),
        (True, ["ray::LearnerActor.restore", "ray::BufferActor"], True),
        (True, ["ray::LearnerActor.start", "ray::BufferActor"], False),
    ],
)
def test_a_run_resumes_while_it_loads_and_later_while_it_restores(
    late: bool, titles: list[str], met: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    words = {"rank": "Learner", "sampler": "Sampler", "buffer": "Buffer"}
    there: Any = SimpleNamespace(
        of=lambda target: [pid for pid, title in enumerate(titles) if words[target] in title]
    )
    monkeypatch.setattr(victims, "title_of", titles.__getitem__)
    phases = Phases(there, tmp_path, lambda: None)
    phases.target, phases.late = "buffer", late
    assert phases.resume() is met
