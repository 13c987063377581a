"""Weights that an engine reads where they lie: the same tokens, nothing is written there, and nothing kept for long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_engines import decoder, drain, prompts, requests

from rl_trainer.model.decoder import Decoder
from rl_trainer.rollout.engines import torch as torch_engine
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.weights.payload import WeightsBlock, checksum_of, pack_weights, unpack_weights
from rl_trainer.weights.source import source_of

# Wide enough for every tensor to have whole pages.
WIDE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
LAYERS = [f"layers.{index}." for index in range(2)]
IN_ANY_ORDER = [
    "embed",
    "norm",
    *(f"{layer}{name}" for layer in LAYERS for name in ("attention_norm", "output_weight")),
]
IN_ANY_ORDER += [
    f"{layer}{name}" for layer in LAYERS for name in ("mlp_norm", "gate_up_weight", "down_weight")
]
ROTATED = [f"{layer}{name}" for layer in LAYERS for name in ("qkv_weight", "qkv_bias")]
LENT = IN_ANY_ORDER + ROTATED


def in_a_store(
    model: Decoder, version: int, *, limit: int = 24 << 20, skew: int = 0, as_laid: bool = True
) -> list[WeightsBlock]:
    """Its blocks in memory as a store's is, `skew` bytes beside where a store puts them."""
    blocks = []
    for one in pack_weights(source_of(model.hf_tensors(), as_laid=as_laid), version, limit):
        memory = np.empty(len(one.block) + 128, np.uint8)
        first = -memory.ctypes.data % 64 + skew
        memory[first : first + len(one.block)] = one.block
        memory.flags.writeable = False
        blocks.append(replace(one, block=memory[first : first + len(one.block)]))
    return blocks


def held(engine: TorchEngine) -> tuple[list[str], list[str]]:
    """Names of parameters that are lent, and of those that have a second set of memory."""
    return sorted(engine._decoder._lent), sorted(engine._decoder._spare)


def tokens_of(engine: TorchEngine) -> dict[int, tuple[list[int], list[float]]]:
    engine.add(requests(prompts(5), [8] * 5))
    return {index: (one.tokens.tolist(), one.logprobs.tolist()) for index, one in drain(engine).items()}


def expected(seed: int, **changes: Any) -> dict[int, tuple[list[int], list[float]]]:
    return tokens_of(TorchEngine(decoder(seed, **changes), slots=4))


def untouched(versions: Sequence[Sequence[WeightsBlock]]) -> bool:
    return all(checksum_of(one.block) == one.checksum for blocks in versions for one in blocks)


def test_parameters_are_read_where_they_lie_and_give_the_same_bits():
    engine = TorchEngine(decoder(1, **WIDE), slots=4)

    def without_second_set() -> int:
        return engine.device_bytes - sum(one.nbytes for one in engine._decoder.prepared())

    for version in (2, 3):
        before = without_second_set()
        (block,) = blocks = in_a_store(decoder(version, **WIDE), version)
        engine.prepare_weights(unpack_weights(blocks, lent=True), version)()
        assert held(engine) == (sorted(LENT), [])
        first, last = block.block.ctypes.data, block.block.ctypes.data + block.block.nbytes
        assert all(first <= one.data_ptr() < last for one in engine._decoder.lent())
        assert without_second_set() == before, "what is lent counts as what it replaces"
        assert engine.version == version
        assert tokens_of(engine) == expected(version, **WIDE)


