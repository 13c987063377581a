"""Memory of a model that scores, which the library's own forward pass is asked about."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from model_configs import MODELS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rl_api.sizes.memory import ACCELERATOR_OVERHEAD, GB, PROCESS_OVERHEAD, Device
from rl_api.sizes.scoring import ScoringLayout, activation_bytes, scoring_misfit, scoring_parts
from rl_api.sizes.shape import FAMILIES, model_shape
from rl_api.task import RewardModelSpec

H100 = Device(80 * GB)
QWEN = model_shape(MODELS["Qwen2.5-7B"])
SMALL = model_shape(MODELS["Qwen2.5-0.5B"])
SMALL_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2": {"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3": {"intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    "gpt2": {"n_embd": 128, "n_head": 4},
    "gemma": {"intermediate_size": 1024, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    "phi3": {"intermediate_size": 344, "num_attention_heads": 4, "num_key_value_heads": 4},
    "mistral": {
        "intermediate_size": 128,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "head_dim": 32,
    },
    "qwen3_moe": {
        **{
            "intermediate_size": 384,
            "moe_intermediate_size": 48,
            "num_experts": 16,
            "num_experts_per_tok": 4,
        },
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32},
    },
}


class Peak(TorchDispatchMode):
    """Bytes of tensors at the highest point of what runs within, without those that are there before."""

    def __init__(self, before: list[torch.Tensor]) -> None:
        super().__init__()
        self._now = self.most = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self._now += storage.nbytes()
                self.most = max(self.most, self._now)
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return made

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


@pytest.mark.parametrize("length", [64, 512])
@pytest.mark.parametrize("kind", ["classifier", "judge"])
@pytest.mark.parametrize("family", SMALL_CONFIGS)
def test_a_forward_pass_of_the_library_has_no_more_and_not_much_less(
    family: str, kind: str, length: int
) -> None:
    common = {"n_layer": 2} if family == "gpt2" else {"num_hidden_layers": 2, "hidden_size": 128}
    sizes = SMALL_CONFIGS[family] | common | {"vocab_size": 500}
    config = AutoConfig.for_model(
        family, **sizes, bos_token_id=1, eos_token_id=1, pad_token_id=0, num_labels=1
    )
    config.use_cache = False
    opener: Any = AutoModelForSequenceClassification if kind == "classifier" else AutoModelForCausalLM
    model = opener.from_config(config).eval()
    texts = 4
    ids, mask = torch.ones(texts, length, dtype=torch.long), torch.ones(texts, length, dtype=torch.long)
    for row in range(1, texts):
        mask[row, -row * 5 :] = 0
    keep = {} if kind == "classifier" else {"logits_to_keep": torch.unique(mask.sum(1) - 1)}
    peak = Peak([*model.parameters(), *model.buffers(), ids, mask])
    with torch.no_grad(), peak:
        model(input_ids=ids, attention_mask=mask, **keep)
    planned = activation_bytes(model_shape(config.to_dict()), ScoringLayout(kind == "judge", texts, length))
    assert 0.5 * planned < peak.most <= planned


def test_weights_are_in_float32_and_a_classifier_has_a_row_for_its_head() -> None:
    judge, classifier = (scoring_parts(QWEN, ScoringLayout(one, 1, 1), H100) for one in (True, False))
    assert judge.weights == 4 * QWEN.parameters
    assert judge.weights - classifier.weights == 4 * (QWEN.vocab - 1) * QWEN.hidden
    tied = scoring_parts(SMALL, ScoringLayout(False, 1, 1), Device(GB, accelerator=False))
    assert tied.weights == 4 * (SMALL.parameters + SMALL.hidden)
    assert (judge.overhead, tied.overhead) == (ACCELERATOR_OVERHEAD, PROCESS_OVERHEAD)
    assert judge.total == judge.weights + judge.activations + judge.overhead


def test_texts_are_no_longer_than_the_model_reads() -> None:
    spec = RewardModelSpec.model_validate({"source": "org/judge", "kind": "judge", "batchSize": 8})
    assert ScoringLayout.of(spec, QWEN, 4096) == ScoringLayout(True, 8, 4096)
    assert ScoringLayout.of(spec, QWEN, 10**6).length == QWEN.max_positions


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_without_padding_takes_one_text_at_a_time(family: str) -> None:
    """Also where its configuration does not say, as the library reads it."""
    classifier = RewardModelSpec.model_validate({"source": "org/scores", "batchSize": 8})
    config = AutoConfig.for_model(family).to_dict()
    unsaid = {key: value for key, value in config.items() if key != "pad_token_id"}
    by_itself = 8 if AutoConfig.for_model(**unsaid).pad_token_id is not None else 1
    for said, texts in (
        (unsaid, by_itself),
        (config | {"pad_token_id": None}, 1),
        (config | {"pad_token_id": 0}, 8),
    ):
        shape = model_shape(said)
        assert ScoringLayout.of(classifier, shape, 64).texts == texts
        assert ScoringLayout.of(classifier.model_copy(update={"kind": "judge"}), shape, 64).texts == 8


def test_what_does_not_fit_is_told_what_would() -> None:
    layout = ScoringLayout(True, 64, 4096)
    assert scoring_misfit(QWEN, ScoringLayout(True, 16, 4096), H100) is None
    sentence = scoring_misfit(QWEN, layout, H100)
    assert sentence is not None
    assert sentence.startswith(
        "reward model: 7.6 B parameters need 30 GB on one 80 GB device, and a forward pass of 64 texts of 4096 tokens "
    )
    advised = int(sentence.rpartition("set task.rewardModel.batchSize: ")[2])
    assert scoring_misfit(QWEN, ScoringLayout(True, advised, 4096), H100) is None
    assert scoring_misfit(QWEN, ScoringLayout(True, 2 * advised, 4096), H100) is not None
    assert scoring_misfit(QWEN, layout, Device(24 * GB)) == (
        "reward model: 7.6 B parameters need 30 GB on one 24 GB device; no batchSize would do: take larger devices"
    )


def test_a_pod_on_cores_is_told_how_much_memory_would_do() -> None:
    layout = ScoringLayout(False, 1, 512)
    sentence = scoring_misfit(SMALL, layout, Device(2 * 2**30 + PROCESS_OVERHEAD - 2**29, accelerator=False))
    assert sentence is not None
    advised = int(sentence.rpartition("set task.rewardModel.memory: ")[2].removesuffix("Gi, or more"))
    assert (
        scoring_misfit(SMALL, layout, Device(advised * 2**30 + PROCESS_OVERHEAD, accelerator=False)) is None
    )
