"""Rollouts on an engine that writes what the test says: turns, scores, failures, tool delays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from rl_api.errors import ModelError, RewardError, TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.rollout.engines.base import (
    GenerationProgress,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rl_trainer.rollout.loop import GroupFailure, GroupRollout, PromptTooLong, Rollouts
from rl_trainer.tasks import Prompt, Score, StepResult

EOS = 0
PARAMS = SamplingParams(max_new_tokens=8, stop_token_ids=frozenset({EOS}))


class Letters:
    """One token per character; 0 ends a text, and 1 begins one."""

    has_chat_template = False

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        if "\u2603" in text:
            raise ModelError("there is no token for a snowman")
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i)


@dataclass
class ScriptedEngine:
    """Finishes every waiting request in one step; `write` says what it generates for a prompt text."""

    script: dict[str, list[str]]
    slots: int = 8
    context: int = 64
    version: int = 3
    queue: list[GenerationRequest] = field(default_factory=list)
    aborted: list[Hashable] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    active = 0

    @property
    def waiting(self) -> int:
        return len(self.queue)

    def add(self, requests: Sequence[GenerationRequest]) -> None:
        if any(len(request.prompt) >= self.context for request in requests):
            raise TaskError("the prompt is longer than the context")
        self.queue.extend(requests)

    def step(self) -> list[GenerationResult]:
        results = []
        for request in self.queue:
            text = "".join(chr(i) for i in request.prompt)
            options = self.script[text]
            answer = options[request.id[1] % len(options)]
            tokens = np.array([ord(c) for c in answer] + [EOS], np.int32)[: request.params.max_new_tokens]
            self.seeds.append(request.seed)
            reason = "stop" if tokens[-1] == EOS else "length"
            logprobs = np.full(len(tokens), -0.5, np.float32)
            versions = np.full(len(tokens), self.version, np.int32)
            results.append(GenerationResult(request.id, tokens, logprobs, versions, reason))
        self.queue = []
        return results

    def interrupt(self, ids: Sequence[Hashable]) -> list[GenerationProgress]:
        self.abort(ids)
        return []

    def load_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        self.version = version

    def abort(self, ids: Sequence[Hashable]) -> None:
        self.aborted.extend(ids)
        self.queue = [request for request in self.queue if request.id not in set(ids)]


class Dialogue:
    """Says `=4` after the first turn and is done after the second."""

    def __init__(self, task: FakeTask, prompt: Prompt):
        self.task, self.prompt, self.turns = task, prompt, 0

    def reset(self) -> str:
        if self.prompt.index in self.task.no_reset:
            raise RewardError("reset raised")
        return self.prompt.text

    def step(self, completion: str) -> StepResult:
        self.turns += 1
        if self.turns == 2:
            return StepResult(done=True, score=Score(1.0 if completion == "4" else 0.0, completion == "4"))
        return StepResult(self.task.says.get(self.prompt.index, "=4"), delay_seconds=self.task.delay or 0.0)

    def final_score(self) -> Score:
        if self.prompt.index in self.task.no_final_score:
            raise RewardError("the final score raised")
        return Score(-1.0, False)


@dataclass
class FakeTask:
    delay: float | None = None
    fails_on: str | None = None
    says: dict[int, str] = field(default_factory=dict)
    no_reset: tuple[int, ...] = ()
    no_final_score: tuple[int, ...] = ()

    def score(self, prompt: Prompt, completion: str) -> Score:
        if completion == self.fails_on:
            raise RewardError("the reward raised")
        return Score(float(completion == prompt.answer), completion == prompt.answer)

    def environment(self, prompt: Prompt, member: int = 0) -> Dialogue | None:
        return None if self.delay is None else Dialogue(self, prompt)


def prompt(index: int = 7, text: str = "q") -> Prompt:
    return Prompt(index, text, "yes", {})


def rollouts(engine: ScriptedEngine, task: FakeTask, **options: object) -> Rollouts:
    return Rollouts(engine, Chat(Letters()), task, **options)  # type: ignore[arg-type]


def test_a_group_is_complete_when_all_members_are_scored():
    engine = ScriptedEngine({"q": ["yes", "no"]})
    flow = rollouts(engine, FakeTask())
    flow.start("ticket", prompt(), 2, PARAMS, seed=1)
    (group,) = flow.advance()
    assert isinstance(group, GroupRollout)
    assert group.key == "ticket"
    assert [member.score.reward for member in group.members] == [1.0, 0.0]
    first = group.trajectories()[0]
    assert first.tokens.tolist() == [ord("q"), *map(ord, "yes"), EOS]
    assert first.mask.tolist() == [False, True, True, True, True]
    assert first.versions.tolist() == [3] * 4
    assert len(first.log_probs) == 4
    assert flow.groups == 0


def test_scoring_counts_also_where_its_group_is_not_complete():
    now = [0.0]

    class Slow(FakeTask):
        def score(self, prompt: Prompt, completion: str) -> Score:
            now[0] += 2.0
            return super().score(prompt, completion)

    flow = rollouts(ScriptedEngine({"q": ["yes", "no"]}), Slow(), clock=lambda: now[0])
    flow.start("ticket", prompt(), 2, PARAMS, seed=1)
    flow.advance()
    assert flow.drain_score_seconds() == 4.0
    assert flow.drain_score_seconds() == 0.0


def test_seeds_differ_by_member_and_prompt_and_repeat_for_the_same_ones():
    def seeds(index: int, seed: int) -> list[int]:
        engine = ScriptedEngine({"q": ["yes"]})
        flow = rollouts(engine, FakeTask())
        flow.start("t", prompt(index), 3, PARAMS, seed=seed)
        flow.advance()
        return engine.seeds

    assert len(set(seeds(1, 0) + seeds(2, 0) + seeds(1, 1))) == 9
    assert seeds(1, 0) == seeds(1, 0)


def test_turns_append_observations_unsampled_and_never_tokenise_again():
    engine = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]})
    flow = rollouts(engine, FakeTask(delay=0.0), max_turns=4)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    assert flow.advance() == []
    (group,) = flow.advance()
    (trajectory,) = group.trajectories()
    assert trajectory.tokens.tolist() == [ord(c) if c != "\0" else EOS for c in "q2+2\0=44\0"]
    assert trajectory.mask.tolist() == [False, True, True, True, True, False, False, True, True]
    assert group.members[0].score == Score(1.0, True)
    assert engine.seeds[0] != engine.seeds[1]


def test_a_slow_tool_does_not_hold_up_the_others():
    now = [0.0]
    engine = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]})
    flow = rollouts(engine, FakeTask(delay=5.0), max_turns=4, clock=lambda: now[0])
    flow.start("slow", prompt(), 1, PARAMS, seed=0)
    flow.advance()
    assert (flow.waiting_for_tools, flow.members_in_engine, flow.reply_is_due) == (1, 0, False)
    assert flow.seconds_to_next_reply() == 5.0
    now[0] = 5.0
    assert flow.reply_is_due
    (group,) = flow.advance()
    assert group.key == "slow"


def test_max_turns_and_the_token_budget_end_a_dialogue_with_its_final_score():
    engine = ScriptedEngine({"q": ["2+2"]})
    flow = rollouts(engine, FakeTask(delay=0.0), max_turns=1)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    (group,) = flow.advance()
    assert group.members[0].score == Score(-1.0, False)
    budget = SamplingParams(max_new_tokens=4, stop_token_ids=frozenset({EOS}))
    flow = rollouts(ScriptedEngine({"q": ["2+2"]}), FakeTask(delay=0.0), max_turns=9)
    flow.start("t", prompt(), 1, budget, seed=0)
    (group,) = flow.advance()
    assert group.members[0].score == Score(-1.0, False)


@pytest.mark.parametrize("context", [6, 7, 8])
def test_an_observation_that_fills_the_context_ends_the_dialogue_and_stays_out(context):
    engine = ScriptedEngine({"q": ["2+2"]}, context=context)
    flow = rollouts(engine, FakeTask(delay=0.0, says={7: "=" * (context - 5)}), max_turns=4)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    (group,) = flow.advance()
    assert group.members[0].truncated
    assert group.members[0].score == Score(-1.0, False)
    (trajectory,) = group.trajectories()
    assert trajectory.tokens.tolist() == [ord(c) if c != "\0" else EOS for c in "q2+2\0"]
    assert trajectory.truncated


def test_an_observation_that_leaves_room_for_one_token_is_read():
    engine = ScriptedEngine({"q": ["2+2"], "q2+2\0=4": ["4"]}, context=8)
    flow = rollouts(engine, FakeTask(delay=0.0), max_turns=4)
    flow.start("t", prompt(), 1, PARAMS, seed=0)
    assert flow.advance() == []
    (group,) = flow.advance()
    assert group.members[0].score.exact


def test_a_failing_reward_gives_up_its_group_only():
    engine = ScriptedEngine({"q": ["yes", "bad", "no"], "r": ["yes"]})
    flow = rollouts(engine, FakeTask(fails_on="bad"))
    flow.start("broken", prompt(1), 3, PARAMS, seed=0)
    flow.start("good", prompt(2, "r"), 2, PARAMS, seed=0)
    failure, group = flow.advance()
    assert isinstance(failure, GroupFailure)
    assert failure.key == "broken"
    assert "raised" in str(failure.error)
    assert isinstance(group, GroupRollout)
    assert group.key == "good"
    assert flow.groups == 0


def dialogues(task: FakeTask, context: int = 64) -> tuple[Rollouts, list[float]]:
    """Prompts 1 and 2 (of texts q and r), both of which wait five seconds for a first answer."""
    now, script = [0.0], {"q": ["2+2"], "r": ["2+2"], "q2+2\0=4": ["4"], "r2+2\0=4": ["4"], "s": ["2+2"]}
    flow = rollouts(ScriptedEngine(script, context=context), task, max_turns=4, clock=lambda: now[0])
    flow.start("one", prompt(1, "q"), 1, PARAMS, seed=0)
    flow.start("two", prompt(2, "r"), 1, PARAMS, seed=0)
    assert flow.advance() == []
    return flow, now


def test_a_final_score_that_raises_gives_up_its_group_only():
    flow, now = dialogues(FakeTask(delay=5.0, says={1: "=" * 60}, no_final_score=(1,)))
    now[0] = 5.0
    failure, group = flow.advance()
    assert isinstance(failure, GroupFailure)
    assert (failure.key, str(failure.error)) == ("one", "the final score raised")
    assert isinstance(group, GroupRollout)
    assert (group.key, group.members[0].score) == ("two", Score(1.0, True))
    assert (flow.groups, flow.waiting_for_tools, flow.members_in_engine) == (0, 0, 0)


def test_a_final_score_that_raises_while_another_group_is_answered_is_not_blamed_on_that():
    flow, now = dialogues(FakeTask(delay=5.0, says={1: "=" * 60}, no_final_score=(1,)))
    flow.start("three", prompt(3, "s"), 1, PARAMS, seed=0)

    class Late(ScriptedEngine):
        """The answers of the first two become due while the third is scored."""

        def step(self) -> list[GenerationResult]:
            now[0] = 5.0
            return super().step()

    flow.engine.__class__ = Late
    (failure,) = flow.advance()
    assert isinstance(failure, GroupFailure)
    assert failure.key == "one"
    assert (flow.groups, flow.members_in_engine, flow.waiting_for_tools) == (2, 1, 1)
    (group,) = flow.advance()
    assert isinstance(group, GroupRollout)
    assert group.key == "two"


def test_an_observation_without_a_token_gives_up_its_group_only():
    flow, now = dialogues(FakeTask(delay=5.0, says={2: "\u2603"}))
    now[0] = 5.0
    failure, group = flow.advance()
    assert (failure.key, str(failure.error)) == ("two", "there is no token for a snowman")
    assert (group.key, group.members[0].score) == ("one", Score(1.0, True))


def test_an_environment_that_does_not_begin_gives_up_its_group_only():
    flow = rollouts(ScriptedEngine({}), FakeTask(delay=0.0, no_reset=(1,)))
    flow.start("one", prompt(1), 2, PARAMS, seed=0)
    assert flow.reply_is_due
    (failure,) = flow.advance()
    assert (failure.key, str(failure.error)) == ("one", "reset raised")
    assert (flow.groups, flow.reply_is_due) == (0, False)


def test_a_prompt_that_does_not_fit_is_refused_and_leaves_nothing_behind():
    flow = rollouts(ScriptedEngine({}, context=4), FakeTask())
    with pytest.raises(PromptTooLong, match="longer than the context"):
        flow.start("t", prompt(text="much too long"), 2, PARAMS, seed=0)
    assert flow.groups == 0


def test_abort_forgets_what_is_unwanted():
    flow = rollouts(ScriptedEngine({"q": ["yes"]}), FakeTask())
    for key in ("a", "b"):
        flow.start(key, prompt(), 2, PARAMS, seed=0)
    flow.abort(lambda key: key == "a")
    assert (flow.groups, flow.members_in_engine) == (1, 2)
    (group,) = flow.advance()
    assert group.key == "b"


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
    assert not flow.may_advance
    flow.start("second", prompt(8, "r"), 2, PARAMS, seed=0)
    assert flow.advance() == []
    assert [text for text, _ in task.asked] == ["a", "bb", "c", "dd"]
    now[0] = 3.0
    for number, (_, score) in enumerate(task.asked[:2]):
        score.set_result(Score(float(number), False))
    assert woken == [True, True] and flow.reply_is_due
    (group,) = flow.deliver_scores()
    assert group.key == "first"
    assert [member.score.reward for member in group.members] == [0.0, 1.0]
    assert group.awaited_seconds == 3.0
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


def test_a_score_that_is_awaited_is_asked_for_again_where_its_group_goes():
    engine, task = ScriptedEngine({"q": ["a"]}), ScoredLater()
    first, second = rollouts(engine, task), rollouts(ScriptedEngine({}), task)
    first.start("t", prompt(), 2, PARAMS, seed=0)
    first.advance()
    (begun,) = first.hand_over(lambda key: True)
    task.asked[0][1].set_result(Score(7.0, False))
    assert (first.advance(), first.groups) == ([], 0)
    second.start("t", prompt(), 2, PARAMS, 0, begun.members)
    assert [text for text, _ in task.asked] == ["a"] * 4
    for _, score in task.asked[2:]:
        score.set_result(Score(0.5, False))
    (group,) = second.advance()
    assert [member.score.reward for member in group.members] == [0.5, 0.5]
    assert second.engine.seeds == [], "nothing is sampled again"
