"""The decoder computes what the library computes, forwards, backwards and as a folder on disk."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from model_folders import save_model

from rl_trainer.model import decoder as decoder_module
from rl_trainer.model.config import DecoderConfig, Rope
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.names import expected_shapes

FAMILIES = [
    "llama",
    "llama-biases",
    "llama-llama3-rope",
    "llama-linear-rope",
    "mistral",
    "qwen2-tied",
    "qwen2-untied",
    "qwen3",
]


def library_model(folder, dtype=torch.float32):
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def small(**changes) -> Decoder:
    sizes = {
        "model_type": "qwen2",
        "vocab_size": 50,
        "hidden_size": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_positions": 64,
        "qkv_bias": True,
        "tied_embeddings": True,
    }
    model = Decoder(DecoderConfig(**{**sizes, **changes}))
    model.initialize(0.3, seed=1)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_library(family, family_folder):
    folder = family_folder(family)
    ours, theirs = load_decoder(folder), library_model(folder)
    tokens = torch.randint(2, 61, (3, 50), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama-biases", "qwen2-tied", "qwen3"])
def test_gradients_equal_the_library(family, family_folder):
    folder = family_folder(family)
    ours, theirs = load_decoder(folder), library_model(folder)
    tokens = torch.randint(2, 61, (3, 20), generator=torch.Generator().manual_seed(0))
    for logits in (ours(tokens), theirs(tokens).logits):
        torch.log_softmax(logits[:, :-1], -1).gather(2, tokens[:, 1:, None]).mean().neg().backward()
    expected = {name: value.grad for name, value in theirs.named_parameters()}
    found = Decoder(ours.config)
    with torch.no_grad():
        for mine, gradient in zip(found.parameters(), ours.parameters(), strict=True):
            mine.copy_(gradient.grad)
    for name, value in found.hf_state_dict().items():
        torch.testing.assert_close(
            value, expected[name], atol=1e-6, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_bfloat16_stays_near_the_library(family, family_folder):
    folder = family_folder(family)
    ours, theirs = load_decoder(folder, torch.bfloat16), library_model(folder, torch.bfloat16)
    tokens = torch.randint(2, 61, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        exact = load_decoder(folder)(tokens)
        our_error = (ours(tokens).float() - exact).abs().mean()
        their_error = (theirs(tokens).logits.float() - exact).abs().mean()
    assert ours(tokens).dtype == torch.bfloat16
    assert our_error < 1.5 * their_error


def test_saved_folder_opens_in_the_library(family_folder, tmp_path):
    source = family_folder("qwen3")
    model = load_decoder(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    save_model(model, source, tmp_path / "saved")
    tokens = torch.randint(2, 61, (2, 30))
    with torch.no_grad():
        expected = library_model(tmp_path / "saved")(tokens).logits
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=1e-5)
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_names_survive_the_way_there_and_back(family_folder):
    for family in ("llama-biases", "qwen2-untied", "qwen3"):
        model = load_decoder(family_folder(family))
        before = {name: value.clone() for name, value in model.hf_state_dict().items()}
        assert next(iter(before)) == "model.embed_tokens.weight"
        again = Decoder(model.config)
        again.load_hf_state_dict(before)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
        after = again.hf_state_dict()
        assert after.keys() == before.keys()
        assert all(
            value.is_contiguous() and torch.equal(value, before[name]) for name, value in after.items()
        )


def test_padding_after_the_tokens_changes_nothing():
    model = small()
    tokens = torch.randint(2, 50, (2, 12))
    mask = torch.ones_like(tokens)
    mask[1, 7:] = 0
    padded = model(tokens, mask)
    torch.testing.assert_close(padded[0], model(tokens[:1])[0])
    torch.testing.assert_close(padded[1, :7], model(tokens[1:, :7])[0])


def test_head_on_chosen_positions_equals_forward():
    model = small(tied_embeddings=False)
    tokens = torch.randint(2, 50, (2, 8))
    hidden = model.hidden_at(tokens, torch.ones_like(tokens), torch.tensor([3, 4, 11]))
    assert hidden.shape == (3, 32)
    torch.testing.assert_close(hidden @ model.head_weight.T, model(tokens).flatten(0, 1)[[3, 4, 11]])


@pytest.mark.parametrize("shared", [None, [(0, 0), (0, 1), (0, 4)], [(0, 0), (1, 0), (1, 1)]])
@pytest.mark.parametrize("lengths", [[9, 9, 9], [9, 1, 4]])
def test_hidden_at_places_equals_hidden_everywhere_forwards_and_backwards(lengths, shared):
    model = small(qk_norm=True)
    tokens = torch.randint(2, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    for row, (earlier, length) in enumerate(shared or []):
        tokens[row, :length] = tokens[earlier, :length]
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    places = torch.tensor([place for place in (8, 0, 3, 9, 18, 21) if mask.flatten()[place]])
    results = []
    for hidden in (
        model.hidden_at(tokens, torch.ones_like(tokens), torch.arange(27))[places],
        model.hidden_at(tokens, mask, places, None if shared is None else torch.tensor(shared)),
    ):
        model.zero_grad()
        hidden.square().sum().backward()
        results.append((hidden.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(results[0], results[1])


def test_gradients_of_the_hand_written_operators():
    model = small(qk_norm=True, mlp_bias=True, output_bias=True, rope=Rope(theta=100.0))
    tokens = torch.randint(2, 50, (1, 5))

    def loss() -> torch.Tensor:
        return torch.log_softmax(model(tokens), -1)[0, torch.arange(5), tokens[0]].sum()

    loss().backward()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator)
        direction /= direction.norm()
        expected = (parameter.grad * direction).sum().item()
        with torch.no_grad():
            parameter.add_(direction, alpha=3e-3)
            above = loss().item()
            parameter.sub_(direction, alpha=6e-3)
            below = loss().item()
            parameter.add_(direction, alpha=3e-3)
        assert (above - below) / 6e-3 == pytest.approx(expected, abs=2e-2, rel=2e-2), name


def test_a_rotation_table_made_while_sampling_serves_training():
    model = small()
    tokens = torch.randint(2, 50, (1, 5))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert model.embed.grad is not None


def test_same_seed_same_weights_and_parameter_order():
    first, second = small(), small()
    assert [name for name, _ in first.named_parameters()] == [name for name, _ in second.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    expected = sum(math.prod(shape) for shape in expected_shapes(first.config).values())
    assert sum(p.numel() for p in first.parameters()) == expected


def test_one_fused_matrix_at_most_is_gathered(family_folder, monkeypatch):
    """Of adapted q alone, q is made of every layer before any k: with the matrices of all layers kept, all ranks would hold
    them whole."""
    model = load_decoder(family_folder("qwen3"))
    alive, most = weakref.WeakSet(), [0]

    def gathered(value):
        whole = value.clone()
        alive.add(whole)
        most[0] = max(most[0], len(alive))
        return whole

    monkeypatch.setattr(decoder_module, "whole", gathered)
    tensors = model.hf_tensors()
    queries = [tensor for name, tensor in tensors.items() if name.endswith("q_proj.weight")]
    assert len(queries) > 1
    for tensor in queries:
        tensor.make()
    assert most == [1]
    expected = model.hf_state_dict()
    assert all(torch.equal(tensor.make(), expected[name]) for name, tensor in tensors.items())
