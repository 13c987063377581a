"""A sampler that asks a vLLM server outside the run: what comes back is what our own engine finds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vllm_models import changed, drain, exact_logprobs, requests
from vllm_runs import LEARNING, train
from vllm_server import SECONDS, VllmServer

from rl_api.errors import EndpointError, ModelError
from rl_api.run import TinyModelSpec
from rl_trainer.model.decoder import Decoder, load_decoder
from rl_trainer.model.resolve import resolve_model
from rl_trainer.rollout.engines.base import Engine, GenerationResult
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.endpoint_requests import EndpointOptions

SLOTS = 4
CLOSE = 1e-4
SIZES = {
    "hiddenSize": 128,
    "layers": 2,
    "heads": 4,
    "kvHeads": 2,
    "intermediateSize": 256,
    "maxPositions": 64,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's."""
    return resolve_model("tiny", tmp_path_factory.mktemp("models"), TinyModelSpec.model_validate(SIZES), 1)


@pytest.fixture(scope="module")
def decoder(model: Path) -> Decoder:
    return load_decoder(model)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    found = VllmServer(model, tmp_path_factory.mktemp("server") / "log")
    try:
        yield found
    finally:
        found.kill()


@pytest.fixture(scope="module")
def options(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> EndpointOptions:
    folder = tmp_path_factory.mktemp("shared") / "weights"
    return EndpointOptions(server.url, folder, folder, timeout=SECONDS, cuts=True)


@pytest.fixture(scope="module")
def engine(model: Path, options: EndpointOptions) -> Engine:
    return create_engine(model, kind="endpoint", slots=SLOTS, endpoint=options)


@pytest.fixture(scope="module")
def torch_engine(model: Path) -> Engine:
    return create_engine(model, slots=SLOTS)


def texts(count: int, seed: int = 0) -> list[np.ndarray]:
    """Prompts of the model's printable tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(8, 90, length).astype(np.int32) for length in generator.integers(1, 20, count)]


def same(
    found: dict[object, GenerationResult], expected: dict[object, GenerationResult], version: int
) -> None:
    assert found.keys() == expected.keys()
    for place, result in found.items():
        assert result.tokens.tolist() == expected[place].tokens.tolist()
        np.testing.assert_allclose(result.logprobs, expected[place].logprobs, atol=CLOSE)
        assert set(result.versions.tolist()) == {version}


def test_greedy_tokens_and_new_weights(
    engine: Engine, torch_engine: Engine, decoder: Decoder, options: EndpointOptions
):
    weights = {name: value.clone() for name, value in decoder.hf_state_dict().items()}
    assert (engine.vocab_size, engine.context) == (torch_engine.vocab_size, torch_engine.context)
    work = requests(texts(9), 20, temperature=0.0)
    for version, tensors in enumerate((weights, changed(weights), weights), start=1):
        for one in (engine, torch_engine):
            one.load_weights(tensors, version)
            one.add(work)
        same(drain(engine), drain(torch_engine), version)
    assert len(list(options.folder.iterdir())) == 1, "folders of older versions are left"


def test_logprobs_with_a_cut_are_those_of_all_tokens(engine: Engine, decoder: Decoder):
    engine.load_weights(decoder.hf_state_dict(), 0)
    work = requests(texts(9), 20, temperature=0.7, top_p=0.8)
    engine.add(work)
    for place, result in drain(engine).items():
        exact = exact_logprobs(decoder, work[place], result.tokens)
        np.testing.assert_allclose(result.logprobs, exact, atol=CLOSE)


def test_weights_that_change_while_sequences_are_in_flight(
    engine: Engine, decoder: Decoder, model: Path, request: pytest.FixtureRequest
):
    """What was sampled is of the old weights, the rest of the new ones alone, keys and values as well."""
    before = {name: value.clone() for name, value in decoder.hf_state_dict().items()}
    after = changed(before)
    other = load_decoder(model)
    other.load_hf_state_dict(after)
    engine.load_weights(before, 5)
    for seed in range(1, 6):
        work = requests(texts(SLOTS, seed=seed), 40, temperature=1.0)
        engine.add(work)
        if not engine.step():
            break
        drain(engine)  # a busy machine: the server was done before we looked
    engine.load_weights(after, 6)
    found = drain(engine)
    assert sorted(found) == list(range(SLOTS))
    mixed = 0
    for place, result in found.items():
        old = int((result.versions == 5).sum())
        assert result.versions.tolist() == [5] * old + [6] * (len(result.tokens) - old)
        np.testing.assert_allclose(
            result.logprobs[:old], exact_logprobs(decoder, work[place], result.tokens)[:old], atol=CLOSE
        )
        np.testing.assert_allclose(
            result.logprobs[old:], exact_logprobs(other, work[place], result.tokens)[old:], atol=CLOSE
        )
        mixed += 0 < old < len(result.tokens)
    assert mixed, "no sequence was in flight"


def test_aborted_sequences_leave_their_slots(engine: Engine):
    engine.add(requests(texts(7), 12))
    found = {result.id: result for result in engine.step()}
    engine.abort([1, 5, "unknown"])
    found |= drain(engine)
    assert sorted(set(found) - {1, 5}) == [0, 2, 3, 4, 6]
    assert all(len(result.tokens) == 12 for result in found.values())


def test_weights_of_another_model_are_refused_before_the_server_hears_of_them(
    engine: Engine, decoder: Decoder
):
    weights = decoder.hf_state_dict()
    version = engine.version
    with pytest.raises(ModelError, match="weights of version 9"):
        engine.load_weights({name: value for name, value in weights.items() if "norm" not in name}, 9)
    assert engine.version == version


@pytest.mark.parametrize(("more", "words"), [(8, "no token id"), (-8, "a token id")])
def test_a_server_of_another_vocabulary(
    more: int, words: str, model: Path, options: EndpointOptions, tmp_path: Path
):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    config, tokens = (json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json"))
    size = config["vocab_size"] + more
    vocabulary = tokens["model"]["vocab"]
    tokens["model"]["vocab"] = {text: number for text, number in vocabulary.items() if number < size}
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": size}))
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ModelError, match=rf"its model .* knows {words}.*the run's knows 0 to {size - 1}"):
        create_engine(folder, kind="endpoint", slots=SLOTS, endpoint=options)


def test_a_server_that_is_started_anew_gets_the_weights_again(
    engine: Engine, torch_engine: Engine, decoder: Decoder, server: VllmServer
):
    weights = changed({name: value.clone() for name, value in decoder.hf_state_dict().items()})
    work = requests(texts(6), 30, temperature=0.0)
    for one in (engine, torch_engine):
        one.load_weights(weights, 8)
        one.add(work)
    found = {result.id: result for result in engine.step()}
    server.kill()
    server.start()
    found |= drain(engine)
    same(found, drain(torch_engine), 8)


def test_a_server_that_another_run_has_is_refused_until_it_is_given_back(
    engine: Engine, model: Path, options: EndpointOptions, tmp_path: Path
):
    """The runs below find it free."""
    other = replace(options, folder=tmp_path / "weights", server_folder=tmp_path / "weights")
    with pytest.raises(EndpointError, match=r"a run on .* with folder .*weights has it") as error:
        create_engine(model, kind="endpoint", slots=SLOTS, endpoint=other)
    assert "\n" not in str(error.value)
    engine.close()


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_learns_with_a_server(staleness: int, server: VllmServer, model: Path, tmp_path: Path):
    endpoint = {"url": server.url, "folder": str(tmp_path / "weights"), "timeout": "4m"}
    changes = {
        **LEARNING,
        "model.source": str(model),
        "model.tiny": "null",
        "sampler.engine": "endpoint",
        "sampler.endpoint": json.dumps(endpoint),
        "buffer.maxStaleness": staleness,
    }
    steps = train(tmp_path / "out", changes, 8)
    assert steps[-1].staleness_max <= staleness
    if not staleness:
        # Server and learner compute the same policy: only rounding is between them.
        assert max(abs(step.mismatch_kl) for step in steps) < 1e-6


def test_weights_that_the_server_does_not_find(
    engine: Engine, decoder: Decoder, model: Path, options: EndpointOptions
):
    """The last test: the server has none of either version then."""
    blind = create_engine(
        model, kind="endpoint", slots=SLOTS, endpoint=replace(options, server_folder=Path("/nowhere/weights"))
    )
    with pytest.raises(
        ModelError, match=r"weights of version 3: server .* does not load weights from /nowhere"
    ):
        blind.load_weights(decoder.hf_state_dict(), 3)
