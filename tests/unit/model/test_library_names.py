"""Names of the library's parameters against those of files: experts that it packs, and models without memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_families import save_small

from rl_api.errors import ModelError
from rl_trainer.model.folder import opened_weights, read_tensors
from rl_trainer.model.library_model import LibraryModel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "experts"
    save_small("qwen3-moe", made)
    return made


def test_packed_experts_are_published_under_the_names_of_files(folder: Path) -> None:
    model = LibraryModel.open(folder)
    assert "model.model.layers.0.mlp.experts.gate_up_proj" in dict(model.named_parameters())
    there, published = read_tensors(folder), model.hf_tensors()
    assert published.keys() == there.keys()
    for name, tensor in published.items():
        assert tensor.shape == tuple(there[name].shape)
        assert torch.equal(tensor.make(), there[name]), name


def test_a_model_without_memory_is_the_same_one(folder: Path) -> None:
    empty, opened = LibraryModel.empty(folder), LibraryModel.open(folder)
    shapes = {name: (value.shape, value.dtype) for name, value in opened.named_parameters()}
    assert {name: (value.shape, value.dtype) for name, value in empty.named_parameters()} == shapes
    assert all(value.is_meta for value in empty.parameters())
    buffers = dict(opened.named_buffers())
    for name, value in empty.named_buffers():
        assert torch.equal(value, buffers[name]), name
    assert len(empty.parts()) == 2
    assert list(empty.hf_tensors()) == list(opened.hf_tensors())


def test_weights_of_a_file_are_taken_through_the_library_s_mapping(folder: Path) -> None:
    changed = {name: value * 2 for name, value in read_tensors(folder).items()}
    model = LibraryModel.open(folder)
    model.load_hf_state_dict(changed)
    for name, value in model.hf_state_dict().items():
        assert torch.equal(value, changed[name]), name
    with opened_weights(folder) as tensors:
        model.load_hf_state_dict(tensors)
    assert torch.equal(model.hf_state_dict()["model.norm.weight"], changed["model.norm.weight"] / 2)
    gone = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(ModelError, match=f"weights: tensor {gone} is missing"):
        model.load_hf_state_dict({name: value for name, value in changed.items() if name != gone})
