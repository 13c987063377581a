"""The vLLM engine means the same by everything as the PyTorch engine does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from vllm_models import CONTEXT, EOS, FAMILIES, VOCAB, changed, drain, exact_logprobs, prompts, requests

from rl_api.errors import InvalidConfig, ModelError, TaskError
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.folder import read_tensors
from rl_trainer.model.loader import load_model
from rl_trainer.rollout.engines import vllm_arguments
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm import VllmEngine
from rl_trainer.rollout.engines.vllm_arguments import cache_bytes
from rl_trainer.rollout.engines.vllm_needs import VllmOptions

SLOTS = 4
# How far two programs in fp32 may be apart.
CLOSE = 1e-4


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Path:
    return model_folder(request.param)


@pytest.fixture(scope="module")
def opened(folder: Path) -> VllmEngine:
    engine = create_engine(folder, kind="vllm", slots=SLOTS)
    assert isinstance(engine, VllmEngine)
    return engine


@pytest.fixture
def engine(opened: VllmEngine, weights: dict[str, torch.Tensor]) -> Iterator[VllmEngine]:
    """The engine with the folder's weights as version 0, and nothing to do."""
    opened.load_weights(weights, 0)
    yield opened
    drain(opened)


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load_decoder(folder)


@pytest.fixture(scope="module")
def weights(decoder: Decoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in decoder.hf_state_dict().items()}


def test_greedy_tokens_equal_the_torch_engine(engine: VllmEngine, folder: Path):
    other = create_engine(folder, slots=SLOTS)
    work = requests(prompts(9), 25, temperature=0.0)
    for one in (engine, other):
        one.add(work)
    assert (engine.slots, engine.active, engine.waiting) == (SLOTS, 0, 9)
    assert engine.step() == []
    assert (engine.active, engine.waiting) == (SLOTS, 5)
    found, expected = drain(engine), drain(other)
    assert found.keys() == expected.keys()
    for place, result in found.items():
        assert result.tokens.tolist() == expected[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
        assert result.versions.tolist() == [0] * 25
        assert (result.finish_reason, result.tokens.dtype) == ("length", np.int32)
        assert (result.logprobs.dtype, result.versions.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"top_k": 20, "top_p": 0.9},
        {"temperature": 0.6, "top_p": 0.8},
        {"temperature": 1.7, "top_k": 5},
    ],
    ids=str,
)
def test_logprobs_are_those_of_all_tokens_at_the_temperature(
    params: dict[str, float],
    engine: VllmEngine,
    decoder: Decoder,
    record_property: Callable[[str, object], None],
):
    work = requests(prompts(20), 30, **params)
    engine.add(work)
    found = drain(engine)
    apart = max(
        float(np.abs(result.logprobs - exact_logprobs(decoder, work[place], result.tokens)).max())
        for place, result in found.items()
    )
    record_property("largest_difference", apart)
    assert apart < CLOSE


def test_greedy_and_sampled_sequences_share_a_batch(engine: VllmEngine, decoder: Decoder):
    texts = prompts(6)
    kinds = [{"temperature": 0.0}, {"top_p": 0.8, "temperature": 0.7}, {"top_k": 3}]
    work = [
        GenerationRequest(place, text, SamplingParams(20, **kinds[place % 3]), place)
        for place, text in enumerate(texts)
    ]
    engine.add(work)
    for place, result in drain(engine).items():
        exact = exact_logprobs(decoder, work[place], result.tokens)
        np.testing.assert_allclose(result.logprobs, exact, atol=CLOSE)


def test_the_most_probable_tokens_at_each_place(engine: VllmEngine, folder: Path):
    """Also beside a cut, and with others that want another number or none."""
    other = create_engine(folder, slots=SLOTS)
    texts = prompts(6)
    kinds = [{"temperature": 0.0}, {"top_p": 0.8, "temperature": 0.7}]
    counts = [0, 3, 20, 0, 1, 5]
    work = [
        GenerationRequest(place, text, SamplingParams(10, top_logprobs=count, **kinds[place % 2]), place)
        for place, (text, count) in enumerate(zip(texts, counts, strict=True))
    ]
    engine.add(work)
    found = drain(engine)
    for place, result in found.items():
        assert [len(top) for top in result.top] == ([counts[place]] * 10 if counts[place] else [])
        for step, top in enumerate(result.top):
            prompt = np.concatenate((work[place].prompt, result.tokens[:step])).astype(np.int32)
            params = SamplingParams(1, work[place].params.temperature, top_logprobs=counts[place])
            other.add([GenerationRequest((place, step), prompt, params)])
            ((wanted,),) = [one.top for one in drain(other).values()]
            np.testing.assert_allclose(
                [value for _, value in top], [value for _, value in wanted], atol=CLOSE
            )
            assert {token for token, _ in top} == {token for token, _ in wanted}


