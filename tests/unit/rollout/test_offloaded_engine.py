"""Engines whose memory was given back: what was in flight goes on with the same tokens, and nothing is sampled meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_engines import decoder, drain, prompts, requests

from rl_api.errors import RLTrainError
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.rollout.engines.endpoint import EndpointEngine
from rl_trainer.rollout.engines.library import LibraryEngine
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.rollout.engines.vllm import VllmEngine

REFUSED = "the sampler's engine: its tensors are offloaded; onload them before {}"
# Wide enough for every tensor to have whole pages.
WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}


def same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for index, result in expected.items():
        assert found[index].tokens.tolist() == result.tokens.tolist()
        np.testing.assert_array_equal(found[index].logprobs, result.logprobs)
        assert found[index].versions.tolist() == result.versions.tolist()


def results(away: bool) -> Any:
    """Nine sequences through four slots, new weights prepared on the way; `away`: moved out and in before every step."""
    engine = TorchEngine(decoder(1, **WIDE), slots=4)
    later = decoder(2, **WIDE)
    load, ended = None, {}
    engine.add(requests(prompts(9, longest=40), [30, 12, 25, 7, 30, 9, 20, 11, 30]))
    for step in range(1000):
        if away:
            engine.offload()
            assert engine.offload() == 0
            assert engine.onload() > 0
            assert engine.onload() == 0
        if step == 10:
            load = engine.prepare_weights(later.hf_state_dict(), 1)
        if load is not None and step == 14:
            load()
        ended.update({one.id: one for one in engine.step()})
        if not (engine.active or engine.waiting):
            return ended
    raise AssertionError("the engine does not come to an end")


def test_sequences_in_flight_go_on_with_the_same_bits():
    same(results(away=True), results(away=False))


def test_nothing_is_sampled_or_loaded_meanwhile_but_requests_come_and_go():
    engine, expected = (TorchEngine(decoder(1, **WIDE), slots=4) for _ in range(2))
    later = decoder(2, **WIDE).hf_state_dict()
    prepared = engine.prepare_weights(later, 1)
    held = engine.device_bytes
    gone = engine.offload()
    assert held * 0.8 < gone <= held
    with pytest.raises(RLTrainError, match=REFUSED.format("a step")):
        engine.step()
    for load in (prepared, engine.prepare_weights(later, 2)):  # the second does nothing ahead
        with pytest.raises(RLTrainError, match=REFUSED.format("weights are loaded")):
            load()
    engine.add(requests(prompts(3), [5, 5, 5]))
    engine.abort([1])
    engine.onload()
    prepared()
    expected.load_weights(later, 1)
    expected.add([one for one in requests(prompts(3), [5, 5, 5]) if one.id != 1])
    same(drain(engine), drain(expected))


def test_weights_that_arrive_meanwhile_are_loaded_afterwards():
    engine, expected = (TorchEngine(decoder(1, **WIDE), slots=2) for _ in range(2))
    later = decoder(2, **WIDE).hf_state_dict()
    engine.offload()
    load = engine.prepare_weights(later, 5)
    engine.onload()
    load()
    expected.load_weights(later, 5)
    for one in (engine, expected):
        one.add(requests(prompts(3), [5, 5, 5]))
    same(drain(engine), drain(expected))


def test_the_librarys_engine(family_folder: Any):
    engine, expected = (LibraryEngine(LibraryModel.open(family_folder("gpt2")), slots=2) for _ in range(2))
    texts = prompts(3, longest=10)
    assert engine.offload() <= engine.device_bytes
    engine.add(requests(texts, [4, 4, 4]))
    with pytest.raises(RLTrainError, match=REFUSED.format("a step")):
        engine.step()
    with pytest.raises(RLTrainError, match=REFUSED.format("weights are loaded")):
        engine.load_weights({}, 1)
    assert engine.onload() > 0
    expected.add(requests(texts, [4, 4, 4]))
    same(drain(engine), drain(expected))


class Sleeper:
    """Stands in for vLLM's `LLMEngine` with one GPU: keeps what it is told."""

    def __init__(self, sleeps: bool) -> None:
        model = SimpleNamespace(get_vocab_size=lambda: 8, max_model_len=8, enable_sleep_mode=sleeps)
        self.vllm_config = SimpleNamespace(model_config=model, kv_transfer_config=None)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(batch_queue=None))
        self.told: list[object] = []

    def collective_rpc(self, method: str) -> list[int]:
        if method == "rltrain_free_bytes":
            return [700 if ("sleep", 1, "keep") in self.told else 100]
        self.told.append(method)
        return []

    def sleep(self, level: int, mode: str) -> None:
        self.told.append(("sleep", level, mode))

    def wake_up(self) -> None:
        self.told.append("wake up")


def test_vllm_sleeps_without_giving_sequences_up_and_wakes_with_a_clean_cache():
    theirs = Sleeper(sleeps=True)
    engine = VllmEngine(theirs, lambda shapes, where: None, slots=1)
    assert engine.offload() == 600
    assert engine.offload() == 0
    with pytest.raises(RLTrainError, match="vLLM sleeps; onload it before a step"):
        engine.step()
    with pytest.raises(RLTrainError, match="vLLM sleeps; onload it before weights are loaded"):
        engine.load_weights({}, 1)
    assert engine.onload() == 600
    assert engine.onload() == 0
    assert theirs.told == [("sleep", 1, "keep"), "wake up", "rltrain_clear_cache"]


def test_engines_that_keep_their_memory_give_none_back():
    theirs = Sleeper(sleeps=False)
    engine = VllmEngine(theirs, lambda shapes, where: None, slots=1)
    assert (engine.offload(), engine.onload(), theirs.told) == (0, 0, [])
    outside = object.__new__(EndpointEngine)
    assert (outside.offload(), outside.onload()) == (0, 0)
