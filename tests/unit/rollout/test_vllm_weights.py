"""What of new weights goes to vLLM's workers; vLLM itself is not needed."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rl_trainer.rollout.engines.vllm import VllmEngine


class Workers:
    """Stands in for vLLM's `LLMEngine`: keeps the weights that its workers are told to load."""

    def __init__(self, devices: int) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(get_vocab_size=lambda: 8, max_model_len=8),
            parallel_config=SimpleNamespace(world_size=devices),
            kv_transfer_config=None,
        )
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(batch_queue=None))
        self.loaded: list[list[tuple[str, torch.Tensor]]] = []

    def collective_rpc(self, method: str, kwargs: Any = None) -> None:
        if method == "reload_weights":
            self.loaded.append(kwargs["weights_iterator"])

    def abort_request(self, keys: Any) -> None:
        assert not keys


@pytest.mark.parametrize("devices", [1, 2])
def test_a_worker_in_its_own_process_gets_a_tensor_without_the_block_around_it(devices: int):
    block = torch.arange(1 << 16, dtype=torch.float32)
    workers = Workers(devices)
    VllmEngine(workers, lambda shapes, where: None, slots=1).load_weights(
        {"a": block[:4], "b": block[4:8]}, 1
    )
    (sent,) = workers.loaded
    assert [(name, value.tolist()) for name, value in sent] == [("a", [0, 1, 2, 3]), ("b", [4, 5, 6, 7])]
    if devices == 1:
        assert sent[0][1].data_ptr() == block.data_ptr(), "nothing is copied in one process"
    else:
        assert len(pickle.dumps(sent)) < block.nbytes // 8
