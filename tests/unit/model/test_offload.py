"""Memory of tensors that is given back for a while: how much the process really gives, and that every bit comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_api.errors import RLTrainError
from rl_trainer.model import offload as module
from rl_trainer.model.offload import Offloader, held_bytes

PAGES = 64 << 10  # numbers: 256 KiB


def tensor(seed: int, numbers: int = PAGES) -> torch.Tensor:
    return torch.randn(numbers, generator=torch.Generator().manual_seed(seed))


def test_every_bit_comes_back_in_place_also_where_storages_are_shared():
    whole, tied = tensor(1), tensor(2)
    odd = tensor(3)[5:-3]  # neither its begin nor its end is one of a page
    first, alias, rows = whole[: PAGES // 2], tied.view(256, -1), tied.view(256, -1)[3]
    parameter = torch.nn.Parameter(tensor(4).view(256, -1))
    zeros = torch.zeros(PAGES)
    with torch.inference_mode():
        cache = tensor(5)
    all_of_them = [whole, first, tied, alias, odd, parameter, zeros, cache]
    before = [(one.data_ptr(), one.detach().clone()) for one in all_of_them]
    offloader = Offloader("learner 0")
    gone = offloader.offload(all_of_them)
    assert offloader.away
    assert held_bytes(all_of_them) * 0.9 < gone <= held_bytes(all_of_them) == 6 * 4 * PAGES
    assert not whole[2048:-2048].any(), "its pages are gone"
    assert offloader.offload(all_of_them) == 0, "away already"
    assert offloader.onload() == gone
    assert offloader.onload() == 0
    for one, (address, value) in zip(all_of_them, before, strict=True):
        assert one.data_ptr() == address
        assert torch.equal(one, value)
    rows.fill_(7)
    assert (alias[3] == 7).all(), "views are still views"


def test_what_is_void_comes_back_as_zeros_where_nothing_else_needs_it():
    buffer, used = tensor(1), tensor(2)
    part = used[:10]
    expected = used.clone()
    offloader = Offloader("learner 0")
    offloader.offload([used], void=[buffer, part])
    offloader.onload()
    assert not buffer[2048:-2048].any()
    assert torch.equal(used, expected)


def test_what_needs_tensors_that_are_away_is_refused():
    offloader = Offloader("learner 3")
    offloader.require("a step")
    offloader.offload([tensor(1)])
    with pytest.raises(
        RLTrainError, match=r"^learner 3: its tensors are offloaded; onload them before a step$"
    ):
        offloader.require("a step")
    offloader.onload()
    offloader.require("a step")


def test_where_there_is_no_room_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one, two = tensor(1), tensor(2)
    expected = [one.clone(), two.clone()]
    offloader = Offloader("learner 0", tmp_path)
    written = module.os.pwrite
    calls = []

    def full(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return written(*arguments)

    monkeypatch.setattr(module.os, "pwrite", full)
    with pytest.raises(
        RLTrainError, match=r"learner 0: its tensors cannot be moved to .*\(No space left on device\)"
    ):
        offloader.offload([one, two])
    assert not offloader.away
    assert torch.equal(one, expected[0])
    assert torch.equal(two, expected[1])
    monkeypatch.undo()
    offloader.offload([one, two])
    offloader.onload()
    assert torch.equal(two, expected[1])


LARGE = """
import json, sys
import numpy as np, torch
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.presets import write_tiny
from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from trajectories import sampled

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

spec = RunSpec.model_validate({
    "model": {"source": "tiny", "tiny": {"hiddenSize": 512, "layers": 4, "intermediateSize": 2048}},
    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    "algorithm": {"learningRate": 1e-3, "kl": {"coefficient": 0.01}},
    "stop": {"maxSteps": 10},
})
write_tiny(sys.argv[1], spec.model.tiny)
learner = Learner(sys.argv[1], spec)
learner.start_reinforcement()
sample = sampled(np.arange(5, 30, dtype=np.int32), np.arange(25) > 4, np.full(20, -4.5, np.float32), 1.0)
part = [MiniBatch([sample], LossDenominators.from_lengths([20]))]
learner.update(part)
before = [value.clone() for value in learner.training.optimizer.state().values()]
held, there = learner.device_bytes, resident()
gone = learner.offload()
away = resident()
learner.onload()
same = all(torch.equal(a, b) for a, b in zip(before, learner.training.optimizer.state().values()))
print(json.dumps([held, gone, there - away, resident() - away, same]))
"""


SAMPLES = """
import json
import torch
from rl_trainer.rollout.engines.torch import TorchEngine
from small_engines import decoder, prompts, requests

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

model = decoder(1, hidden_size=768, intermediate_size=2048, layers=4, head_dim=64, heads=12, max_positions=256)
engine = TorchEngine(model, slots=64)
engine.add(requests(prompts(64, longest=100), [150] * 64))
for _ in range(20):
    engine.step()
tensors = model.hf_state_dict()
before = {name: value.clone() for name, value in tensors.items()}
held, there = engine.device_bytes, resident()
gone = engine.offload()
away = resident()
engine.onload()
back = resident()
same = all(torch.equal(value, tensors[name]) for name, value in before.items())
print(json.dumps([held, gone, there - away, back - away, same and engine.active == 64]))
"""


def moved(script: str, folder: Path) -> list[Any]:
    """What `script` prints in a process of its own: bytes held and moved, by how much it shrank and grew, what is equal."""
    found = subprocess.run(
        [sys.executable, "-c", script, str(folder / "model")],
        env={
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    result: list[Any] = json.loads(found.stdout)
    return result


def test_a_learner_gives_nine_tenths_of_its_bytes_back_to_the_system(tmp_path: Path):
    held, gone, fell, rose, same = moved(LARGE, tmp_path)
    assert held > 200_000_000, "parameters, gradients, two moments and the KL reference"
    assert gone >= 0.99 * held
    assert fell >= 0.9 * held
    assert rose >= 0.7 * held, "gradients of a step that was taken are not brought back"
    assert same


def test_an_engine_with_sequences_in_flight_gives_nine_tenths_of_its_bytes_back_to_the_system(tmp_path: Path):
    held, gone, fell, rose, same = moved(SAMPLES, tmp_path)
    assert held > 150_000_000, "parameters, keys and values"
    assert gone >= 0.99 * held
    assert fell >= 0.9 * held
    assert rose >= 0.6 * held, "of keys and values what was never written is not brought back"
    assert same


class FullGpu(module._OutOfAccelerator):
    """A GPU whose memory another process has taken since."""

    def __init__(self, kept: list[torch.UntypedStorage], void: list[torch.UntypedStorage]):
        self.bytes = 3 * 10**9

    def back(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB.\nSee documentation.")


def test_memory_that_is_missing_for_a_gpu_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA error: cannot allocate pinned memory\nCompile with TORCH_USE_CUDA_DSA.")

    storage = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(module, "_storages", lambda tensors: {0: storage} if tensors else {})
    monkeypatch.setattr(module, "_OutOfAccelerator", refuse)
    offloader = Offloader("learner 1")
    expected = r"^learner 1: its tensors cannot be moved .*\(CUDA error: cannot allocate pinned memory\); give its node"
    with pytest.raises(RLTrainError, match=expected):
        offloader.offload([tensor(1)])
    assert not offloader.away
    monkeypatch.setattr(module, "_OutOfAccelerator", FullGpu)
    offloader.offload([tensor(1)])
    expected = (
        r"^learner 1: 3.0 GB of tensors .*\(CUDA out of memory. Tried to allocate 3 GiB\); another process"
    )
    with pytest.raises(RLTrainError, match=expected):
        offloader.onload()
