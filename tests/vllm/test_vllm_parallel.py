"""A model that is divided over several processes is the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from vllm_models import changed, drain, exact_logprobs, prompts, requests

from rl_trainer.model.decoder import load_decoder
from rl_trainer.rollout.engines.base import Engine
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm import free_port, open_workers
from rl_trainer.rollout.engines.vllm_needs import COMMAND, Pods, VllmOptions

SLOTS = 4
CLOSE = 1e-4
HOST = "127.0.0.1"


def hold_workers(folder: Path, options: VllmOptions) -> None:
    """A process with the workers of another pod."""
    open_workers(folder, SLOTS, torch.float32, "cpu", options).start_worker_monitor(inline=True)


@pytest.fixture(scope="module", params=[(2, 1, 1), (1, 2, 1), (1, 2, 2)], ids=["tensor", "pipeline", "pods"])
def engine(request: pytest.FixtureRequest, divided_folder: Path) -> Iterator[Engine]:
    tensor, pipeline, pods = request.param
    options = VllmOptions(tensor, pipeline, COMMAND)
    if pods == 1:
        yield create_engine(divided_folder, kind="vllm", slots=SLOTS, options=options)
        return
    here = Pods(pods, 0, HOST, HOST, free_port(HOST))
    there = replace(options, pods=replace(here, rank=1))
    other = get_context("spawn").Process(target=hold_workers, args=(divided_folder, there))
    other.start()
    try:
        yield create_engine(divided_folder, kind="vllm", slots=SLOTS, options=replace(options, pods=here))
    finally:
        other.terminate()
        other.join()


@pytest.fixture(scope="module")
def divided_folder(model_folder: Callable[[str], Path]) -> Path:
    return model_folder("qwen2-tied")


@pytest.fixture(scope="module")
def torch_engine(divided_folder: Path) -> Iterator[Engine]:
    return create_engine(divided_folder, slots=SLOTS)


def test_greedy_tokens_and_new_weights(engine: Engine, torch_engine: Engine, divided_folder: Path):
    weights = {name: value.clone() for name, value in load_decoder(divided_folder).hf_state_dict().items()}
    work = requests(prompts(9), 20, temperature=0.0)
    for version, tensors in enumerate((weights, changed(weights), weights), start=1):
        for one in (engine, torch_engine):
            one.load_weights(tensors, version)
            one.add(work)
        found, expected = drain(engine), drain(torch_engine)
        assert found.keys() == expected.keys()
        for place, result in found.items():
            assert result.tokens.tolist() == expected[place].tokens.tolist()
            np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
            assert set(result.versions.tolist()) == {version}


def test_logprobs_with_a_cut_are_those_of_all_tokens(engine: Engine, divided_folder: Path):
    decoder = load_decoder(divided_folder)
    engine.load_weights(decoder.hf_state_dict(), 0)
    work = requests(prompts(9), 20, temperature=0.7, top_p=0.8)
    engine.add(work)
    for place, result in drain(engine).items():
        exact = exact_logprobs(decoder, work[place], result.tokens)
        np.testing.assert_allclose(result.logprobs, exact, atol=CLOSE)


def test_weights_that_change_while_sequences_are_in_flight(engine: Engine, divided_folder: Path):
    """Each token is of the weights that it names: also those that were between two stages when the weights changed."""
    decoder = load_decoder(divided_folder)
    before = {name: value.clone() for name, value in decoder.hf_state_dict().items()}
    after = changed(before)
    engine.load_weights(before, 0)
    work = requests(prompts(6), 20, temperature=0.0)
    engine.add(work)
    found = {}
    for _ in range(9):
        found.update({result.id: result for result in engine.step()})
    engine.load_weights(after, 1)
    found.update(drain(engine))
    assert sorted(found) == list(range(6))
    first = found[0].versions.tolist()
    assert set(first) == {0, 1}
    old = first.index(1)
    exact = exact_logprobs(decoder, work[0], found[0].tokens)
    np.testing.assert_allclose(found[0].logprobs[:old], exact[:old], atol=CLOSE)
    # The first token of the new weights has old keys and values before it, and none of the old weights' own log-probs.
    assert np.abs(found[0].logprobs[old:] - exact[old:]).max() > CLOSE
    assert torch.isfinite(torch.from_numpy(found[0].logprobs)).all()


def test_aborted_sequences_leave_their_slots(engine: Engine):
    work = requests(prompts(7), 12)
    engine.add(work)
    found = {result.id: result for result in engine.step()}
    engine.abort([1, 5, "unknown"])
    found |= drain(engine)
    assert sorted(found) == [0, 2, 3, 4, 6]
    assert all(len(result.tokens) == 12 for result in found.values())
