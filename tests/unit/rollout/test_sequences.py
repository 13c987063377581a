"""The bookkeeping of an engine that keeps its sequences elsewhere."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.sequences import Sequences


def request(name: object, stops: frozenset[int] = frozenset()) -> GenerationRequest:
    return GenerationRequest(name, np.array([1], np.int32), SamplingParams(8, stop_token_ids=stops))


def filled(count: int, slots: int) -> tuple[Sequences, deque[GenerationRequest], list[str]]:
    sequences, waiting = Sequences(slots), deque(request(name) for name in range(count))
    return sequences, waiting, [key for key, _ in sequences.admit(waiting)]


def test_the_first_that_wait_get_the_slots_that_are_free():
    sequences, waiting, keys = filled(5, 2)
    assert (sequences.active, len(waiting), len(set(keys))) == (2, 3, 2)
    assert sequences.admit(waiting) == []
    sequences.record(keys[1], [4], [-0.5], 0)
    assert sequences.end(keys[1]).id == 1
    (key, admitted), *others = sequences.admit(waiting)
    assert (admitted.id, others, key in keys) == (2, [], False)
    assert (sequences.active, len(waiting)) == (2, 2)


def test_a_result_has_everything_that_was_recorded():
    sequences = Sequences(1)
    ((key, _),) = sequences.admit(deque([request("one", frozenset({7, 9}))]))
    sequences.record(key, [3], [-0.25], 4)
    sequences.record(key, [], [], 5)
    sequences.record(key, [5, 9], [-1.0, -2.0], 6)
    result = sequences.end(key)
    assert (result.id, result.finish_reason) == ("one", "stop")
    assert (result.tokens.tolist(), result.tokens.dtype) == ([3, 5, 9], np.int32)
    assert (result.logprobs.tolist(), result.logprobs.dtype) == ([-0.25, -1.0, -2.0], np.float32)
    assert (result.versions.tolist(), result.versions.dtype) == ([4, 6, 6], np.int32)
    assert sequences.active == 0


def test_what_is_new_of_those_in_flight():
    sequences, _, keys = filled(3, 3)
    sequences.record(keys[0], [4], [-0.5], 0)
    sequences.record(keys[0], [5], [-0.25], 3)
    sequences.record(keys[1], [6], [-1.0], 0)
    (found,) = sequences.progress({0: 1, 1: 1, 2: 0, "unknown": 0})
    assert (found.id, found.tokens.tolist(), found.logprobs.tolist()) == (0, [5], [-0.25])
    assert (found.versions.tolist(), found.versions.dtype) == ([3], np.int32)
    assert (found.tokens.dtype, found.logprobs.dtype) == (np.int32, np.float32)
    assert [one.id for one in sequences.progress({1: 0})] == [1], "0 is not asked for"


@pytest.mark.parametrize(("tokens", "reason"), [([7, 3], "length"), ([3, 7], "stop"), ([], "length")])
def test_only_a_stop_token_at_the_end_stops(tokens: list[int], reason: str):
    sequences = Sequences(1)
    ((key, _),) = sequences.admit(deque([request("one", frozenset({7}))]))
    sequences.record(key, tokens, [0.0] * len(tokens), 0)
    assert sequences.end(key).finish_reason == reason


def test_aborted_ones_are_forgotten_wherever_they_are():
    sequences, waiting, keys = filled(4, 2)
    assert sequences.abort([1, 2, "unknown"]) == [keys[1]]
    assert sequences.active == 1
    assert [admitted.id for _, admitted in sequences.admit(waiting)] == [2]


def test_those_without_a_token_wait_again_before_all_others():
    sequences, waiting, keys = filled(5, 3)
    sequences.record(keys[1], [4], [-0.5], 0)
    assert sequences.take_back(waiting) == [keys[0], keys[2]]
    assert (sequences.active, len(waiting)) == (1, 4)
    assert [admitted.id for _, admitted in sequences.admit(waiting)] == [0, 2]
    assert sequences.end(keys[1]).tokens.tolist() == [4]
    assert [admitted.id for _, admitted in sequences.admit(waiting)] == [3]


def test_the_rest_of_a_sequence_has_its_tokens_in_the_prompt():
    sequences, _, (key, other) = filled(2, 2)
    assert sequences.in_flight == [key, other]
    whole = sequences.rest(key, 64)
    assert whole is not None
    assert (whole.prompt.tolist(), whole.params.max_new_tokens, whole.seed) == ([1], 8, 0)
    sequences.record(key, [4, 5], [-0.5, -0.25], 3)
    rest = sequences.rest(key, 64)
    assert rest is not None
    assert (rest.id, rest.prompt.tolist(), rest.params.max_new_tokens) == (0, [1, 4, 5], 6)
    assert (rest.seed, rest.drawn) == (whole.seed, 2)
    assert rest.generator_seed != whole.generator_seed, "it would draw the first tokens again"
    sequences.record(key, [6], [-1.0], 4)
    result = sequences.end(key)
    assert (result.tokens.tolist(), result.versions.tolist()) == ([4, 5, 6], [3, 3, 4])


@pytest.mark.parametrize(("tokens", "context", "left"), [(8, 64, None), (2, 3, None), (2, 4, 1), (0, 6, 5)])
def test_the_rest_of_a_sequence_ends_with_its_length_and_with_the_context(
    tokens: int, context: int, left: int | None
):
    sequences, _, (key,) = filled(1, 1)
    sequences.record(key, [4] * tokens, [-0.5] * tokens, 0)
    rest = sequences.rest(key, context)
    assert (rest and rest.params.max_new_tokens) == left
