"""What of new weights goes to vLLM's workers; vLLM itself is not needed."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_trainer.rollout.engines.vllm import VllmEngine
from rl_trainer.weights.payload import BLOCK_BYTES

Sent = list[tuple[str, torch.Tensor]]


class Workers:
    """Stands in for vLLM's `LLMEngine`: keeps what its workers are called for, and the weights that they are sent."""

    def __init__(self, devices: int) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: 8, max_model_len=8),
            parallel_config=SimpleNamespace(world_size=devices),
            kv_transfer_config=None,
        )
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(batch_queue=None))
        self.calls: list[str] = []
        self.loaded: list[Sent] = []

    def collective_rpc(self, method: str, args: tuple[Sent, ...] = ()) -> None:
        self.calls.append(method.removeprefix("rltrain_"))
        self.loaded.extend(args)

    def abort_request(self, keys: Any) -> None:
        assert not keys


def loaded(devices: int, tensors: dict[str, torch.Tensor]) -> Workers:
    workers = Workers(devices)
    VllmEngine(workers, lambda shapes, where: None, slots=1).load_weights(tensors, 1)
    return workers


@pytest.mark.parametrize("devices", [1, 2])
def test_a_worker_in_its_own_process_gets_a_tensor_without_the_block_around_it(devices: int):
    block = torch.arange(1 << 16, dtype=torch.float32)
    (sent,) = loaded(devices, {"a": block[:4], "b": block[4:8]}).loaded
    assert [(name, value.tolist()) for name, value in sent] == [("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7])]
    if devices == 1:
        assert sent[0][1].data_ptr() == block.data_ptr(), "nothing is copied in one process"
    else:
        assert len(pickle.dumps(sent)) < block.nbytes // 8


def test_no_call_holds_more_than_a_block_of_the_weights():
    third = torch.empty(BLOCK_BYTES // 3, dtype=torch.uint8)
    large = torch.empty(BLOCK_BYTES + 1, dtype=torch.uint8)
    tensors = {"a": third, "b": third, "c": third, "d": third, "large": large, "e": third}
    workers = loaded(1, tensors)
    assert [[name for name, _ in block] for block in workers.loaded] == [
        ["a", "b", "c"],
        ["d"],
        ["large"],
        ["e"],
    ]
    assert workers.calls == ["begin_weights", *["load_weights"] * 4, "end_weights", "repack_heads"]
