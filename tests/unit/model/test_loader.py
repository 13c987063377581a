"""Every kind of source becomes a folder, and everything that can be wrong with one is a sentence."""

from __future__ import annotations

import json
import shutil

import fsspec
import pytest
import torch
from model_folders import save_model
from safetensors.torch import load_file, save_file

from rl_api.errors import ModelError
from rl_api.run import TinyModelSpec
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.library_model import LibraryModel
from rl_trainer.model.loader import load_model
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.resolve import resolve_model

SMALL = TinyModelSpec(hidden_size=16, layers=1, heads=2, kv_heads=1, intermediate_size=16, max_positions=32)


@pytest.fixture
def folder(tmp_path):
    return write_tiny(tmp_path / "model", SMALL)


def refused(source, cache) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(resolve_model(str(source), cache))
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_preset_is_written_once(tmp_path):
    first = resolve_model("tiny", tmp_path, SMALL, seed=3)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("tiny", tmp_path, SMALL, seed=3) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert resolve_model("tiny", tmp_path, SMALL, seed=4) != first
    assert sum(p.numel() for p in load_model(resolve_model("tiny", tmp_path)).parameters()) == 308608


def test_preset_sizes_must_fit(tmp_path):
    odd = TinyModelSpec(hidden_size=20, heads=4)
    with pytest.raises(ModelError, match="hiddenSize 20 over heads 4"):
        resolve_model("tiny", tmp_path, odd)
    with pytest.raises(ModelError, match="heads 4 is not a multiple of kvHeads 3"):
        resolve_model("tiny", tmp_path, TinyModelSpec(kv_heads=3))


def test_local_folder_is_used_as_it_is(folder, tmp_path):
    assert resolve_model(str(folder), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_uri_is_copied_once_and_again_when_it_changes(scheme, folder, tmp_path, any_scheme):
    root = f"memory://bucket/models/{tmp_path.name}" if scheme == "memory" else f"file://{tmp_path}/remote"
    filesystem, path = fsspec.core.url_to_fs(root)
    filesystem.makedirs(path, exist_ok=True)
    for file in folder.iterdir():
        filesystem.put_file(str(file), f"{path}/{file.name}")
    filesystem.pipe_file(f"{path}/optimizer.pt", b"not needed")
    cache = tmp_path / "cache"
    first = resolve_model(root, cache)
    assert isinstance(load_model(first), Decoder)
    assert not (first / "optimizer.pt").exists()
    assert resolve_model(root, cache) == first
    assert [entry.name for entry in cache.iterdir()] == [first.name]
    tensors = {name: value + 1 for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "other.safetensors")
    filesystem.rm_file(f"{path}/generation_config.json")
    filesystem.put_file(str(tmp_path / "other.safetensors"), f"{path}/model.safetensors")
    second = resolve_model(root, cache)
    assert second != first
    assert torch.equal(load_model(second).norm, load_model(first).norm + 1)


def test_a_uri_with_nothing_there(tmp_path, any_scheme):
    assert "there is no folder at memory://nothing/here" in refused("memory://nothing/here", tmp_path)
    fsspec.filesystem("memory").pipe_file("/readme-only/README.md", b"hello")
    assert "holds no model files" in refused("memory://readme-only", tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "nosuch://bucket/model",
        "file:///var/lib/model",
        "http://169.254.169.254/latest",
        "ftp://host/model",
        "zip://model::https://host/a.zip",
        "s3://bucket/../other/model",
        "s3://bucket/a::file:///etc",
    ],
)
def test_other_addresses_are_not_opened(source, tmp_path):
    assert (
        refused(source, tmp_path)
        == f"model.source: found {source!r}, allowed: s3://bucket/folder, no .. in it"
    )


def test_s3_without_its_package_names_the_extra(tmp_path, monkeypatch):
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    assert "install rltrain[s3]" in refused("s3://bucket/model", tmp_path)


def test_a_copy_that_breaks_leaves_nothing(folder, tmp_path, monkeypatch, any_scheme):
    from fsspec.implementations.local import LocalFileSystem

    def broken(self, source, target, **_):
        if source.endswith("safetensors"):
            raise OSError("connection reset")
        shutil.copyfile(source, target)

    monkeypatch.setattr(LocalFileSystem, "get_file", broken)
    assert "cannot be copied: connection reset. Look at" in refused(f"file://{folder}", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_paths_that_are_no_folders(tmp_path):
    for source in ("./nothing", "/nothing/at/all", "~/nothing-here", "a/b/c", "not a name"):
        assert f"{source} is not a folder; give a preset (tiny)" in refused(source, tmp_path)


def test_hub_ids_without_network(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    sentence = refused("Qwen/no-such-model", tmp_path)
    assert sentence.startswith("model.source: hub model Qwen/no-such-model cannot be loaded: ")
    assert "HF_HUB_OFFLINE is set" in sentence


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("./nothing", "./nothing is not a folder; "),
        ("memory://nothing/here", "there is no folder at memory://nothing/here"),
        ("nosuch://bucket/model", "found 'nosuch://bucket/model', allowed: "),
        ("Qwen/no-such-model", "hub model Qwen/no-such-model cannot be loaded: "),
    ],
)
def test_a_sentence_names_the_field_that_holds_the_source(source, sentence, tmp_path, monkeypatch, request):
    import huggingface_hub.constants

    if source.startswith("memory"):
        request.getfixturevalue("any_scheme")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelError) as error:
        resolve_model(source, tmp_path, where="task.rewardModel: ")
    assert str(error.value).startswith(f"task.rewardModel: {sentence}")


