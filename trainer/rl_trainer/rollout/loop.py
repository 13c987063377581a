"""Rollouts: from a ticket to a scored group, on any engine. No Ray here: the sampler actor carries it.

A group is one prompt and its members. Every member is a `Trajectory` that grows by turns: the engine continues it,
an environment (if the task has one) answers, and the answer's tokens are appended unsampled. Token ids are only ever
appended, never decoded and tokenised again.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from rl_api.errors import InvalidConfig, ModelError, RewardError, RLTrainError, TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.model.tokenizer import Tokenizer
from rl_trainer.rollout.engines.base import (
    Engine,
    GenerationProgress,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rl_trainer.rollout.group_rollout import GroupFailure, GroupRollout, Member
from rl_trainer.tasks import Prompt, Score, StepResult, Task
from rl_trainer.tasks.types import Scored

# What a reward, an environment or its words can be the reason of.
_OF_ONE_GROUP = (RewardError, TaskError, ModelError)


@dataclass(eq=False)
class _Awaited:
    """An environment's answer that comes later; `asked`, `answered`: seconds of the clock."""

    number: int
    m: int
    answer: Future[StepResult]
    asked: float
    answered: float | None = None


class PromptTooLong(TaskError):
    """A prompt leaves no room for a token in the model's context."""


