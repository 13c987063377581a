from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_api.run import TinyModelSpec
from rl_trainer.model.loader import load_model
from rl_trainer.model.presets import CHARACTERS, write_tiny
from rl_trainer.model.tokenizer import load_tokenizer

SMALL = TinyModelSpec(hidden_size=16, layers=1, heads=2, kv_heads=1, intermediate_size=16, max_positions=32)


def test_same_seed_same_bytes(tmp_path):
    first, second, third = (write_tiny(tmp_path / str(i), SMALL, seed) for i, seed in enumerate((1, 1, 2)))
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (third / "model.safetensors").read_bytes()


def test_weights_have_the_intended_spread(tmp_path):
    model = load_model(write_tiny(tmp_path / "model"))
    assert abs(model.embed.std().item() - 0.05) < 0.002
    assert torch.equal(model.norm, torch.ones(128))
    assert torch.equal(model.layers[0].qkv_bias, torch.zeros(256))


def test_text_comes_back_exactly(tmp_path):
    tokenizer = load_tokenizer(write_tiny(tmp_path / "model", SMALL))
    assert tokenizer.vocab_size == len(CHARACTERS) + 2 == 98

    @given(st.text(alphabet=CHARACTERS))
    def round_trip(text: str) -> None:
        ids = tokenizer.encode(text)
        # "<eos>" and "<pad>" written out are the special tokens themselves, as in every tokenizer.
        if "<eos>" not in text and "<pad>" not in text:
            assert tokenizer.decode(ids) == text
            assert len(ids) == len(text)

    round_trip()


def test_the_library_opens_it(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = write_tiny(tmp_path / "model", SMALL)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = "What is  12 + 3?\n\n= ~" + CHARACTERS
    assert theirs(text).input_ids == ours.encode(text)
    assert theirs.decode(theirs(text).input_ids, skip_special_tokens=True) == text
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (1, 0, 98)
    assert (ours.stop_ids, ours.pad_id) == (frozenset({1}), 0)
    tokens = torch.randint(2, 98, (2, 20))
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(tokens).logits
        torch.testing.assert_close(load_model(folder)(tokens), logits, atol=1e-5, rtol=1e-5)