def test_tokens_come_as_often_as_their_probabilities_say(engine: VllmEngine, decoder: Decoder):
    text, count = prompts(1)[0], 3000
    engine.add(requests([text] * count, 1, temperature=1.5))
    found = drain(engine)
    counted = np.bincount([int(result.tokens[0]) for result in found.values()], minlength=VOCAB) / count
    with torch.no_grad():
        logits = decoder(torch.from_numpy(text.astype(np.int64))[None])[0, -1]
    expected = torch.softmax(logits / 1.5, -1).numpy()
    # 61 shares of 3000 draws each stray by sqrt(p / 3000): about 0.05 in all.
    assert np.abs(counted - expected).sum() / 2 < 0.08


def test_a_sequence_depends_on_its_seed_and_not_on_the_batch(engine: VllmEngine):
    work = requests(prompts(8), 20, temperature=1.0)
    engine.add(work)
    together = drain(engine)
    engine.add(work[5:6])
    assert drain(engine)[5].tokens.tolist() == together[5].tokens.tolist()
    again = [GenerationRequest("again", work[5].prompt, work[5].params, work[5].seed + 1)]
    engine.add(again)
    assert drain(engine)["again"].tokens.tolist() != together[5].tokens.tolist()


def test_seeds_may_be_any_number(engine: VllmEngine):
    seeds = (0, 2**63 - 1, 2**64 - 1, 2**64)
    text = prompts(1)[0]
    engine.add([GenerationRequest(seed, text, SamplingParams(8), seed) for seed in seeds])
    assert len({tuple(result.tokens.tolist()) for result in drain(engine).values()}) >= 2


def test_stop_tokens_end_a_sequence_and_nothing_else_does(engine: VllmEngine):
    work = requests(prompts(12), 40, temperature=2.0)
    engine.add(work)
    free = drain(engine)
    assert {len(result.tokens) for result in free.values()} == {40}
    assert any(EOS in result.tokens[:-1] for result in free.values())
    stops = frozenset({int(free[0].tokens[7]), EOS})
    engine.add(requests(prompts(12), 40, temperature=2.0, stop_token_ids=stops))
    for place, result in drain(engine).items():
        whole = free[place].tokens.tolist()
        end = next((at for at, token in enumerate(whole) if token in stops), None)
        assert result.tokens.tolist() == (whole if end is None else whole[: end + 1])
        assert result.finish_reason == ("length" if end is None else "stop")
        assert len(result.logprobs) == len(result.versions) == len(result.tokens)


def test_the_context_ends_a_sequence(engine: VllmEngine):
    assert engine.context == CONTEXT
    text = np.full(CONTEXT - 3, 5, np.int32)
    engine.add([GenerationRequest("long", text, SamplingParams(10))])
    assert len(drain(engine)["long"].tokens) == 3


def test_prompts_that_cannot_be_answered_are_refused(engine: VllmEngine):
    good = requests(prompts(1), 1)
    for text, words in (
        (np.zeros(0, np.int32), "the prompt is empty"),
        (np.array([3, VOCAB], np.int32), f"token id {VOCAB}; the model knows 0 to {VOCAB - 1}"),
        (np.full(CONTEXT, 3, np.int32), f"the prompt has {CONTEXT} tokens, but the context holds {CONTEXT}"),
    ):
        with pytest.raises(TaskError, match=words):
            engine.add([*good, GenerationRequest("bad", text, SamplingParams(4))])
        assert engine.waiting == 0


def test_progress_tells_each_token_once(engine: VllmEngine):
    engine.add(requests(prompts(6), 12))
    told: dict[int, list[tuple[int, float]]] = {place: [] for place in range(6)}
    ended = {}
    while engine.active or engine.waiting:
        for result in engine.step():
            ended[result.id] = result
        for new in engine.progress({place: len(seen) for place, seen in told.items()}):
            told[new.id] += zip(new.tokens.tolist(), new.logprobs.tolist(), strict=True)
    for place, result in ended.items():
        assert [token for token, _ in told[place]] == result.tokens.tolist()[: len(told[place])]
        assert [logprob for _, logprob in told[place]] == result.logprobs.tolist()[: len(told[place])]
        assert len(told[place]) == 11, "the last token comes with the result"
    assert engine.progress(dict.fromkeys(range(6), 0)) == []