@dataclass
class Rollouts:
    """Keeps an engine busy with groups.

    Attributes:
        clock: monotonic seconds; tool replies wait on it without stopping the other members.
        wake: called, on any thread, when an environment or a model that answers later has done so.
    """

    engine: Engine
    chat: Chat
    task: Task
    max_turns: int = 1
    clock: Callable[[], float] = time.monotonic
    wake: Callable[[], None] = lambda: None
    _groups: dict[int, GroupRollout] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _due: list[tuple[float, int, int, str]] = field(default_factory=list)
    _awaited: list[_Awaited] = field(default_factory=list)
    _asked: list[tuple[int, int, Future[Score]]] = field(default_factory=list)
    _complete: list[GroupRollout | GroupFailure] = field(default_factory=list)
    _score_seconds: float = 0.0

    @property
    def groups(self) -> int:
        """Groups under way."""
        return len(self._groups)

    @property
    def keys(self) -> list[object]:
        """Of the groups under way."""
        return [group.key for group in self._groups.values()]

    @property
    def members_in_engine(self) -> int:
        """Members that hold or wait for a slot of the engine."""
        return self.engine.active + self.engine.waiting

    @property
    def waiting_for_tools(self) -> int:
        """Members whose environment has not answered yet."""
        return len(self._due) + len(self._awaited)

    @property
    def waiting_for_scores(self) -> int:
        """Members that a model in a worker elsewhere has not scored yet."""
        return len(self._asked)

    def start(
        self,
        key: object,
        prompt: Prompt,
        members: int,
        params: SamplingParams,
        seed: int,
        begun: Sequence[Member] | None = None,
    ) -> None:
        """Begins a group of `members` trajectories; member m draws with a key made of (seed, prompt index, m).

        `begun`: the members of a group that others have handed over, which goes on where it was.

        Raises:
            PromptTooLong: the prompt does not fit into the model's context.
            TaskError: the model knows no such prompt.
        """
        number = next(self._numbers)
        group = self._groups[number] = GroupRollout(key, prompt, params, [], self.clock(), members)
        with self._alone(number, (RewardError,)):
            if begun is None:
                group.members = [self._member(prompt, m, seed) for m in range(members)]
            else:
                group.members = [
                    replace(member, seed=_key(prompt, m, seed)) for m, member in enumerate(begun)
                ]
            unscored = [m for m, member in enumerate(group.members) if member.score is None]
            group.open_members = len(unscored)
            unfinished = [m for m in unscored if group.members[m].turns == 0]
            for m in set(unscored).difference(unfinished):  # whoever began it had still to hear its score
                self._finish(number, m, self.task.score(prompt, group.members[m].text))
            try:
                self.engine.add([self._request(number, m) for m in unfinished])
            except TaskError as error:
                longest = max(len(member.tokens) for member in group.members)
                kind = PromptTooLong if longest >= self.engine.context else TaskError
                raise kind(_refused(prompt, str(error))) from None

    def advance(self) -> list[GroupRollout | GroupFailure]:
        """One engine step and all tool replies that are due; returns the groups that are complete, or failed."""
        self._deliver_replies()
        if self.engine.active or self.engine.waiting:
            for result in self.engine.step():
                self._take(result)
            self._deliver_replies(stepped=True)
        return self.deliver_scores()

    def deliver_scores(self) -> list[GroupRollout | GroupFailure]:
        """Takes the scores that have come; returns as `advance`. The engine is left alone."""
        for entry in [entry for entry in self._asked if entry[2].done()]:
            if entry in self._asked:  # else its group was forgotten in this very loop
                self._asked.remove(entry)
                number, m, score = entry
                with self._alone(number):
                    self._finish(number, m, score.result())
        finished, self._complete = self._complete, []
        return finished

    def drain_score_seconds(self) -> float:
        """That scoring has taken since the last call."""
        seconds, self._score_seconds = self._score_seconds, 0.0
        return seconds

    @property
    def may_advance(self) -> bool:
        """Whether there is anything to do now for what was begun."""
        return self.members_in_engine > 0 or self.reply_is_due

    @property
    def reply_is_due(self) -> bool:
        """Whether a tool's answer, a score, or a group that failed as it began, can be handed on now."""
        if self._complete or any(one.answer.done() for one in self._awaited):
            return True
        if any(score.done() for _, _, score in self._asked):
            return True
        return bool(self._due) and self._due[0][0] <= self.clock()

    def seconds_to_next_reply(self) -> float | None:
        """How long until a tool answers, if any member waits for one and knows; see `wake`."""
        return max(0.0, self._due[0][0] - self.clock()) if self._due else None

    @property
    def can_move(self) -> bool:
        """Whether others can go on with all groups under way, see `hand_over`."""
        return all(member.environment is None for group in self._groups.values() for member in group.members)

    def hand_over(self, wanted: Callable[[object], bool]) -> list[GroupRollout]:
        """Takes the groups under way with such a key out, with what their members have so far, so that others may `start`
        them from there. Groups with an environment stay: what that knows cannot be moved. So do those of which only scores
        are awaited: these need no engine, and others would ask for them again."""
        numbers = [
            number
            for number, group in self._groups.items()
            if wanted(group.key) and self._goes_on_elsewhere(number, group)
        ]
        groups = {number: self._groups.pop(number) for number in numbers}
        self._asked = [entry for entry in self._asked if entry[0] not in groups]
        ids = [(number, m) for number, group in groups.items() for m in range(len(group.members))]
        for found in self.engine.interrupt(ids):
            number, m = cast(tuple[int, int], found.id)
            _append(groups[number].members[m], found)
            groups[number].members[m].begun.extend(found.tokens.tolist())
        return list(groups.values())

    def _goes_on_elsewhere(self, number: int, group: GroupRollout) -> bool:
        """Whether there is something left to sample of it, and no environment."""
        asked = {m for asked, m, _ in self._asked if asked == number}
        unsampled = any(member.score is None and m not in asked for m, member in enumerate(group.members))
        return unsampled and all(member.environment is None for member in group.members)

    def abort(self, unwanted: Callable[[object], bool]) -> None:
        """Forgets the groups under way with such a key."""
        for number in [number for number, group in self._groups.items() if unwanted(group.key)]:
            self._forget(number)

    def _member(self, prompt: Prompt, m: int, seed: int) -> Member:
        environment = self.task.environment(prompt, m)
        opening = environment.reset() if environment else None
        tokens = self.chat.prompt(opening or prompt.content)
        return Member(
            seed=_key(prompt, m, seed),
            tokens=tokens,
            sampled=[False] * len(tokens),
            environment=environment,
        )

    def _request(self, number: int, m: int) -> GenerationRequest:
        group = self._groups[number]
        member = group.members[m]
        remaining = group.params.max_new_tokens - len(member.versions)
        params = group.params
        if remaining != params.max_new_tokens:
            params = replace(params, max_new_tokens=remaining)
        # The turn is part of the key: a later turn must not repeat the draws of the one before.
        seed = (member.seed + 0x9E3779B9 * member.turns) & 0x7FFFFFFFFFFFFFFF
        tokens = np.asarray(member.tokens, dtype=np.int32)
        return GenerationRequest((number, m), tokens, params, seed, drawn=len(member.begun))

    def _take(self, result: GenerationResult) -> None:
        number, m = cast(tuple[int, int], result.id)
        group = self._groups.get(number)
        if group is None:  # forgotten in this very step, because another member's reward failed
            return
        member = group.members[m]
        _append(member, result)
        turn, member.begun = [*member.begun, *result.tokens.tolist()], []
        member.turns += 1
        member.truncated = result.finish_reason == "length"
        stopped = turn and turn[-1] in group.params.stop_token_ids
        text = self.chat.tokenizer.decode(turn[:-1] if stopped else turn)
        member.text += text
        with self._alone(number):
            self._score_or_continue(number, m, text)

    @contextmanager
    def _alone(self, number: int, errors: tuple[type[RLTrainError], ...] = _OF_ONE_GROUP) -> Iterator[None]:
        """What goes wrong in the block is the end of this group and of no other; the time it takes counts as scoring."""
        group, started = self._groups[number], self.clock()
        try:
            yield
        except errors as error:
            self._forget(number)
            self._complete.append(GroupFailure(group.key, error))
        except BaseException:
            self._forget(number)
            raise
        finally:
            self._score_seconds += self.clock() - started

    def _score_or_continue(self, number: int, m: int, text: str) -> None:
        group = self._groups[number]
        member = group.members[m]
        if member.environment is None:
            self._finish(number, m, self.task.score(group.prompt, text))
            return
        reply = member.environment.step(text)
        if isinstance(reply, Future):
            awaited = _Awaited(number, m, reply, self.clock())
            self._awaited.append(awaited)
            reply.add_done_callback(lambda _: self._answered(awaited))
        else:
            self._replied(number, m, reply)

    def _answered(self, awaited: _Awaited) -> None:
        awaited.answered = self.clock()
        self.wake()

    def _replied(self, number: int, m: int, reply: StepResult) -> None:
        """What an environment has answered to the member's turn."""
        group = self._groups[number]
        member = group.members[m]
        assert member.environment is not None
        room = group.params.max_new_tokens - len(member.versions)
        if reply.done or member.turns >= self.max_turns or room < 1 or member.truncated:
            self._finish(number, m, reply.score or member.environment.final_score())
        else:
            group.tool_seconds += reply.delay_seconds
            heapq.heappush(self._due, (self.clock() + reply.delay_seconds, number, m, reply.observation))

    def _deliver_replies(self, stepped: bool = False) -> None:
        """Hands observations that are there, and whose delay is over, to their members and queues the next turn.

        `stepped`: the engine was in a step until now, and an answer waits for its end as well. Else it waits no longer than
        until it is there: what comes after that is a wait for the device.
        """
        now = self.clock()
        for one in [one for one in self._awaited if one.answer.done()]:
            if one in self._awaited:  # else its group was forgotten in this very loop
                self._awaited.remove(one)
                there = now if stepped or one.answered is None else one.answered
                self._groups[one.number].waited_for(there - one.asked)
                with self._alone(one.number):
                    self._replied(one.number, one.m, one.answer.result())
        now = self.clock()
        while self._due and self._due[0][0] <= now:
            _, number, m, observation = heapq.heappop(self._due)
            with self._alone(number):
                self._observe(number, m, observation)

    def _observe(self, number: int, m: int, observation: str) -> None:
        member = self._groups[number].members[m]
        tokens = self.chat.observation(observation, member.tokens[-1])
        if len(member.tokens) + len(tokens) >= self.engine.context:
            # No room for it and one more token: the dialogue ends with the model's last turn.
            assert member.environment is not None
            member.truncated = True
            self._finish(number, m, member.environment.final_score())
            return
        member.text += observation
        member.tokens.extend(tokens)
        member.sampled.extend([False] * len(tokens))
        self.engine.add([self._request(number, m)])

    def _finish(self, number: int, m: int, score: Scored) -> None:
        """A member has said all it will; its score may be on its way."""
        group = self._groups[number]
        member = group.members[m]
        if isinstance(score, Future):
            self._asked.append((number, m, score))
            score.add_done_callback(lambda _: self.wake())
            return
        member.score = score
        member.environment = None
        group.open_members -= 1
        if group.open_members == 0:
            self._complete.append(self._groups.pop(number))

    def _forget(self, number: int) -> None:
        group = self._groups.pop(number)
        self.engine.abort([(number, m) for m in range(len(group.members))])
        self._due = [entry for entry in self._due if entry[1] != number]
        heapq.heapify(self._due)
        self._awaited = [one for one in self._awaited if one.number != number]
        self._asked = [entry for entry in self._asked if entry[0] != number]


