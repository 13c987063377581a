"""Names of the library's parameters against those of files: experts that it packs, and models without memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_families import save_small

from rl_api.errors import ModelError
from rl_trainer.learner.layout import _give_memory
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


def changed_copy(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A folder with other tensors in it."""
    tensors = read_tensors(source)
    change(tensors)
    target.mkdir()
    shutil.copyfile(source / "config.json", target / "config.json")
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


def opened_without_memory(folder: Path) -> LibraryModel:
    """As learners that divide the model open it."""
    model = LibraryModel.empty(folder)
    _give_memory(model, torch.device("cpu"))
    model.load_folder(folder)
    return model


def same_as_opened(folder: Path) -> dict[str, torch.Tensor]:
    """What is published of a folder's model, the same whichever way it was opened."""
    found, expected = opened_without_memory(folder).hf_state_dict(), LibraryModel.open(folder).hf_state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    return found


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family whose head is tied."""
    made = tmp_path_factory.mktemp("models") / "gemma"
    save_small("gemma", made)
    return made


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def test_tensors_that_the_library_only_warns_of_are_left_out_of_files(gemma: Path, tmp_path: Path) -> None:
    computed = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.position_ids": torch.arange(3),
    }

    def add(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update(computed, **{"model.layers.0.masked_bias": torch.ones(1)})

    same_as_opened(changed_copy(gemma, tmp_path / "more", add))
    model = LibraryModel.open(gemma)
    model.load_hf_state_dict({**model.hf_state_dict(), **computed})
    with pytest.raises(ModelError, match="tensor extra is not part of the model"):
        model.load_hf_state_dict({**model.hf_state_dict(), "extra": torch.ones(1)})
    lacking = changed_copy(gemma, tmp_path / "less", lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(ModelError, match=r"less: tensor model\.norm\.weight is missing"):
        opened_without_memory(lacking)


def test_a_head_of_its_own_in_the_files_stays_one(gemma: Path, tmp_path: Path) -> None:
    def repeat(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()

    def differ(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors[EMBEDDING] * 2

    assert HEAD not in same_as_opened(changed_copy(gemma, tmp_path / "repeated", repeat))
    assert HEAD in same_as_opened(changed_copy(gemma, tmp_path / "different", differ))


def test_a_tied_parameter_is_read_under_the_name_that_files_have(gemma: Path, tmp_path: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        tensors[HEAD] = tensors.pop(EMBEDDING)

    found = same_as_opened(changed_copy(gemma, tmp_path / "renamed", rename))
    assert EMBEDDING in found
    assert HEAD not in found
