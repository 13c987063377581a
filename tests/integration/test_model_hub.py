"""Runs of a hub's model: the hub's own library downloads it from a server on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from model_hub import ModelHub
from safetensors.torch import load_file
from training_runs import RunFiles, ray_here

from rl_api.errors import ModelError
from rl_trainer.model.resolve import resolve_model


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[ModelHub]:
    with ModelHub() as served:
        folder = resolve_model("tiny", tmp_path / "models")
        (folder / "pytorch_model.bin").write_bytes(b"not needed")
        (folder / "README.md").write_text("not needed")
        served.models["acme/tiny"] = folder
        yield served


@pytest.mark.usefixtures("local_ray")
def test_a_model_is_fetched_once_and_without_what_nobody_needs(hub: ModelHub, tmp_path: Path):
    files = RunFiles(tmp_path / "run", model={"source": "acme/tiny", "tiny": None}, stop={"maxSteps": 1})
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    settings |= {"NO_PROXY": "127.0.0.1", **ray_here()}
    with files.start(**settings) as process:
        outcome = process.finish().assert_well()
    assert "downloading" not in outcome.out, "a small model is there at once"
    weights = "model.safetensors"
    kept, sent = load_file(files.out / "initial" / weights), load_file(hub.models["acme/tiny"] / weights)
    assert kept.keys() == sent.keys()
    assert all(torch.equal(kept[name], sent[name]) and kept[name].dtype == sent[name].dtype for name in sent)
    assert hub.fetched >= {"config.json", weights, "tokenizer.json"}
    assert not hub.fetched & {"pytorch_model.bin", "README.md"}
    hub.fetched.clear()
    with files.start("--overwrite", **settings) as process:
        process.finish().assert_well()
    assert not hub.fetched


@pytest.mark.parametrize(
    ("repository", "revision", "sentence"),
    [
        (
            "acme/nothing",
            None,
            "the hub has no such model, or it is private (set HF_TOKEN); a local folder must exist",
        ),
        (
            "acme/closed",
            None,
            "its owner must grant access first (accept its licence on the hub and set HF_TOKEN)",
        ),
        ("acme/tiny", "v9", "it has no revision 'v9'"),
    ],
)
def test_what_the_hub_refuses_is_a_sentence(
    hub: ModelHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    repository: str,
    revision: str | None,
    sentence: str,
):
    hub.refused["acme/closed"] = "GatedRepo"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # the unit tests' conftest.py sets the variable
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError) as error:
        resolve_model(repository, tmp_path, revision=revision)
    assert str(error.value) == f"model.source: hub model {repository} cannot be loaded: {sentence}"
