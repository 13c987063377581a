"""What the end of a run tries, to know what passes cost: what work it is, who is asked, and what becomes of what fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_api.errors import DeadlineExceeded
from rl_api.planner.profile import DecodeProfile, LearnerProfile, RunProfile
from rl_api.run import RunSpec
from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.excerpt import Excerpt
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.run.profiler import Profiler
from rl_trainer.run.trials import InTurn, Tried, contend, excerpts, per_pass
from rl_trainer.trajectory import Group

PROFILE = RunProfile(
    group_size=8,
    prompts_per_step=4,
    decode=DecodeProfile(base=0.001, slots=12),
    lengths=(9, 15),
    prompt_tokens=8.0,
    learner=LearnerProfile(beta=0.001),
)
SPEC = RunSpec.model_validate(
    {
        "algorithm": {"promptsPerStep": 4, "groupSize": 8},
        "learner": {"replicas": 2, "tokensPerMicroBatch": 200},
        "sampler": {"replicas": 2},
    }
)
CONFIG = """{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
"num_key_value_heads": 1, "intermediate_size": 32, "max_position_embeddings": 64, "hidden_act": "silu"}"""


class Asked:
    """In place of a group of workers, whose pieces take `alone` seconds, and `beside` where all are asked."""

    def __init__(self, role: str, size: int, alone: float, beside: float, asked: list[Any]) -> None:
        self.role, self.actors, self.alone, self.beside, self.asked = (
            role,
            dict.fromkeys(range(1, size + 1)),
            alone,
            beside,
            asked,
        )
        self.late = 0  # times that it begins when the others are done

    def one(self, rank: int, method: str, work: Any, seconds: float) -> Any:
        self.asked.append((method, f"{self.role} {rank}", work))
        if isinstance(work, InTurn):
            begin, told = 0.0, []
            for piece in (work.first, work.second, work.first, work.second, work.first):
                told.append((begin, begin + 0.25 + 0.5 * piece.rows))
                begin = told[-1][1]
            return SimpleNamespace(wait=lambda phase, timeout: [told])
        return self._said([self.alone])

    def all(self, method: str, work: str, seconds: float) -> Any:
        self.asked.append((method, f"{self.role}s", work))
        self.late -= 1
        return self._said([self.beside] * len(self.actors), 100.0 if self.late >= 0 else 0.0)

    @staticmethod
    def _said(lengths: list[float], begin: float = 0.0) -> Any:
        told = [
            [(begin + number * one, begin + (number + 1) * one) for number in range(4)] for one in lengths
        ]
        return SimpleNamespace(wait=lambda phase, timeout: told)


def test_work_is_the_runs_own_in_size(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    found = excerpts(SPEC, PROFILE, tmp_path)
    learner, sampler = found["learner"], found["sampler"]
    assert (learner.rows, learner.length, learner.learns) == (10, 20, True)  # a micro-batch
    assert (sampler.rows, sampler.length, sampler.learns) == (12, 1, False)  # all slots
    (tmp_path / "config.json").write_text(CONFIG.replace("llama", "another"))
    assert excerpts(SPEC, PROFILE, tmp_path) == {}


def test_one_computes_alone_and_then_all_do() -> None:
    asked: list[Any] = []
    groups: Any = {
        "learner": Asked("learner", 1, 1.0, 1.25, asked),
        "sampler": Asked("sampler", 2, 2.0, 3.0, asked),
    }
    work: Any = {"learner": "passes"}
    # While all work four pieces of 1.25 s are done, and two of 3 s; alone one takes 1 s.
    assert contend(groups, work) == {"learner": pytest.approx(0.25 / 2)}
    assert asked == 3 * [
        ("repeat", "learner 1", "passes"),
        ("repeat", "learners", "passes"),
        ("repeat", "samplers", "passes"),
    ]


def test_what_of_a_pass_does_not_grow_with_its_tokens(tmp_path: Path) -> None:
    """A pass of r rows takes 0.25 + 0.5 r seconds, and a step's 10 rows of 20 tokens were measured to take 0.2 s."""
    (tmp_path / "config.json").write_text(CONFIG)
    work, asked = excerpts(SPEC, PROFILE, tmp_path)["learner"], list[Any]()
    group: Any = Asked("learner", 2, 0.0, 0.0, asked)
    whole = 0.001 * 10 * 20
    assert per_pass(group, work, SPEC, PROFILE) == pytest.approx(whole * 0.25 / 5.25)
    ((_, name, pieces),) = asked
    assert (name, pieces.first.rows, pieces.second.rows) == ("learner 1", 10, 5)
    # An excerpt of fewer rows tells of passes of all of them.
    assert per_pass(group, replace(work, rows=3), SPEC, PROFILE) == pytest.approx(whole * 0.25 / 5.25)
    known = PROFILE.model_copy(update={"learner": LearnerProfile(beta=0.001, per_pass=0.1)})
    assert per_pass(group, work, SPEC, known) == pytest.approx((whole + 0.1) * 0.25 / 5.25)
    assert per_pass(group, replace(work, rows=1), SPEC, PROFILE) is None