def _key(prompt: Prompt, m: int, seed: int) -> int:
    keys = np.random.SeedSequence((seed, prompt.index, m)).generate_state(1, np.uint64)
    return int(keys[0] >> np.uint64(1))


def _append(member: Member, found: GenerationResult | GenerationProgress) -> None:
    member.tokens.extend(found.tokens.tolist())
    member.sampled.extend([True] * len(found.tokens))
    member.logprobs.extend(found.logprobs.tolist())
    member.versions.extend(found.versions.tolist())


def stop_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> frozenset[int]:
    """Token ids of `sampler.stop`; InvalidConfig when a text is not one token of this model."""
    found = set()
    for text in texts:
        ids = tokenizer.encode(text, special_tokens=False)
        if len(ids) != 1:
            raise InvalidConfig(
                f"spec.sampler.stop: {text!r} is {len(ids)} tokens of this model, allowed are texts of one token"
            )
        found.add(ids[0])
    return frozenset(found)


def _refused(prompt: Prompt, why: str) -> str:
    """The engine names its request; a person knows prompts and fields."""
    reason = why.partition(": ")[2].partition(";")[0] or why
    text = prompt.text if len(prompt.text) <= 40 else f"{prompt.text[:40]}..."
    return (
        f"prompt {prompt.index} ({text!r}): {reason}; shorten it (task.file, task.dataset, task.args, task.promptTemplate "
        "or task.systemPrompt) or take a model with a longer context (model.source; model.tiny.maxPositions for tiny)"
    )
