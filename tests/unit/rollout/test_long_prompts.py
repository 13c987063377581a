"""Prompts that are too long for the model, as a sampler meets them, without Ray."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rl_api.errors import TaskError
from rl_trainer.buffer.groups import Ticket
from rl_trainer.rollout import actor
from rl_trainer.rollout.actor import SamplerActor
from rl_trainer.rollout.engines.base import SamplingParams
from rl_trainer.rollout.loop import PromptTooLong
from rl_trainer.tasks import Prompt

PARAMS = SamplingParams(4, 1.0, 1.0, 0, frozenset())


def a_sampler(on_long_prompt: str) -> Any:
    """One whose model has a context of two tokens, and whose buffer and evaluation keep what they are told."""
    sampler: Any = SamplerActor.__new__(SamplerActor)
    sampler.rank, sampler._too_long = 3, 0
    sampler.spec = SimpleNamespace(seed=1, task=SimpleNamespace(on_long_prompt=on_long_prompt))
    sampler.started, sampler.dropped, sampler.settled = [], [], []

    def start(key: object, prompt: Prompt, *_: Any) -> None:
        if len(prompt.text) > 1:
            raise PromptTooLong(f"prompt {prompt.text} is too long")
        sampler.started.append(key)

    sampler.rollouts = SimpleNamespace(start=start)
    sampler.buffer = SimpleNamespace(drop=lambda *said: sampler.dropped.append(said))
    sampler._evaluations = SimpleNamespace(settle=lambda *said: sampler.settled.append(said))
    return sampler


def begin(sampler: Any, key: Any, text: str) -> None:
    sampler._start(key, Prompt(0, text, "", {}), 2, PARAMS)


def test_its_group_is_dropped_and_in_an_evaluation_it_has_no_score():
    sampler = a_sampler("drop")
    begin(sampler, Ticket(7, 0, False), "long")
    begin(sampler, (None, 4), "long")
    begin(sampler, Ticket(8, 0, False), "s")
    assert sampler.dropped == [(3, 7, "prompt_too_long")]
    ((key, text, score, error),) = sampler.settled
    assert (key, text, score.exact, error) == ((None, 4), "", False, "prompt long is too long")
    assert sampler.started == [Ticket(8, 0, False)]


def test_it_ends_the_run_where_that_is_asked_for():
    with pytest.raises(TaskError, match="prompt long is too long"):
        begin(a_sampler("fail"), Ticket(7, 0, False), "long")


def test_where_hardly_one_fits_the_run_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(actor, "MOST_TOO_LONG", 3)
    sampler = a_sampler("drop")
    for text in ("long", "long", "s", "long", "long"):
        begin(sampler, Ticket(7, 0, False), text)
    with pytest.raises(
        TaskError, match="3 prompts one after the other are too long, the last: prompt longest is too long"
    ):
        begin(sampler, Ticket(7, 0, False), "longest")
