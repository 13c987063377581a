"""Rollouts on an engine that writes what a test says, and tasks that score and answer as it says."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rl_api.errors import ModelError, RewardError, TaskError
from rl_trainer.model.chat import Chat
from rl_trainer.rollout.engines.base import (
    GenerationProgress,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from rl_trainer.rollout.loop import Rollouts
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
