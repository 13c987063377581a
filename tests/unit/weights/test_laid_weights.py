"""Weights in the order in which our decoder has them: Hugging Face's for whoever asks by name, and the same bytes for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kept_blocks import KeptBlocks
from small_engines import decoder

from rl_trainer.model.decoder import Decoder
from rl_trainer.weights.gathered import gather_weights
from rl_trainer.weights.payload import (
    Rooms,
    Tensors,
    WeightsBlock,
    laid_tensor,
    lent_rows,
    pack_weights,
    unpack_weights,
)
from rl_trainer.weights.row_order import deinterleave, interleave
from rl_trainer.weights.source import TensorSource, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver

torch.set_num_threads(1)
SHAPE: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
QUERY, VALUE = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.v_proj.weight"
WHOLE, SPLIT = 24 << 20, 16 << 10


def source(model: Decoder, dtype: torch.dtype = torch.float32, *, as_laid: bool = True) -> TensorSource:
    tensors = {name: one.to(dtype) for name, one in model.hf_tensors().items()}
    return source_of(tensors, limit=8 << 10, as_laid=as_laid)


def blocks_of(model: Decoder, limit: int, dtype: torch.dtype, *, as_laid: bool = True) -> list[WeightsBlock]:
    return list(pack_weights(source(model, dtype, as_laid=as_laid), 1, limit))


def test_interleaved_rows_are_the_halves_of_a_head_by_turns_and_come_back():
    rows = torch.arange(16).view(8, 2)
    assert interleave(rows, 4)[:, 0].tolist() == [0, 4, 2, 6, 8, 12, 10, 14]
    assert torch.equal(deinterleave(interleave(rows, 4), 4), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [WHOLE, SPLIT])
@pytest.mark.parametrize("changes", [{}, {"qk_norm": True, "mlp_bias": True, "kv_heads": 1}])
def test_by_name_every_tensor_is_as_hugging_face_has_it(changes, limit, dtype):
    model = decoder(3, **SHAPE, **changes)
    found = unpack_weights(blocks_of(model, limit, dtype))
    assert all(torch.equal(found[name], value.to(dtype)) for name, value in model.hf_state_dict().items())
    assert found.keys() == model.hf_state_dict().keys()
    assert found.shapes[QUERY] == (model.config.heads * 32, 128)


@pytest.mark.parametrize("limit", [WHOLE, SPLIT])
def test_a_decoder_takes_either_order(limit):
    model = decoder(3, **SHAPE)
    for as_laid in (True, False):
        other = Decoder(model.config)
        other.load_hf_state_dict(unpack_weights(blocks_of(model, limit, torch.float32, as_laid=as_laid)))
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_one_is_had_only_in_the_order_that_it_came_in():
    model = decoder(3, **SHAPE)
    laid = unpack_weights(blocks_of(model, WHOLE, torch.float32), lent=True)
    plain = unpack_weights(blocks_of(model, WHOLE, torch.float32, as_laid=False), lent=True)
    queries = model.config.heads * 32

    def lent_row(tensors: Tensors, name: str, head_dim: int = 0) -> torch.Tensor | None:
        return lent_rows(tensors, [(name, head_dim)])

    for read in (laid_tensor, lent_row):
        ours = read(laid, QUERY, 32)
        assert ours is not None
        assert torch.equal(ours, model.layers[0].qkv_weight[:queries])
        assert [read(laid, QUERY), read(laid, QUERY, 16), read(laid, VALUE, 32)] == [None] * 3
        assert [read(plain, QUERY, 32), read(plain, "none", 32), read(Tensors([]), QUERY, 32)] == [None] * 3
        theirs = read(plain, QUERY)
        assert theirs is not None
        assert torch.equal(theirs, model.hf_state_dict()[QUERY])
    split = unpack_weights(blocks_of(model, SPLIT, torch.float32), lent=True)
    assert laid_tensor(split, QUERY, 32) is not None
    assert lent_row(split, QUERY, 32) is None
    whole = lent_rows(laid, [(QUERY, 32), (QUERY.replace("q_proj", "k_proj"), 32), (VALUE, 0)])
    assert whole is not None
    assert torch.equal(whole, model.layers[0].qkv_weight)
    assert lent_rows(laid, [(QUERY, 32), (VALUE, 0)]) is None
    assert lent_rows(laid, []) is None


def test_the_models_own_memory_goes_into_the_store():
    model = decoder(3, hidden_size=256, intermediate_size=192, head_dim=32)
    memory = [(one.data_ptr(), one.data_ptr() + one.nbytes) for one in model.parameters()]
    counts = []
    for as_laid in (True, False):
        (block,) = gather_weights(source(model, as_laid=as_laid), 1, Rooms(), WHOLE)
        places = [one.__array_interface__["data"][0] for one in block.buffers]
        own = [any(first <= place < last for first, last in memory) for place in places]
        counts.append(sum(one.nbytes for one, mine in zip(block.buffers, own, strict=True) if mine))
    heads = [one.nbytes for layer in model.layers for one in (layer.qkv_weight,)]
    values = 2 * model.config.kv_heads * 32 * 256 * 4
    assert counts[0] - counts[1] == sum(heads) - values


def test_adapters_changes_are_laid_as_well():
    from rl_api import LoraSpec

    model = decoder(3, **SHAPE)
    model.add_lora(LoraSpec(rank=4, alpha=8, target_modules=["q_proj", "v_proj"]), seed=1)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if ".b." in name:
                one.normal_(generator=torch.Generator().manual_seed(1))
    found = unpack_weights(blocks_of(model, WHOLE, torch.float32))
    expected = model.hf_state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert not torch.equal(expected[QUERY], decoder(3, **SHAPE).hf_state_dict()[QUERY])


def test_a_publisher_takes_the_order_of_the_decoder_where_it_is_offered():
    model = decoder(3, **SHAPE)

    def taken(offer: Offer) -> Tensors:
        store = KeptBlocks()
        published = StorePublisher(store, 0).publish(offer, 1)
        assert published is not None
        found = StoreReceiver(store, "here", lambda arrays: True).receive(published, 1.0)
        assert isinstance(found, Tensors)
        return found

    plain = taken(Offer(lambda: source(model, as_laid=False)))
    laid = taken(Offer(lambda: source(model, as_laid=False), laid=lambda: source(model)))
    assert lent_rows(plain, [(QUERY, 32)]) is None
    assert lent_rows(laid, [(QUERY, 32)]) is not None
    assert all(torch.equal(plain[name], laid[name]) for name in plain)