def test_aborted_sequences_leave_their_slots(engine: VllmEngine):
    work = requests(prompts(7), 12)
    engine.add(work)
    first = engine.step()
    engine.abort([1, 5, "unknown"])
    assert (engine.active, engine.waiting) == (SLOTS - 1, 2)
    found = {result.id: result for result in first} | drain(engine)
    assert sorted(found) == [0, 2, 3, 4, 6]
    assert all(len(result.tokens) == 12 for result in found.values())


def test_new_weights_are_those_of_the_trainer_there_and_back(
    engine: VllmEngine, folder: Path, weights: dict[str, torch.Tensor]
):
    """Every matrix, the output head included, tied or not; also the keys and values of a prompt that was there before."""
    other = create_engine(folder, slots=SLOTS)
    texts = [*prompts(5), np.resize(prompts(1)[0], 200), np.resize(prompts(1)[0], 200)]
    work = requests(texts, 15, temperature=0.0)
    seen = []
    for version, tensors in enumerate((changed(weights), weights, changed(weights, seed=4)), start=1):
        for one in (engine, other):
            one.load_weights(tensors, version)
            one.add(work)
        found, expected = drain(engine), drain(other)
        for place, result in found.items():
            assert result.tokens.tolist() == expected[place].tokens.tolist()
            np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
            assert set(result.versions.tolist()) == {version}
        seen.append(tuple(found[5].tokens.tolist()))
    assert len(set(seen)) == 3, "the weights are too much alike to tell"


