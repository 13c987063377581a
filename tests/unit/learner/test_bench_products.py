"""What the benchmarks count as the bare matrix products of a piece of work."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rl_api.run import TinyModelSpec
from rl_trainer.model.config import parse_config
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.presets import tiny_config


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "bench"))
    return importlib.import_module("products")


def test_products_of_forward_and_backward_passes(bench: Any):
    states, weight = (torch.randn(*shape, requires_grad=True) for shape in ((5, 8), (16, 8)))
    with bench.Products() as noted:
        F.linear(states, weight).sum().backward()
    assert len(noted) == 3
    query = torch.randn(2, 3, 9, 8, requires_grad=True)
    with bench.Products() as noted:
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert len(noted) == 2 + 4
    with bench.Products() as noted:
        F.silu(states) + states.mean()
    assert len(noted) == 0


def test_products_of_decoding(bench: Any):
    table, rows, starts = torch.randn(6, 4), torch.arange(6), torch.tensor([0, 3])
    with torch.inference_mode(), bench.Products() as noted:
        F.linear(torch.randn(2, 3, 4), table)
        torch.mm(table, table.t(), out=torch.empty(6, 6))
        torch.zeros(6, 6).addmm_(table, table.t())
        torch.baddbmm(torch.zeros(2, 3, 3), table.view(2, 3, 4), table.view(2, 3, 4).transpose(1, 2))
        F.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=torch.rand(6))
    assert len(noted) == 5
    seconds = noted.seconds(repetitions=2)
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_a_step_of_the_model_has_the_products_of_its_layers(bench: Any):
    config = parse_config(tiny_config(TinyModelSpec(layers=2)))
    model = Decoder(config)
    model.initialize(0.05, seed=0)
    tokens = torch.arange(2 * 7).view(2, 7)
    with bench.Products() as noted:
        model(tokens).sum().backward()
    # Four weights and attention in each layer, and the head, which makes a gradient of the embeddings.
    assert len(noted) == 2 * (4 * 3 + 6) + 3