def test_nobody_writes_what_is_lent_whatever_comes_next():
    engine = TorchEngine(decoder(1, **WIDE), slots=4)
    lent = [in_a_store(decoder(version, **WIDE), version) for version in (2, 4, 6, 8, 10)]

    def lend(version: int) -> None:
        engine.prepare_weights(unpack_weights(lent[version // 2 - 1], lent=True), version)()
        assert tokens_of(engine) == expected(version, **WIDE)

    lend(2)
    engine.load_weights(decoder(3, **WIDE).hf_state_dict(), 3)
    assert held(engine)[0] == []
    assert tokens_of(engine) == expected(3, **WIDE)
    lend(4)
    engine.prepare_weights(decoder(5, **WIDE).hf_state_dict(), 5)()
    assert held(engine)[0] == []
    assert tokens_of(engine) == expected(5, **WIDE)
    lend(6)
    engine.prepare_weights(decoder(7, **WIDE).hf_state_dict(), 7)  # void
    lend(8)
    pending = engine.prepare_weights(decoder(9, **WIDE).hf_state_dict(), 9)
    engine.offload()
    engine.onload()
    assert tokens_of(engine) == expected(8, **WIDE)
    pending()
    assert tokens_of(engine) == expected(9, **WIDE)
    pending = engine.prepare_weights(unpack_weights(lent[4], lent=True), 10)
    engine.offload()
    engine.onload()
    assert tokens_of(engine) == expected(9, **WIDE)
    pending()
    engine.offload()
    engine.onload()
    assert held(engine)[0] == []
    assert tokens_of(engine) == expected(10, **WIDE)
    assert untouched(lent)


def test_what_is_lent_is_held_until_the_next_version_is_loaded_or_the_engine_is_offloaded():
    engine = TorchEngine(decoder(1, **WIDE), slots=4)

    def lend(version: int) -> tuple[Any, Any]:
        (block,) = blocks = in_a_store(decoder(version, **WIDE), version)
        load = engine.prepare_weights(unpack_weights(blocks, lent=True), version)
        return load, weakref.ref(block.block)

    load, second = lend(2)
    load()
    load, third = lend(3)
    gc.collect()
    assert second() is not None
    load()
    del load
    gc.collect()
    assert second() is None
    assert third() is not None
    everything = engine.device_bytes
    gone = engine.offload()
    gc.collect()
    assert third() is None
    assert gone > everything * 0.8, "also what was lent"
    engine.onload()
    assert tokens_of(engine) == expected(3, **WIDE)


def test_what_does_not_lie_as_a_parameter_is_to_be_is_copied():
    model = decoder(2, **WIDE)
    whole = in_a_store(model, 1)
    split = in_a_store(model, 1, limit=16 << 10)  # all but vectors over several blocks
    cases = [
        (unpack_weights(in_a_store(model, 1, as_laid=False), lent=True), torch.float32, set(IN_ANY_ORDER)),
        (unpack_weights(in_a_store(model, 1, as_laid=False)), torch.float32, set()),
        (unpack_weights(whole), torch.float32, set()),
        (unpack_weights(in_a_store(model, 1, skew=32), lent=True), torch.float32, set()),
        (unpack_weights(whole, lent=True), torch.bfloat16, set()),
        (
            unpack_weights(split, lent=True),
            torch.float32,
            {name for name in LENT if "norm" in name or "bias" in name},
        ),
        (unpack_weights(whole, lent=True), torch.float32, set(LENT)),
    ]
    for tensors, dtype, names in cases:
        target = Decoder(model.config, dtype)
        engine = TorchEngine(target, slots=4)
        engine.prepare_weights(tensors, 1)()
        assert engine._decoder._lent == names
        found = engine._decoder.hf_state_dict()
        assert all(torch.equal(found[name], value.to(dtype)) for name, value in model.hf_state_dict().items())


def test_parts_with_something_between_them_are_copied():
    changes = {
        **WIDE,
        "intermediate_size": 193,
        "mlp_bias": True,
    }  # of 772 bytes
    model = decoder(2, **changes)
    engine = TorchEngine(decoder(1, **changes), slots=4)
    engine.prepare_weights(unpack_weights(in_a_store(model, 1), lent=True), 1)()
    lent = held(engine)[0]
    assert "layers.0.down_weight" in lent
    assert "layers.0.down_bias" in lent
    assert "layers.0.gate_up_weight" in lent
    assert "layers.0.gate_up_bias" not in lent
    assert tokens_of(engine) == expected(2, **changes)


def test_lent_parameters_need_no_room(monkeypatch: pytest.MonkeyPatch):
    engine = TorchEngine(decoder(1, **WIDE), slots=4)
    sizes = {name: value.nbytes for name, value in engine._decoder.named_parameters()}
    needed = sum(sizes[name] for name in ROTATED)
    tensors = unpack_weights(in_a_store(decoder(2, **WIDE), 2, as_laid=False), lent=True)
    for free, names in ((needed - 1, []), (needed, sorted(IN_ANY_ORDER))):
        monkeypatch.setattr(torch_engine, "free_memory", lambda free=free: free + torch_engine.MARGIN)
        engine.prepare_weights(tensors, 2)()
        assert held(engine)[0] == names
        assert tokens_of(engine) == expected(2, **WIDE)
