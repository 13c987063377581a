"""Environments and models that answer later, on an engine that writes what the test says: decoding goes on meanwhile."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from buffers import make
from scripted_rollouts import PARAMS, Dialogue, FakeTask, ScriptedEngine, prompt, rollouts

from rl_api.errors import RewardError
from rl_trainer.observe.timeline import SpanRecorder
from rl_trainer.rollout.actor import SamplerActor
from rl_trainer.rollout.engines.base import GenerationResult
from rl_trainer.rollout.group_rollout import GroupFailure, GroupRollout
from rl_trainer.rollout.handed import load_begun
from rl_trainer.tasks import Prompt, Score, StepResult
from rl_trainer.trajectory import Group


class Later(Dialogue):
    """Answers when the test says so."""

    def step(self, completion: str) -> Future[StepResult]:
        self.task.asked.append(Future())
        return self.task.asked[-1]


@dataclass
class LaterTask(FakeTask):
    asked: list[Future[StepResult]] = field(default_factory=list)

    def environment(self, prompt: Prompt, member: int = 0) -> Dialogue | None:
        return Later(self, prompt)


def test_an_answer_that_comes_later_stops_nobody_and_wakes():
    engine, task, woken = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]}), LaterTask(), []
    flow = rollouts(engine, task, max_turns=4, wake=lambda: woken.append(True))
    flow.start("t", prompt(), 2, PARAMS, seed=0)
    assert flow.advance() == []
    assert (flow.waiting_for_tools, flow.members_in_engine, flow.reply_is_due) == (2, 0, False)
    task.asked[1].set_result(StepResult("=4"))
    assert woken == [True]
    assert flow.reply_is_due
    assert flow.advance() == []
    assert (flow.waiting_for_tools, len(task.asked)) == (2, 3)
    for answer in (task.asked[0], task.asked[2]):
        answer.set_result(StepResult(done=True, score=Score(1.0, True)))
    (group,) = flow.advance()
    assert [member.score.reward for member in group.members] == [1.0, 1.0]
    assert [len(trajectory.tokens) for trajectory in group.trajectories()] == [5, 9]


def test_a_delay_of_a_later_answer_begins_when_it_is_there():
    now = [0.0]
    engine, task = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]}), LaterTask()
    flow = rollouts(engine, task, max_turns=4, clock=lambda: now[0])
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    flow.advance()
    now[0] = 5.0
    task.asked[0].set_result(StepResult("=4", delay_seconds=2.0))
    flow.advance()
    assert flow.seconds_to_next_reply() == 2.0


def test_an_answer_waits_until_it_is_there_or_until_the_decode_step_under_way_is_over():
    now = [0.0]

    class Slow(ScriptedEngine):
        """A step takes a second, in which the first answer comes."""

        def step(self):
            now[0] += 0.75
            if task.asked and not task.asked[0].done():
                task.asked[0].set_result(StepResult("=4"))
            now[0] += 0.25
            return super().step()

    engine, task = Slow({"q": ["2+2"], "q2+2\0=4": ["4"]}), LaterTask()
    flow = rollouts(engine, task, max_turns=4, clock=lambda: now[0])
    flow.start("t", prompt(), 2, PARAMS, seed=0)
    flow.advance()  # both ask at 1.0
    now[0] = 3.0
    task.asked[1].set_result(StepResult("=4", delay_seconds=0.5))  # 2 s, and half a second's delay
    now[0] = 10.0  # others had the device
    flow.advance()
    now[0] = 20.0
    flow.advance()  # the second one's next turn is decoded until 21.0, and the first answer comes meanwhile
    for later in task.asked[2:]:
        later.set_result(StepResult(done=True, score=Score(1.0, True)))
    flow.advance()
    flow.advance()
    now[0] += 1.0
    task.asked[3].set_result(StepResult(done=True, score=Score(1.0, True)))
    (group,) = flow.advance()
    assert (group.waited.count, group.waited.seconds) == (4, 2.0 + 20.0 + 0.0 + 1.0)
    assert group.tool_seconds == group.waited.seconds + 0.5


@pytest.mark.parametrize("late", [False, True])
def test_a_later_answer_that_fails_is_the_end_of_its_group(late: bool):
    engine, task = ScriptedEngine({"q": ["2+2"], "p": ["1"]}), LaterTask()
    flow = rollouts(engine, task, max_turns=4)
    flow.start("bad", prompt(), 2, PARAMS, seed=0)
    flow.start("good", prompt(8, "p"), 1, PARAMS, seed=0)
    flow.advance()
    task.asked[0].set_exception(RewardError("it hung"))
    if late:  # than the failure
        task.asked[1].set_result(StepResult("=4"))
    task.asked[2].set_result(StepResult(done=True, score=Score(1.0, True)))
    failure, group = flow.advance()
    assert isinstance(failure, GroupFailure)
    assert (failure.key, str(failure.error)) == ("bad", "it hung")
    assert group.key == "good"
    assert (flow.groups, flow.waiting_for_tools) == (0, 0)


def test_a_group_that_is_not_wanted_any_more_waits_for_nothing():
    engine, task = ScriptedEngine({"q": ["2+2"]}), LaterTask()
    flow = rollouts(engine, task, max_turns=4)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    flow.advance()
    flow.abort(lambda key: True)
    task.asked[0].set_result(StepResult("=4"))
    assert (flow.advance(), flow.waiting_for_tools) == ([], 0)


@dataclass
class ScoredLater(FakeTask):
    """Scores when the test says so."""

    asked: list[tuple[str, Future[Score]]] = field(default_factory=list)

    def score(self, prompt: Prompt, completion: str) -> Future[Score]:  # type: ignore[override]
        self.asked.append((completion, Future()))
        return self.asked[-1][1]


def test_decoding_goes_on_while_scores_are_awaited():
    now, woken = [0.0], []
    engine, task = ScriptedEngine({"q": ["a", "bb"], "r": ["c", "dd"]}), ScoredLater()
    flow = rollouts(engine, task, clock=lambda: now[0], wake=lambda: woken.append(True))
    flow.start("first", prompt(), 2, PARAMS, seed=0)
    assert flow.advance() == []
    assert (flow.groups, flow.members_in_engine, flow.waiting_for_tools) == (1, 0, 0), "their slots are free"
    assert (flow.waiting_for_scores, flow.may_advance) == (2, False)
    flow.start("second", prompt(8, "r"), 2, PARAMS, seed=0)
    assert flow.advance() == []
    assert [text for text, _ in task.asked] == ["a", "bb", "c", "dd"]
    now[0] = 3.0
    for number, (_, score) in enumerate(task.asked[:2]):
        score.set_result(Score(float(number), False))
    assert woken == [True, True] and flow.reply_is_due
    (group,) = flow.deliver_scores()
    assert (flow.waiting_for_scores, flow.drain_score_seconds()) == (2, 0.0), "nobody was kept from decoding"
    assert group.key == "first"
    assert [member.score.reward for member in group.members] == [0.0, 1.0]
    task.asked[2][1].set_exception(RewardError("the model is gone"))
    task.asked[3][1].set_result(Score(1.0, True))
    (failed,) = flow.advance()
    assert isinstance(failed, GroupFailure)
    assert (failed.key, str(failed.error)) == ("second", "the model is gone")
    assert flow.groups == 0


def test_the_end_of_a_dialogue_is_scored_later_too():
    engine, task = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]}), LaterTask()
    flow = rollouts(engine, task, max_turns=4)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    flow.advance()
    score: Future[Score] = Future()
    task.asked[0].set_result(StepResult(done=True, score=score))
    assert flow.advance() == []
    assert flow.hand_over(lambda key: True) == [], "what the environment knows stays here"
    score.set_result(Score(0.5, False))
    (group,) = flow.advance()
    assert group.members[0].score == Score(0.5, False)


class OneAtATime(ScriptedEngine):
    """Finishes one request in each step."""

    def step(self) -> list[GenerationResult]:
        self.queue, rest = self.queue[:1], self.queue[1:]
        found = super().step()
        self.queue = rest
        return found


def test_a_score_that_is_awaited_is_asked_for_again_where_its_group_goes():
    task = ScoredLater()
    first, second = (rollouts(OneAtATime({"q": ["a", "b"]}), task) for _ in range(2))
    first.start("t", prompt(), 2, PARAMS, seed=0)
    first.advance()
    (begun,) = first.hand_over(lambda key: True)
    task.asked[0][1].set_result(Score(7.0, False))
    assert (first.advance(), first.groups) == ([], 0)
    second.start("t", prompt(), 2, PARAMS, 0, begun.members)
    assert [text for text, _ in task.asked] == ["a", "a"]
    second.advance()
    assert [text for text, _ in task.asked] == ["a", "a", "b"]
    for _, score in task.asked[1:]:
        score.set_result(Score(0.5, False))
    (group,) = second.advance()
    assert [member.score.reward for member in group.members] == [0.5, 0.5]
    assert len(second.engine.seeds) == 1, "what was sampled is not sampled again"


def test_a_sampler_that_only_waits_for_scores_keeps_their_groups_and_each_text_is_scored_once():
    """It has nothing to compute, and gives its device back: neither it nor the buffer gives those groups to others."""
    task = ScoredLater()
    here, there = (rollouts(OneAtATime({"q": ["a", "b"], "r": ["c", "d"]}), task) for _ in range(2))
    state = make(samplers=2, max_staleness=1, shared_samplers=1, all_move=True)
    sampler: Any = SamplerActor.__new__(SamplerActor)
    sampler.rank, sampler.spans, sampler.rollouts = 0, SpanRecorder("sampler 0"), here
    sampler._supply = SimpleNamespace(give_up_tickets=list)

    def hand_over(rank: int, groups: Any, stay: Any, said: Any) -> None:
        for one in stay:
            state.keep(rank, one.group_id, one.issue)
        state.hand_over(rank, groups)

    sampler.buffer = SimpleNamespace(hand_over=hand_over)
    waits, unfinished = state.acquire(0, 2)
    here.start(waits, prompt(0, "q"), 2, PARAMS, seed=0)
    here.start(unfinished, prompt(1, "r"), 2, PARAMS, seed=0)
    for _ in range(3):
        here.advance()
    sampler._hand_over()
    state.learning = True
    state.recall()
    (moved,) = state.acquire(1, 9)[:1]
    assert moved.group_id == unfinished.group_id
    assert all(one.group_id != waits.group_id for one in state.acquire(1, 9))
    there.start(moved, prompt(1, "r"), 2, PARAMS, 0, load_begun(moved.begun))
    while there.members_in_engine:
        there.advance()
    assert [text for text, _ in task.asked] == ["a", "b", "c", "c", "d"], "but of the one that moved"
    for _, score in task.asked:
        score.set_result(Score(1.0, False))
    for rank, flow in ((0, here), (1, there)):
        (group,) = flow.deliver_scores()
        assert isinstance(group, GroupRollout)
        ticket = group.key
        assert state.put(rank, Group.of(ticket.group_id, group.trajectories(), issue=ticket.issue)).accepted
    assert not state.kept