def test_sequences_in_flight_go_on_with_new_weights(
    engine: VllmEngine, folder: Path, weights: dict[str, torch.Tensor]
):
    other = create_engine(folder, slots=SLOTS)
    work = requests(prompts(6), 20, temperature=0.0)
    found, expected = {}, {}
    for one, results in ((engine, found), (other, expected)):
        one.add(work)
        for _ in range(7):
            results.update({result.id: result for result in one.step()})
        one.load_weights(changed(weights), 1)
        assert one.version == 1
        results.update(drain(one))
    for place, result in found.items():
        assert result.versions.tolist() == expected[place].versions.tolist()
        assert result.tokens.tolist() == expected[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
    assert found[0].versions.tolist() == [0] * 7 + [1] * 13


def test_weights_of_another_model_leave_it_as_it_was(engine: VllmEngine, weights: dict[str, torch.Tensor]):
    work = requests(prompts(3), 10, temperature=0.0)
    engine.add(work)
    before = drain(engine)
    other, name = changed(weights), "model.layers.1.mlp.down_proj.weight"
    for tensors, words in (
        ({key: value for key, value in other.items() if key != name}, f"tensor {name} is missing"),
        ({**other, name: other[name][:-1]}, f"tensor {name} has shape"),
        ({**other, "model.layers.2.mlp.down_proj.weight": other[name]}, "is not part of a"),
    ):
        with pytest.raises(ModelError, match=f"^weights of version 1: .*{words}"):
            engine.load_weights(tensors, 1)
    assert engine.version == 0
    engine.add(work)
    after = drain(engine)
    for place, result in after.items():
        assert result.logprobs.tolist() == before[place].logprobs.tolist()


def test_weights_that_are_not_numbers_spoil_nothing_that_follows(
    engine: VllmEngine, weights: dict[str, torch.Tensor]
):
    work = requests(prompts(6), 10)
    engine.add(work)
    before = drain(engine)
    engine.load_weights({name: value * torch.nan for name, value in weights.items()}, 1)
    engine.add(work)
    for result in drain(engine).values():
        assert np.isnan(result.logprobs).all()
        assert ((result.tokens >= 0) & (result.tokens < VOCAB)).all()
    engine.load_weights(weights, 2)
    engine.add(work)
    for place, result in drain(engine).items():
        assert result.tokens.tolist() == before[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, before[place].logprobs, atol=CLOSE)


def test_a_family_that_our_decoder_does_not_run(model_folder: Callable[[str], Path]):
    folder = model_folder("gpt2")
    engine, other = (
        create_engine(folder, kind="vllm", slots=4),
        create_engine(folder, slots=9),
    )
    weights = load_model(folder).hf_state_dict()
    for version, tensors in enumerate((changed(weights), weights)):
        for one in (engine, other):
            one.load_weights(tensors, version)
            one.add(requests(prompts(9), 20, temperature=0.0))
        expected = drain(other)
        for place, result in drain(engine).items():
            assert result.tokens.tolist() == expected[place].tokens.tolist()
            np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
    with pytest.raises(
        ModelError, match=r"^weights of version 2: tensor transformer\.wpe\.weight is missing"
    ):
        engine.load_weights({name: value for name, value in weights.items() if "wpe" not in name}, 2)
    with pytest.raises(TaskError, match=f"the context holds {CONTEXT}"):
        engine.add([GenerationRequest(0, np.full(CONTEXT, 3, np.int32), SamplingParams(1))])


def test_room_for_fewer_sequences_than_there_are_slots(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    """Some are put off, and computed again: what comes out is the same."""
    folder = model_folder("qwen2-tied")
    texts = [np.resize(text, 100) for text in prompts(7)]
    work = requests(texts, 100, temperature=0.0)
    sampled = requests(texts, 100)
    whole, other = create_engine(folder, kind="vllm", slots=4), create_engine(folder, slots=4)
    for engine, given in ((whole, sampled), (other, work)):
        engine.add(given)
    expected, drawn = drain(other), drain(whole)
    # Each needs two blocks of 128 tokens; there are five, and one that vLLM keeps.
    monkeypatch.setattr(vllm_arguments, "CPU_CACHE", 6 * cache_bytes(folder, 1, 4) // 4)
    engine = create_engine(folder, kind="vllm", slots=4)
    engine.add(work)
    steps, found = 0, {}
    while engine.active or engine.waiting:
        found.update({result.id: result for result in engine.step()})
        steps += 1
    assert steps > 300, "there was room for all"
    for place, result in found.items():
        assert result.tokens.tolist() == expected[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
    engine.add(sampled)
    for place, result in drain(engine).items():
        assert result.tokens.tolist() == drawn[place].tokens.tolist()


def test_a_tied_model_whose_weights_hold_a_head(model_folder: Callable[[str], Path], tmp_path: Path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder("qwen2-tied"), folder)
    tensors = read_tensors(folder)
    new, work = changed(tensors), requests(prompts(3), 10, temperature=0.0)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    engine, other = create_engine(folder, kind="vllm", slots=4), create_engine(folder, slots=4)
    for one in (engine, other):
        one.load_weights(new, 1)
        one.add(work)
    expected = drain(other)
    for place, result in drain(engine).items():
        assert result.tokens.tolist() == expected[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
    tensors["lm_head.weight"] *= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"config\.json ties the output head .* another lm_head\.weight"):
        create_engine(folder, kind="vllm", slots=1)


def test_one_generator_for_all(model_folder: Callable[[str], Path]):
    """As a run's samplers have it with stale weights: other tokens each time, with exact log-probs and versions."""
    folder = model_folder("qwen2-tied")
    decoder = load_decoder(folder)
    options = VllmOptions(seed=5, max_model_len=64)
    engine = create_engine(folder, kind="vllm", slots=SLOTS, options=options)
    assert engine.context == 64
    work = requests(prompts(9), 20, temperature=0.7, top_p=0.8)
    drawn = []
    for version in (1, 2):
        engine.load_weights(decoder.hf_state_dict(), version)
        engine.add(work)
        found = drain(engine)
        for place, result in found.items():
            exact = exact_logprobs(decoder, work[place], result.tokens)
            np.testing.assert_allclose(result.logprobs, exact, atol=CLOSE)
            assert result.versions.tolist() == [version] * 20
        drawn.append([found[place].tokens.tolist() for place in sorted(found)])
    assert drawn[0] != drawn[1]


def test_what_cannot_be_opened_is_named(tmp_path: Path, folder: Path):
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        create_engine(tmp_path, kind="vllm", slots=1)
    with pytest.raises(ValueError, match="slots is 0"):
        create_engine(folder, kind="vllm", slots=0)
    with pytest.raises(
        InvalidConfig, match=r"^spec\.sampler\.engine: found vllm, installed in a build for CPUs"
    ):
        create_engine(folder, kind="vllm", slots=1, device="cuda")
