"""LoRA of the decoder and of the library's models: what `peft` computes, from the folder that a checkpoint holds."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import save_file

from rl_api import LoraSpec
from rl_api.errors import ModelError
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.export import ADAPTER_WEIGHTS, describe_adapter
from rl_trainer.model.library_model import LibraryModel

FAMILIES = ["llama-biases", "mistral", "qwen2-tied", "qwen2-untied", "qwen3"]
ALL = LoraSpec(rank=3, alpha=12)
SOME = LoraSpec(rank=2, alpha=2, target_modules=("k_proj", "v_proj", "up_proj", "down_proj"))
TOKENS = torch.randint(2, 61, (3, 40), generator=torch.Generator().manual_seed(0))


def adapted(model: Decoder | LibraryModel, options: LoraSpec) -> Decoder | LibraryModel:
    """With adapters that change something."""
    model.add_lora(options, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in learned(model).values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def learned(model: Decoder | LibraryModel) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def of_peft(base: Path, model: Decoder | LibraryModel, options: LoraSpec, folder: Path) -> peft.PeftModel:
    """What the library makes of the base and of the adapters of `model`."""
    folder.mkdir()
    save_file(model.adapter_state(), folder / ADAPTER_WEIGHTS)
    describe_adapter(options, str(base), folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(theirs, folder, is_trainable=True).eval()


@pytest.mark.parametrize("options", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_gradients_equal_those_of_peft(family, options, family_folder, tmp_path):
    base = family_folder(family)
    model = adapted(load_decoder(base), options)
    theirs = of_peft(base, model, options, tmp_path / "adapter")
    logits, expected = model(TOKENS), theirs(TOKENS).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for found in (logits, expected):
        found.log_softmax(-1).square().mean().backward()
    for parameter in learned(model).values():
        parameter.data = parameter.grad  # so that adapter_state names and orders the gradients
    gradients = {
        name.replace(".default.", "."): p.grad for name, p in theirs.named_parameters() if p.requires_grad
    }
    assert model.adapter_state().keys() == gradients.keys()
    for name, gradient in model.adapter_state().items():
        torch.testing.assert_close(gradient, gradients[name], atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("options", [ALL, SOME], ids=["all", "some"])
@pytest.mark.parametrize("family", ["qwen2-tied", "qwen3"])
def test_merged_weights_are_the_adapted_model(family, options, family_folder):
    model = adapted(load_decoder(family_folder(family)), options)
    merged = load_decoder(family_folder(family))
    merged.load_hf_state_dict(model.hf_state_dict())
    with torch.no_grad():
        assert (model(TOKENS) - load_decoder(family_folder(family))(TOKENS)).abs().max() > 0.01
        torch.testing.assert_close(merged(TOKENS), model(TOKENS), atol=1e-5, rtol=1e-5)


def test_new_adapters_change_nothing_and_learn_alone(family_folder):
    base = load_decoder(family_folder("qwen3"))
    model = load_decoder(family_folder("qwen3"))
    model.add_lora(ALL, seed=1)
    assert torch.equal(model(TOKENS), base(TOKENS))
    assert all(".adapters." in name for name in learned(model))
    assert len(learned(model)) == len(model.layers) * 7 * 2
    again = load_decoder(family_folder("qwen3"))
    again.add_lora(ALL, seed=1)
    for name, value in model.adapter_state().items():
        assert torch.equal(value, again.adapter_state()[name])
    again.add_lora(ALL, seed=2)
    assert not torch.equal(
        again.adapter_state()[name.replace("_B", "_A")], model.adapter_state()[name.replace("_B", "_A")]
    )


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")  # the folder says nothing of it, and peft finds out
def test_of_another_family_by_the_library(gpt2, tmp_path):
    options = LoraSpec(rank=3, alpha=12, target_modules=("c_attn", "c_fc"))
    base = LibraryModel.open(gpt2)
    with torch.no_grad():
        before = base(TOKENS)
        model = adapted(LibraryModel.open(gpt2), options)
        logits = model(TOKENS)
        assert (logits - before).abs().max() > 0.001
        torch.testing.assert_close(of_peft(gpt2, model, options, tmp_path / "a")(TOKENS).logits, logits)
        with model.without_lora():
            assert torch.equal(model(TOKENS), before)
        assert torch.equal(model(TOKENS), logits)
        again = LibraryModel.open(gpt2)
        again.add_lora(options, seed=9)
        again.load_adapter_state(model.adapter_state())
        assert torch.equal(again(TOKENS), logits)
        base.load_hf_state_dict(model.hf_state_dict())
        torch.testing.assert_close(base(TOKENS), logits, atol=1e-5, rtol=1e-5)
    assert all(".lora_" in name for name in learned(again))


def test_state_comes_back_exactly_and_the_base_is_there(family_folder):
    base = load_decoder(family_folder("qwen3"))
    model = adapted(load_decoder(family_folder("qwen3")), SOME)
    again = load_decoder(family_folder("qwen3"))
    again.add_lora(SOME, seed=7)
    again.load_adapter_state(model.adapter_state())
    with torch.no_grad():
        assert torch.equal(again(TOKENS), model(TOKENS))
        with model.without_lora():
            assert torch.equal(model(TOKENS), base(TOKENS))
        assert torch.equal(again(TOKENS), model(TOKENS))


@pytest.mark.parametrize("open_model", [load_decoder, LibraryModel.open])
def test_a_target_that_the_model_does_not_have(open_model, family_folder):
    with pytest.raises(ModelError, match=r"spec\.learner\.lora\.targetModules: found c_attn"):
        open_model(family_folder("qwen3")).add_lora(LoraSpec(target_modules=("q_proj", "c_attn")), seed=1)


def test_modules_that_are_not_linear_are_refused(gpt2):
    model = LibraryModel.open(gpt2)
    with pytest.raises(ModelError) as caught:
        model.add_lora(LoraSpec(rank=2, target_modules=("c_attn", "wpe")), seed=1)
    assert str(caught.value) == (
        "spec.learner.lora.targetModules: found wpe, which is of class Embedding in GPT2LMHeadModel, "
        "allowed: linear modules (Linear, Conv1D)"
    )
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("open_model", [LibraryModel.open, LibraryModel.empty, load_decoder])
def test_a_tied_head_is_refused(open_model, family_folder):
    """Its adapter would be trained, and no file of merged weights could hold what it has learned."""
    options = LoraSpec(rank=2, target_modules=("q_proj", "lm_head"))
    model = open_model(family_folder("qwen2-tied"))
    with pytest.raises(ModelError, match=r"^spec\.learner\.lora\.targetModules: found lm_head, wh") as caught:
        model.add_lora(options, seed=1)
    if isinstance(model, LibraryModel):
        assert str(caught.value) == (
            "spec.learner.lora.targetModules: found lm_head, whose weight is that of model.embed_tokens.weight too in "
            "Qwen2ForCausalLM (tied), allowed: modules with a weight of their own"
        )
        untied = open_model(family_folder("qwen2-untied"))
        untied.add_lora(options, seed=1)
        assert any("lm_head.lora_A" in name for name, _ in untied.named_parameters())