def test_of_two_sizes_in_turn_the_first_call_is_of_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    monkeypatch.setattr(Excerpt, "__call__", lambda self: lambda: done.append(self.rows))
    config = DecoderConfig("llama", 32, 16, 1, 2, 1, 8, 32, 64)
    once = InTurn(Excerpt(config, 4, 8, True, 1), Excerpt(config, 2, 8, True, 1))()
    for _ in range(3):
        once()
    assert done == [2, 4, 2]


@pytest.mark.parametrize(("late", "tries", "known"), [(2, 5, True), (9, 9, False)])
def test_who_did_not_compute_at_once_is_asked_again(late: int, tries: int, known: bool) -> None:
    asked: list[Any] = []
    sampler = Asked("sampler", 2, 2.0, 3.0, asked)
    sampler.late = late
    groups: Any = {"learner": Asked("learner", 1, 1.0, 1.25, asked), "sampler": sampler}
    work: Any = {"learner": "passes"}
    assert contend(groups, work) == ({"learner": pytest.approx(0.25 / 2)} if known else {})
    assert asked.count(("repeat", "samplers", "passes")) == tries
    assert asked.count(("repeat", "learner 1", "passes")) == 3


def test_a_run_that_was_planned_by_a_profile_knows_what_was_tried_for_it(tmp_path: Path) -> None:
    meter = EngineMeter()
    for active in (1, 2, 4):
        meter.decoded(0.001, active, 0)
    sampler = Span("sampler 0", MEASURED, 0.0, 0.0, meter.drain() | {"tool_seconds": 0.0})
    learner = Span("learner 0", MEASURED, 0.0, 0.0, {"seconds": 2.0, "passes": 1.0})
    tried = PROFILE.model_copy(update={"learner": LearnerProfile(beta=0.001, contention=0.25, per_pass=0.5)})
    for before, expected, fixed in ((None, None, None), (PROFILE, None, None), (tried, 0.25, 0.5)):
        profiler = Profiler(SPEC, tmp_path, lambda said: None, before)
        profiler.measurements.step([Group(0, [0.0], [4], [6], [False], 0)], [sampler, learner])
        found = profiler.profile()
        assert found is not None
        assert (found.learner.contention, found.decode.contention) == (expected, None)
        assert found.learner.per_pass == fixed


def test_a_run_does_not_fail_of_what_is_tried_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    profiler = Profiler(SPEC, tmp_path, warned.append)

    def fails(profile: RunProfile) -> Tried:
        raise DeadlineExceeded("sampler 0: no answer after 60 s while computing at once")

    profiler.try_passes(fails)
    assert warned == [], "nothing is known, nothing is tried"
    monkeypatch.setattr(profiler, "profile", lambda: PROFILE)
    profiler.try_passes(fails)
    assert warned == [
        "what passes cost is not known: sampler 0: no answer after 60 s while computing at once"
    ]
    told: list[Any] = []
    monkeypatch.setattr(profiler.measurements, "contended", told.append)
    monkeypatch.setattr(profiler.measurements, "fixed", told.append)
    profiler.try_passes(lambda profile: None)
    assert told == []
    profiler.try_passes(lambda profile: Tried({"learner": profile.mean_length}, 0.5))
    assert told == [{"learner": 12.0}, 0.5]
