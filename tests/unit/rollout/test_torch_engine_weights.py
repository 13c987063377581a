"""New weights in the engine: copied, or prepared beside its steps and exchanged; a bad set changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_engines import decoder, drain, logprobs_of, prompts, requests

from rl_api.errors import ModelError
from rl_trainer.rollout.engines import torch as torch_engine
from rl_trainer.rollout.engines.torch import TorchEngine
from rl_trainer.weights import free_memory as module_of_memory
from rl_trainer.weights.free_memory import MARGIN, free_memory


def test_new_weights_between_two_steps():
    model, later = decoder(1), decoder(2)
    texts = prompts(6, longest=20)
    engine = TorchEngine(model, slots=4)
    engine.version = 7
    engine.add(requests(texts, [10] * 6))
    for _ in range(4):
        engine.step()
    engine.load_weights(later.hf_state_dict(), 8)
    assert engine.version == 8
    found = drain(engine)
    for index in range(4):
        assert found[index].versions.tolist() == [7] * 4 + [8] * 6
        before = logprobs_of(decoder(1), texts[index], found[index].tokens)
        np.testing.assert_allclose(found[index].logprobs[:4], before[:4], atol=3e-5)
        assert abs(found[index].logprobs[4:] - before[4:]).max() > 0.01
    for index in (4, 5):  # started afterwards: the new model's from the first token, prompt included
        assert found[index].versions.tolist() == [8] * 10
        exact = logprobs_of(later, texts[index], found[index].tokens)
        np.testing.assert_allclose(found[index].logprobs, exact, atol=3e-5)


def test_weights_are_copied_and_a_bad_set_changes_nothing():
    engine = TorchEngine(decoder(1), slots=2)
    source = {name: value.clone() for name, value in decoder(2).hf_state_dict().items()}
    engine.load_weights(source, 1)
    for value in source.values():
        value.zero_()
    engine.add(requests(prompts(2), [5, 5]))
    expected = TorchEngine(decoder(2), slots=2)
    expected.add(requests(prompts(2), [5, 5]))
    assert drain(engine)[0].tokens.tolist() == drain(expected)[0].tokens.tolist()
    before = {name: value.clone() for name, value in engine._decoder.hf_state_dict().items()}
    broken = {**source, "model.norm.weight": torch.zeros(3)}
    with pytest.raises(ModelError, match=r"weights of version 2: tensor model\.norm\.weight has shape \[3\]"):
        engine.load_weights(broken, 2)
    assert engine.version == 1
    assert all(torch.equal(value, before[name]) for name, value in engine._decoder.hf_state_dict().items())


def test_weights_that_were_prepared_beside_steps_are_those_that_are_loaded_at_once():
    texts = prompts(6, longest=20)
    found = []
    for ahead in (False, True):
        engine = TorchEngine(decoder(1), slots=4)
        engine.version = 7
        engine.add(requests(texts, [10] * 6))
        for version, after in ((8, 4), (9, 5)):
            source = {name: value.clone() for name, value in decoder(version).hf_state_dict().items()}
            if not ahead:
                for _ in range(after):
                    engine.step()
                engine.load_weights(source, version)
                continue
            void = engine.prepare_weights({name: value + 1 for name, value in source.items()}, 100)
            load = engine.prepare_weights(source, version)
            del void
            for value in source.values():
                value.zero_()
            for _ in range(after):
                engine.step()
            assert engine.version == version - 1
            load()
        found.append(drain(engine))
    assert {8, 9} <= {int(version) for one in found[0].values() for version in one.versions}
    for index, expected in found[0].items():
        assert found[1][index].versions.tolist() == expected.versions.tolist()
        assert found[1][index].tokens.tolist() == expected.tokens.tolist()
        assert found[1][index].logprobs.tolist() == expected.logprobs.tolist()


def test_without_memory_for_a_second_set_weights_are_copied_into_the_first(monkeypatch):
    engine = TorchEngine(decoder(1), slots=2)
    needed = sum(value.nbytes for value in engine._decoder.parameters())
    for version, free, sets in ((2, needed + MARGIN - 1, 1), (3, needed + MARGIN, 2), (4, 0, 2)):
        monkeypatch.setattr(torch_engine, "free_memory", lambda free=free: free)
        source = {name: value.clone() for name, value in decoder(version).hf_state_dict().items()}
        engine.prepare_weights(source, version)()
        assert engine._decoder.bytes_to_prepare() == (needed if sets == 1 else 0)
        assert engine.version == version
        held = engine._decoder.hf_state_dict()
        assert all(torch.equal(value, source[name]) for name, value in held.items())


def test_free_memory_is_that_of_the_tightest_group(tmp_path, monkeypatch):
    class Machine:
        total, available = 100_000, 50_000

    monkeypatch.setattr(module_of_memory.psutil, "virtual_memory", Machine)
    own, outer = tmp_path / "own", tmp_path / "pods"
    inner = outer / "sampler"
    inner.mkdir(parents=True)

    def group(folder, limit, current, idle):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{current}\n")
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {idle}\nactive_file 9\n")

    assert free_memory(tmp_path, own) == 45_000, (
        "what Ray leaves of the machine's; there is no list of groups"
    )
    own.write_text("1:cpu:/elsewhere\n0::/pods/sampler\n")
    group(inner, "max", 5_000, 0)
    assert free_memory(tmp_path, own) == 45_000
    group(outer, 40_000, 12_000, 2_000)
    assert free_memory(tmp_path, own) == 28_000
    group(inner, 20_000, 6_000, 1_000)
    assert free_memory(tmp_path, own) == 14_000
    group(tmp_path, 10_000, 9_900, 0)
    assert free_memory(tmp_path, own) == 0


def test_a_bad_set_cannot_be_prepared_and_changes_nothing():
    engine, source = TorchEngine(decoder(1), slots=2), decoder(2).hf_state_dict()
    with pytest.raises(ModelError, match=r"weights of version 2: tensor model\.norm\.weight has shape \[3\]"):
        engine.prepare_weights({**source, "model.norm.weight": torch.zeros(3)}, 2)
    before = decoder(1).hf_state_dict()
    assert all(torch.equal(value, before[name]) for name, value in engine._decoder.hf_state_dict().items())
    assert engine.version == 0


def test_weights_that_are_not_numbers_spoil_nothing_afterwards():
    good = {name: value.clone() for name, value in decoder(1).hf_state_dict().items()}
    engine = TorchEngine(decoder(1), slots=4)
    engine.load_weights({name: value * torch.nan for name, value in good.items()}, 1)
    engine.add(requests(prompts(4), [20] * 4))
    assert all(np.isnan(result.logprobs).all() for result in drain(engine).values())
    engine.load_weights(good, 2)
    engine.add(requests(prompts(8), [20] * 8))
    for index, result in drain(engine).items():
        exact = logprobs_of(decoder(1), prompts(8)[index], result.tokens)
        np.testing.assert_allclose(result.logprobs, exact, atol=3e-5)
