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
from rl_trainer.flow.worker import Worker
from rl_trainer.observe.timeline import MEASURED, Span
from rl_trainer.profile.meters import EngineMeter
from rl_trainer.run.profiler import Profiler
from rl_trainer.run.trials import InTurn, contend, excerpts, fixed_tokens
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
        self.besides: list[float] = []  # of the first times that all are asked
        self.late = 0  # times that it begins when the others are done
        self.fixed, self.row = 0.25, 0.5  # seconds of a pass, and of each of its rows
        self.slow = 1.0  # how much longer the first of them takes

    def one(self, rank: int, method: str, work: Any, seconds: float, least: int = 2) -> Any:
        self.asked.append((method, f"{self.role} {rank}", work))
        if not isinstance(work, InTurn):
            return self._said([self.alone])
        begin, told = 0.0, list[tuple[float, float]]()
        for rows in [work.work.rows, work.few] * (least // 2):
            took = (self.fixed + self.row * rows) * (self.slow if not told else 1.0)
            told.append((begin, begin + took))
            begin += took
        return SimpleNamespace(wait=lambda phase, timeout: [told])

    def all(self, method: str, work: str, seconds: float) -> Any:
        self.asked.append((method, f"{self.role}s", work))
        self.late -= 1
        beside = self.besides.pop(0) if self.besides else self.beside
        return self._said([beside] * len(self.actors), 100.0 if self.late >= 0 else 0.0)

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


def test_what_of_a_pass_does_not_grow_is_worth_so_many_tokens(tmp_path: Path) -> None:
    """A pass of r rows of 20 tokens takes 0.25 + 0.5 r seconds: as much more as half a row, 10 tokens."""
    (tmp_path / "config.json").write_text(CONFIG)
    work, asked = excerpts(SPEC, PROFILE, tmp_path)["learner"], list[Any]()
    group: Any = Asked("learner", 2, 0.0, 0.0, asked)
    assert fixed_tokens(group, work) == pytest.approx(10)
    ((_, name, pieces),) = asked
    assert (name, pieces.work.rows, pieces.few) == ("learner 1", 10, 5)
    # An excerpt of fewer rows tells the same, and one row cannot.
    assert fixed_tokens(group, replace(work, rows=3)) == pytest.approx(10)
    assert fixed_tokens(group, replace(work, rows=1)) is None


@pytest.mark.parametrize(
    ("fixed", "row", "slow", "expected"),
    [
        (0.25, 0.5, 4, 10),  # one pair is off by much
        (-1.0, 0.5, 1, 0),  # fewer rows took less than their part
        (9.0, 0.0, 1, None),  # as long with half of them
        (9.0, -0.1, 1, None),
        (9.0, 0.05, 1, None),  # 95 %
    ],
)
def test_what_a_busy_machine_does_to_a_trial(
    fixed: float, row: float, slow: float, expected: float | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    work = excerpts(SPEC, PROFILE, tmp_path)["learner"]
    group: Any = Asked("learner", 1, 0.0, 0.0, [])
    group.fixed, group.row, group.slow = fixed, row, slow
    assert fixed_tokens(group, work) == (expected if expected is None else pytest.approx(expected))


def test_of_two_sizes_in_turn_both_were_cold_once() -> None:
    done: list[int | None] = []

    def work() -> Any:
        return lambda most=None: done.append(most)

    work.rows = 4  # type: ignore[attr-defined]
    once = InTurn(work, 2)()  # type: ignore[arg-type]
    for _ in range(3):
        once()
    assert done == [None, 2, 2, 4, 2]


def test_a_worker_makes_as_many_pairs_as_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    work = excerpts(SPEC, PROFILE, tmp_path)["learner"]
    assert len(Worker("learner 0").repeat(InTurn(work, 5), 0.0, 8)) == 8


@pytest.mark.parametrize("besides", [[1.25, 4.0, 1.0], [1.0, 4.0, 1.25], [4.0, 1.25, 1.0]])
def test_of_several_tries_the_middle_one_counts(besides: list[float]) -> None:
    learner = Asked("learner", 1, 1.0, 1.25, [])
    groups: Any = {"learner": learner, "sampler": Asked("sampler", 2, 2.0, 3.0, [])}
    work: Any = {"learner": "passes"}
    expected = contend(groups, work)
    learner.besides = besides
    assert contend(groups, work) == expected


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
    tried = PROFILE.model_copy(
        update={"learner": LearnerProfile(beta=0.001, contention=0.25, per_pass=0.004)}
    )
    for before, expected, fixed in ((None, None, None), (PROFILE, None, None), (tried, 0.25, 4.0)):
        profiler = Profiler(SPEC, tmp_path, lambda said: None, before)
        profiler.measurements.step([Group(0, [0.0], [4], [6], [False], 0)], [sampler, learner])
        found = profiler.profile()
        assert found is not None
        assert (found.learner.contention, found.decode.contention) == (expected, None)
        # Of 6 tokens, which took a second.
        assert found.learner.per_pass == (fixed and pytest.approx(fixed / (6 + fixed)))


def test_a_run_does_not_fail_of_what_is_tried_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    profiler = Profiler(SPEC, tmp_path, warned.append)

    def fails(profile: RunProfile) -> Any:
        raise DeadlineExceeded("sampler 0: no answer after 60 s while computing at once")

    profiler.try_contention(fails)
    assert warned == [], "nothing is known, nothing is tried"
    monkeypatch.setattr(profiler, "profile", lambda: PROFILE)
    profiler.try_contention(fails)
    profiler.try_fixed(fails)
    why = "is not known: sampler 0: no answer after 60 s while computing at once"
    assert warned == [
        f"what computing at once costs {why}",
        f"what passes cost however few tokens they have {why}",
    ]
    told: list[Any] = []
    monkeypatch.setattr(profiler.measurements, "contended", told.append)
    monkeypatch.setattr(profiler.measurements, "fixed", told.append)
    profiler.try_contention(lambda profile: None)
    profiler.try_fixed(lambda profile: None)
    assert told == []
    profiler.try_contention(lambda profile: {"learner": profile.mean_length})
    profiler.try_fixed(lambda profile: 0.0)
    assert told == [{"learner": 12.0}, 0.0]
