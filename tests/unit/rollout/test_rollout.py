"""Rollouts on an engine that writes what the test says: turns, scores, failures, tool delays."""

from __future__ import annotations

import pytest
from scripted_rollouts import EOS, PARAMS, FakeTask, ScriptedEngine, prompt, rollouts

from rl_trainer.rollout.engines.base import GenerationResult, SamplingParams
from rl_trainer.rollout.group_rollout import GroupFailure, GroupRollout
from rl_trainer.rollout.loop import PromptTooLong, Rollouts
from rl_trainer.tasks import Prompt, Score


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
