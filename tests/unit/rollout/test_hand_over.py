"""Sequences that one engine begins and another ends, token by token; and groups that go from one sampler to another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_engines import decoder, drain, prompts, requests

from rl_api.errors import RLTrainError
from rl_trainer.model.chat import Chat
from rl_trainer.rollout.engines.base import GenerationRequest, GenerationResult, SamplingParams
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.rollout.group_rollout import GroupRollout
from rl_trainer.rollout.handed import dump_begun, load_begun
from rl_trainer.rollout.loop import Rollouts
from rl_trainer.tasks import Prompt, Score, StepResult

VOCAB = 128
PARAMS = SamplingParams(max_new_tokens=20, temperature=0.9, stop_token_ids=frozenset(range(0, VOCAB, 16)))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def handed_on(first: Any, second: Any, given: list[GenerationRequest], steps: int) -> dict[Any, Any]:
    """Results of `given`, of which `first` makes `steps` tokens each and `second` the rest."""
    first.add(given)
    results = {}
    for _ in range(steps):
        results.update({result.id: result for result in first.step()})
    unfinished = [request for request in given if request.id not in results]
    begun = {found.id: found for found in first.interrupt([request.id for request in unfinished])}
    assert first.active + first.waiting == 0
    for request in unfinished:
        found = begun.get(request.id)
        drawn = 0 if found is None else len(found.tokens)
        tokens = request.prompt if found is None else np.concatenate((request.prompt, found.tokens))
        params = replace(request.params, max_new_tokens=request.params.max_new_tokens - drawn)
        second.add([replace(request, prompt=tokens, params=params, drawn=drawn)])
    for key, rest in drain(second).items():
        found = begun.get(key)
        results[key] = rest if found is None else joined(found, rest)
    return results


def joined(found: Any, rest: GenerationResult) -> GenerationResult:
    arrays = {
        name: np.concatenate((getattr(found, name), getattr(rest, name)))
        for name in ("tokens", "logprobs", "versions")
    }
    return replace(rest, **arrays)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(0, 25),
    slots=st.integers(1, 9),
    params=st.sampled_from([{}, {"temperature": 0.0}, {"temperature": 1.3, "top_p": 0.9, "top_k": 12}]),
)
def test_another_engine_goes_on_with_the_same_tokens(seed: int, steps: int, slots: int, params: Any):
    """The same uniform numbers, whatever else is in flight; log-probs differ by rounding alone."""
    model = decoder()
    lengths = np.random.default_rng(seed).integers(1, 30, 6)
    given = requests(prompts(6, seed), lengths, seed, stop_token_ids=frozenset({0, 1}), **params)
    whole_engine = TorchEngine(model, 6)
    whole_engine.add(given)
    whole = drain(whole_engine)
    found = handed_on(TorchEngine(model, slots), TorchEngine(model, 4), given, steps)
    assert found.keys() == whole.keys()
    for key, result in whole.items():
        assert found[key].tokens.tolist() == result.tokens.tolist()
        assert found[key].logprobs == pytest.approx(result.logprobs, abs=1e-5)
        assert found[key].finish_reason == result.finish_reason


def test_interrupting_some_leaves_the_others(one_thread: None):
    model = decoder()
    given = requests(prompts(4), [20, 20, 20, 20])
    whole, engine = TorchEngine(model, 4), TorchEngine(model, 3)
    whole.add(given)
    engine.add(given)
    for _ in range(5):
        engine.step()
    found = engine.interrupt([1, 3, "nobody"])
    assert [(one.id, len(one.tokens)) for one in found] == [(1, 5)]
    assert (engine.active, engine.waiting) == (2, 0)
    expected = drain(whole)
    assert {key: result.tokens.tolist() for key, result in drain(engine).items()} == {
        key: expected[key].tokens.tolist() for key in (0, 2)
    }


class Characters:
    """One token per character."""

    has_chat_template = False

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


class Quoting:
    """Scores an answer by its text; environments say nothing twice."""

    def __init__(self, turns: bool = False):
        self.turns = turns

    def score(self, prompt: Prompt, completion: str) -> Score:
        return Score(float(sum(map(ord, completion))), False, {"sum": float(len(completion))})

    def environment(self, prompt: Prompt, member: int = 0) -> Any:
        return Echo() if self.turns else None


class Echo:
    def reset(self) -> str:
        return "ask"

    def step(self, completion: str) -> StepResult:
        return StepResult(done=True, score=Score(1.0, True))


def rollouts(model: Any, task: Quoting | None = None, slots: int = 8) -> Rollouts:
    return Rollouts(TorchEngine(model, slots), Chat(Characters()), task or Quoting())  # type: ignore[arg-type]


def prompt(index: int) -> Prompt:
    return Prompt(index, f"say {index}", "", {})


def advanced(flow: Rollouts, steps: int = 200) -> dict[Any, GroupRollout]:
    """The groups that are complete after so many steps."""
    found: dict[Any, GroupRollout] = {}
    for _ in range(steps):
        for group in flow.advance():
            assert isinstance(group, GroupRollout)
            found[group.key] = group
    return found


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_a_group_goes_on_where_it_was_handed_over(steps: int):
    """Also one of whose members some have ended, and twice."""
    model = decoder(vocab_size=VOCAB)
    alone = rollouts(model)
    for index in range(3):
        alone.start(index, prompt(index), 4, PARAMS, seed=5)
    whole = advanced(alone)
    lengths = [len(member.versions) for group in whole.values() for member in group.members]
    assert min(lengths) < 7 < max(lengths)

    first, second, third = rollouts(model, slots=10), rollouts(model), rollouts(model)
    assert first.can_move
    for index in range(3):
        first.start(index, prompt(index), 4, PARAMS, seed=5)
    found = advanced(first, steps)
    for group in first.hand_over(lambda key: key != 1):
        assert (group.oldest_version is None) == (steps == 0)
        second.start(group.key, prompt(group.key), 4, PARAMS, 5, load_begun(dump_begun(group)))
    assert first.groups + second.groups == 3 - len(found)
    second.engine.version = third.engine.version = 1
    found |= advanced(second, 3)
    for group in second.hand_over(lambda key: key == 2):
        assert group.oldest_version == (0 if steps else 1)
        third.start(group.key, prompt(2), 4, PARAMS, 5, load_begun(dump_begun(group)))
    assert third.groups == (2 not in found)
    found |= advanced(first) | advanced(second) | advanced(third)
    for key, group in whole.items():
        for one, other in zip(group.members, found[key].members, strict=True):
            assert (one.tokens, one.sampled, one.text, one.turns) == (
                other.tokens,
                other.sampled,
                other.text,
                other.turns,
            )
            assert (one.score, one.truncated) == (other.score, other.truncated)
            assert other.logprobs == pytest.approx(one.logprobs, abs=1e-5)
    versions = found[2].members[0].versions
    assert versions == sorted(versions)
    assert set(versions[:steps]) <= {0}


def test_groups_with_environments_stay():
    model = decoder(vocab_size=VOCAB)
    flow = rollouts(model, Quoting(turns=True))
    flow.start("talk", prompt(0), 2, PARAMS, seed=5)
    flow.advance()
    assert not flow.can_move
    assert flow.hand_over(lambda key: True) == []
    assert advanced(flow)["talk"].members[0].score == Score(1.0, True)


def test_what_is_damaged_is_refused():
    flow = rollouts(decoder(vocab_size=VOCAB))
    flow.start(0, prompt(0), 2, PARAMS, seed=5)
    flow.advance()
    data = dump_begun(flow.hand_over(lambda key: True)[0])
    for damaged in (data[:2], data[:-1], b"\xff" * 40):
        with pytest.raises(RLTrainError, match=r"damaged|payload has only"):
            load_begun(damaged)
