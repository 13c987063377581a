"""The engine against the library's generate, against a plain forward pass, and against itself in other batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_engines import decoder, drain, logprobs_of, prompts, requests

from rl_api.errors import TaskError
from rl_trainer.model.decoder import load_decoder
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.torch import TorchEngine


@pytest.mark.parametrize(
    "family",
    ["llama", "llama-biases", "llama-llama3-rope", "mistral", "qwen2-tied", "qwen2-untied", "qwen3"],
)
def test_greedy_tokens_equal_generate(family, family_folder):
    import transformers

    folder = family_folder(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config = transformers.GenerationConfig()  # no end token
    texts = prompts(9, vocab=61)
    engine = create_engine(folder, slots=4)
    engine.add(requests(texts, [25] * 9, temperature=0.0))
    found = drain(engine)
    for index, text in enumerate(texts):
        with torch.no_grad():
            expected = model.generate(
                torch.from_numpy(text.astype(np.int64))[None],
                attention_mask=torch.ones(1, len(text), dtype=torch.long),
                do_sample=False,
                max_new_tokens=25,
                pad_token_id=0,
            )[0, len(text) :]
        assert found[index].tokens.tolist() == expected.tolist()
        exact = logprobs_of(lambda ids: model(ids).logits, text, found[index].tokens)
        np.testing.assert_allclose(found[index].logprobs, exact, atol=2e-5)


def test_left_padded_generate_agrees_too(family_folder):
    import transformers

    folder = family_folder("qwen2-tied")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config = transformers.GenerationConfig()  # no end token
    texts = prompts(5, vocab=61)
    longest = max(map(len, texts))
    tokens, mask = np.zeros((5, longest), np.int64), np.zeros((5, longest), np.int64)
    for row, text in enumerate(texts):
        tokens[row, longest - len(text) :], mask[row, longest - len(text) :] = text, 1
    expected = model.generate(
        torch.from_numpy(tokens),
        attention_mask=torch.from_numpy(mask),
        do_sample=False,
        max_new_tokens=20,
        pad_token_id=0,
    )[:, longest:]
    engine = create_engine(folder, slots=8)
    engine.add(requests(texts, [20] * 5, temperature=0.0))
    found = drain(engine)
    assert [found[index].tokens.tolist() for index in range(5)] == expected.tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    "changes", [{}, {"qk_norm": True, "kv_heads": 1}, {"tied_embeddings": False, "mlp_bias": True}]
)
def test_logprobs_equal_a_full_forward(changes, temperature):
    model = decoder(**changes)
    texts = prompts(30)
    engine = TorchEngine(model, slots=7)
    engine.add(requests(texts, [3 + index for index in range(30)], temperature=temperature))
    found = drain(engine)
    for index, text in enumerate(texts):
        assert found[index].tokens.dtype == np.int32
        assert len(found[index].tokens) == 3 + index
        exact = logprobs_of(model, text, found[index].tokens, temperature)
        np.testing.assert_allclose(found[index].logprobs, exact, atol=3e-5)


def test_another_batch_gives_the_same_tokens():
    model = decoder()
    texts = prompts(40)
    lengths = [1 + (index * 7) % 40 for index in range(40)]
    params = {"top_k": 12, "top_p": 0.95, "stop_token_ids": frozenset({3})}
    work = requests(texts, lengths, **params)
    together = TorchEngine(model, slots=40)
    together.add(work)
    reference = drain(together)
    assert {result.finish_reason for result in reference.values()} == {"stop", "length"}
    for slots, order in ((5, work[::-1]), (1, work[10:14]), (17, work[::2] + work[1::2])):
        engine = TorchEngine(model, slots=slots)
        engine.add(order)
        for index, result in drain(engine).items():
            assert result.tokens.tolist() == reference[index].tokens.tolist()
            # Whole blocks everywhere: not only the tokens, the very bits are the same.
            assert result.logprobs.tobytes() == reference[index].logprobs.tobytes()


def test_groups_share_a_prompt_and_differ_by_seed():
    model = decoder()
    text = prompts(1, longest=25)[0]
    engine = TorchEngine(model, slots=16)
    engine.add([GenerationRequest(("group", m), text, SamplingParams(12), seed=m) for m in range(40)])
    found = drain(engine)
    assert len({result.tokens.tobytes() for result in found.values()}) == 40
    for member in (0, 15, 16, 39):
        alone = TorchEngine(model, slots=1)
        alone.add([GenerationRequest(0, text, SamplingParams(12), seed=member)])
        assert drain(alone)[0].tokens.tolist() == found["group", member].tokens.tolist()


def test_each_prompt_is_prefilled_once(monkeypatch):
    import rl_trainer.rollout.engines.prompt_prefixes as module

    seen = []
    original = module.prefill

    def counting(model, texts):
        seen.extend(text.tobytes() for text in texts)
        return original(model, texts)

    monkeypatch.setattr(module, "prefill", counting)
    texts = prompts(6, longest=20)
    texts = [np.append(text, text[:1]) for text in texts]
    engine = TorchEngine(decoder(), slots=4)
    engine.add(
        [
            GenerationRequest((p, m), texts[p], SamplingParams(3 + m), seed=m)
            for p in range(6)
            for m in range(8)
        ]
    )
    drain(engine)
    assert sorted(seen) == sorted(text[:-1].tobytes() for text in texts)
    # The profile's rate is of answers' prompts, as whoever plans with it knows no other number of them.
    assert engine.meter.drain()["prefill_tokens"] == 8 * sum(len(text) - 1 for text in texts)


def test_stop_tokens_end_a_sequence_and_belong_to_it():
    model = decoder()
    stops = frozenset(range(2, 12))
    engine = TorchEngine(model, slots=8)
    engine.add(requests(prompts(20), [30] * 20, stop_token_ids=stops))
    for result in drain(engine).values():
        ends = [token in stops for token in result.tokens.tolist()]
        assert not any(ends[:-1])
        assert result.finish_reason == ("stop" if ends[-1] else "length")
        assert ends[-1] or len(ends) == 30


def test_free_slots_are_refilled_at_once():
    lengths = [40 if index % 8 == 0 else 2 + index % 5 for index in range(64)]
    engine = TorchEngine(decoder(), slots=8)
    engine.add(requests(prompts(64), lengths))
    found = drain(engine)
    assert {index: len(result.tokens) for index, result in found.items()} == dict(enumerate(lengths))
    naive = sum(max(lengths[start : start + 8]) for start in range(0, 64, 8))
    busy = -(-sum(lengths) // 8)
    assert naive == 320
    # No schedule is shorter than `busy`; refilling at once ends within one longest sequence of it.
    assert busy <= engine.steps < busy + 40 < naive / 2


def test_slots_and_counts_are_told():
    engine = TorchEngine(decoder(), slots=3)
    assert (engine.slots, engine.active, engine.waiting, engine.version) == (3, 0, 0, 0)
    assert engine.step() == []
    engine.add(requests(prompts(5), [4, 2, 4, 4, 4]))
    assert (engine.active, engine.waiting) == (0, 5)
    engine.step()
    assert (engine.active, engine.waiting) == (3, 2)
    assert [result.id for result in engine.step()] == [1]
    assert (engine.active, engine.waiting) == (2, 2)
    engine.step()
    assert (engine.active, engine.waiting) == (3, 1)


def test_abort_forgets_waiting_and_running_sequences():
    model = decoder()
    texts = prompts(12)
    reference = TorchEngine(model, slots=12)
    reference.add(requests(texts, [12] * 12))
    expected = drain(reference)
    engine = TorchEngine(model, slots=6)
    engine.add(requests(texts, [12] * 12))
    for _ in range(3):
        engine.step()
    engine.abort([0, 4, 7, "unknown"])
    assert (engine.active, engine.waiting) == (4, 5)
    found = drain(engine)
    assert sorted(found) == [1, 2, 3, 5, 6, 8, 9, 10, 11]
    assert all(found[i].tokens.tolist() == expected[i].tokens.tolist() for i in found)
    engine.add(requests(texts, [2] * 12))
    engine.abort(range(12))
    assert engine.step() == []


def test_the_context_bounds_prompt_and_completion():
    engine = TorchEngine(decoder(max_positions=20), slots=2)
    text = np.arange(2, 19, dtype=np.int32)
    engine.add([GenerationRequest("long", text, SamplingParams(50))])
    assert len(drain(engine)["long"].tokens) == 3
    with pytest.raises(TaskError, match="request 1: the prompt has 20 tokens, but the context holds 20"):
        engine.add(requests([text, np.arange(2, 22, dtype=np.int32)], [1, 1]))
    assert engine.waiting == 0  # none of them was queued


def test_prompts_that_make_no_sense():
    engine = TorchEngine(decoder(), slots=2)
    with pytest.raises(TaskError, match="request 0: the prompt is empty"):
        engine.add(requests([np.array([], np.int32)], [1]))
    for bad in (40, -1):
        with pytest.raises(TaskError, match=f"token id {bad}; the model knows 0 to 39"):
            engine.add(requests([np.array([3, bad], np.int32)], [1]))


def test_sequences_that_need_more_room_join_later():
    model = decoder()
    engine = TorchEngine(model, slots=4)
    short, long = prompts(4, longest=6), prompts(4, seed=3, longest=50)
    engine.add(requests(short, [30] * 4))
    for _ in range(2):
        engine.step()
    engine.add(
        [
            GenerationRequest(f"long{i}", text, SamplingParams(45, stop_token_ids=frozenset({0, 1, 2})), i)
            for i, text in enumerate(long)
        ]
    )
    found = drain(engine)
    for index, text in enumerate(short):
        exact = logprobs_of(model, text, found[index].tokens)
        np.testing.assert_allclose(found[index].logprobs, exact, atol=3e-5)
    for index, text in enumerate(long):
        exact = logprobs_of(model, text, found[f"long{index}"].tokens)
        np.testing.assert_allclose(found[f"long{index}"].logprobs, exact, atol=3e-5)


def test_bfloat16_weights(family_folder):
    folder = family_folder("qwen3")
    engine = create_engine(folder, slots=4, dtype=torch.bfloat16)
    texts = prompts(6, vocab=61)
    engine.add(requests(texts, [10] * 6))
    model = load_decoder(folder)
    for index, result in drain(engine).items():
        assert result.logprobs.dtype == np.float32
        exact = logprobs_of(model, texts[index], result.tokens)
        assert abs(result.logprobs - exact).mean() < 0.1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": -1}, "top_k is -1"),
    ],
)
def test_sampling_parameters_have_ranges(change, words):
    with pytest.raises(ValueError, match=words):
        SamplingParams(**{"max_new_tokens": 1, **change})
    with pytest.raises(ValueError, match="slots is 0"):
        TorchEngine(decoder(), slots=0)


def test_progress_says_what_sequences_in_flight_have_so_far():
    engine = TorchEngine(decoder(), slots=3)
    texts = prompts(5)
    engine.add(requests(texts, [12, 3, 9, 7, 5], temperature=1.0))
    assert engine.progress({0: 0, 1: 0}) == []
    seen = {index: ([], []) for index in range(5)}
    results = {}
    while engine.active or engine.waiting:
        results.update({result.id: result for result in engine.step()})
        known = {index: len(tokens) for index, (tokens, _) in seen.items() if index not in results}
        for progress in engine.progress(known):
            seen[progress.id][0].extend(progress.tokens.tolist())
            seen[progress.id][1].extend(progress.logprobs.tolist())
        assert engine.progress({index: len(tokens) for index, (tokens, _) in seen.items()}) == []
    for index, result in results.items():
        tokens, logprobs = seen[index]
        # The last token ends the sequence, which is not in flight any more then.
        assert tokens == result.tokens[:-1].tolist()
        assert logprobs == result.logprobs[:-1].tolist()


def test_progress_leaves_out_who_is_not_asked_for_or_was_aborted():
    engine = TorchEngine(decoder(), slots=3)
    engine.add(requests(prompts(3), [20, 20, 20]))
    engine.step()
    engine.step()
    assert [(one.id, len(one.tokens)) for one in engine.progress({0: 1, 2: 0, "never": 0})] == [
        (0, 1),
        (2, 2),
    ]
    engine.abort([0])
    assert [one.id for one in engine.progress({0: 0, 1: 0})] == [1]