def test_hub_downloads_only_what_is_needed(folder, tmp_path, monkeypatch):
    import huggingface_hub

    asked = {}

    def download(name, revision=None, allow_patterns=None, tqdm_class=None):
        asked.update(name=name, revision=revision, patterns=allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("some/model", tmp_path, revision="abc") == folder
    assert (asked["name"], asked["revision"]) == ("some/model", "abc")
    assert "*.safetensors" in asked["patterns"]
    assert "*.bin" not in asked["patterns"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "model.safetensors is missing"),
        ("tokenizer.json", "tokenizer.json is missing"),
    ],
)
def test_missing_files(name, words, folder, tmp_path):
    (folder / name).unlink()
    sentence = refused(folder, tmp_path)
    assert words in sentence
    assert str(folder) in sentence


def test_truncated_weights(folder, tmp_path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert "model.safetensors (5000 bytes) is truncated or no safetensors file" in refused(folder, tmp_path)


def test_weights_of_another_kind(folder, tmp_path):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "weights are .bin files; convert them to model.safetensors" in refused(folder, tmp_path)


def test_tensors_that_do_not_fit_the_configuration(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    down = "model.layers.0.mlp.down_proj.weight"
    save_file({**tensors, down: torch.zeros(16, 8)}, folder / "model.safetensors")
    assert f"tensor {down} has shape [16, 8], but config.json asks for [16, 16]" in refused(folder, tmp_path)
    save_file({name: value for name, value in tensors.items() if name != down}, folder / "model.safetensors")
    assert f"tensor {down} is missing" in refused(folder, tmp_path)
    save_file({**tensors, "model.layers.1.extra": torch.zeros(1)}, folder / "model.safetensors")
    assert "tensor model.layers.1.extra is not part of a qwen2 model" in refused(folder, tmp_path)
    # Old files repeat what is computed or tied.
    old = {
        "lm_head.weight": torch.zeros(98, 16),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    save_file({**tensors, **old}, folder / "model.safetensors")
    assert isinstance(load_model(resolve_model(str(folder), tmp_path)), Decoder)


def test_sharded_weights(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    expected = load_model(folder).hf_state_dict()
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = load_model(folder).hf_state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    (folder / "b.safetensors").unlink()
    assert "b.safetensors, named in model.safetensors.index.json, is missing" in refused(folder, tmp_path)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_value_head_reads_what_the_output_head_reads(family, family_folder):
    model = LibraryModel.open(family_folder(family))
    tokens = torch.randint(2, 61, (2, 6))
    mask, places = torch.ones_like(tokens), torch.tensor([1, 5, 8])
    states = model.states_at(tokens, mask, places)
    assert states.shape == (3, model.hidden_size)
    torch.testing.assert_close(model.model.lm_head(states), model.hidden_at(tokens, mask, places))


def test_other_families_go_to_the_library(family_folder, tmp_path):
    folder = family_folder("gpt2")
    model = load_model(resolve_model(str(folder), tmp_path))
    assert isinstance(model, LibraryModel)
    tokens = torch.randint(2, 61, (2, 10))
    mask = torch.ones_like(tokens)
    mask[1, 6:] = 0
    logits = model(tokens, mask)
    torch.testing.assert_close(logits.flatten(0, 1), model.hidden_at(tokens, mask, torch.arange(20)))
    torch.testing.assert_close(logits[1, :6], model(tokens[1:, :6])[0])
    assert "lm_head.weight" not in model.hf_state_dict()  # tied: published once
    save_model(model, folder, tmp_path / "saved")
    again = load_model(tmp_path / "saved")
    torch.testing.assert_close(again(tokens), model(tokens))
    changed = {name: value * 2 for name, value in model.hf_state_dict().items()}
    again.load_hf_state_dict(changed)
    assert not torch.allclose(again(tokens), model(tokens))
    with pytest.raises(ModelError, match="is missing"):
        again.load_hf_state_dict({})
    with pytest.raises(ModelError, match="is not part of the model"):
        again.load_hf_state_dict({**changed, "extra": torch.zeros(1)})


def test_a_family_nobody_knows(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "frobnicator"}))
    assert "neither the built-in decoder nor the Hugging Face library can open it" in refused(
        folder, tmp_path
    )


def test_saving_replaces_a_folder_only_when_the_new_one_is_complete(folder, tmp_path, monkeypatch):
    model = load_model(folder)
    target = tmp_path / "export"
    save_model(model, folder, target)
    before = (target / "model.safetensors").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rl_trainer.model.export._record_dtype", full)
        with pytest.raises(OSError, match="No space left"):
            save_model(model, folder, target)
    assert (target / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "model"]
    with torch.no_grad():
        model.norm.fill_(2.0)
    save_model(model, folder, target)
    assert torch.equal(load_model(target).norm, model.norm)
    assert json.loads((target / "config.json").read_text())["dtype"] == "float32"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "model"]
