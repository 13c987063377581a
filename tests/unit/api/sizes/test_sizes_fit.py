"""What does not fit is said in a sentence, with a change that does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from model_configs import LLAMA_2_7B, MODELS

from rl_api.profile import PoolSpec
from rl_api.sizes.devices import accelerator_memory
from rl_api.sizes.fit import fewest_shards, learner_misfit, sampler_misfit, smallest_change, wider_sampler
from rl_api.sizes.learner import LearnerLayout, learner_parts
from rl_api.sizes.memory import GB, Device
from rl_api.sizes.sampler import SamplerLayout
from rl_api.sizes.shape import ModelShape, model_shape

H100 = Device(80 * GB)
SHAPES = {name: model_shape(raw) for name, raw in MODELS.items()}
QWEN = SHAPES["Qwen2.5-7B"]


@pytest.mark.parametrize(
    ("name", "layout", "sentence"),
    [
        (
            "Qwen2.5-7B",
            LearnerLayout(tokens=4096, checkpointing=True),
            "learner: 7.6 B parameters need 122 GB on one 80 GB device; "
            "shard over 2 (learner.parallelism: fsdp2), with 2 ranks in place of 1",
        ),
        (
            "Qwen2.5-7B",
            LearnerLayout(tokens=4096, checkpointing=True, ranks=8),
            "learner: 7.6 B parameters need 122 GB on one 80 GB device; "
            "shard over 2 (learner.parallelism: fsdp2, learner.fsdpSize: 2)",
        ),
        (
            "Qwen2.5-7B",
            LearnerLayout(ranks=4, shard=4),
            "learner: 7.6 B parameters need 30 GB on each of 4 80 GB devices, and a step 94 GB beside them; "
            "set learner.activationCheckpointing: true",
        ),
        (
            "Qwen2.5-0.5B",
            LearnerLayout(tokens=2**20, checkpointing=True, ranks=2, shard=2),
            "learner: 494 M parameters need 4.0 GB on each of 2 80 GB devices, and a step 141 GB beside them; "
            "set learner.tokensPerMicroBatch: 524288",
        ),
        (
            "Qwen2.5-72B",
            LearnerLayout(ranks=64, shard=64, longest=16_384),
            "learner: 72.7 B parameters need 18 GB on each of 64 80 GB devices, and a step 462 GB beside them; "
            "set learner.activationCheckpointing: true, and set sampler.maxNewTokens and learner.tokensPerMicroBatch: 8192, "
            "or at most that",
        ),
        (
            "Qwen2.5-72B",
            LearnerLayout(ranks=64, shard=64, longest=5000),
            "learner: 72.7 B parameters need 18 GB on each of 64 80 GB devices, and a step 462 GB beside them; "
            "set learner.activationCheckpointing: true, and set learner.tokensPerMicroBatch: 8192",
        ),
        (
            "Qwen2.5-72B",
            LearnerLayout(ranks=64, shard=64, longest=9000, checkpointing=True),
            "learner: 72.7 B parameters need 18 GB on each of 64 80 GB devices, and a step 76 GB beside them; "
            "set learner.tokensPerMicroBatch: 9000",
        ),
        (
            "Qwen2.5-72B",
            LearnerLayout(ranks=64, shard=64, longest=16_384, context=4),
            "learner: 72.7 B parameters need 18 GB on each of 64 80 GB devices, and a step 462 GB beside them; "
            "set learner.activationCheckpointing: true, and set sampler.maxNewTokens: 32768 and "
            "learner.tokensPerMicroBatch: 8192, or at most that",
        ),
        ("Qwen2.5-7B", LearnerLayout(ranks=4, shard=4, checkpointing=True), None),
    ],
)
def test_learners(name: str, layout: LearnerLayout, sentence: str | None) -> None:
    assert learner_misfit(SHAPES[name], layout, H100) == sentence


def test_some_devices_are_too_small_for_any_number_of_them() -> None:
    sentence = learner_misfit(SHAPES["Qwen2.5-72B"], LearnerLayout(), Device(8 * GB))
    assert sentence is not None
    assert sentence.endswith("; no number of shards would do: take larger devices")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("tokens", [1000, 16_384])
def test_what_is_advised_fits_and_less_does_not(name: str, tokens: int) -> None:
    shape, layout = SHAPES[name], LearnerLayout(tokens=tokens)
    change = smallest_change(shape, layout, H100)
    assert change is not None
    assert learner_parts(shape, change.layout, H100).total <= H100.memory
    assert learner_misfit(shape, change.layout, H100) is None
    if change.layout.shard > 1:
        fewer = replace(change.layout, shard=change.layout.shard // 2, checkpointing=True)
        assert learner_misfit(shape, fewer, H100) is not None


def test_ranks_are_a_multiple_of_shards() -> None:
    found = fewest_shards(QWEN, LearnerLayout(tokens=4096, checkpointing=True, ranks=3), H100)
    assert found is not None
    assert (found.shard, found.ranks, found.copies) == (2, 4, 2)


@pytest.mark.parametrize(
    ("shape", "layout", "sentence"),
    [
        (
            SHAPES["Qwen2.5-72B"],
            SamplerLayout(length=8192),
            "sampler: 72.7 B parameters need 145 GB on one 80 GB device, 0.9 of it for vLLM; "
            "set sampler.tensorParallelSize: 4",
        ),
        (
            SHAPES["Qwen3-30B-A3B"],
            SamplerLayout(utilization=0.85, length=65_536),
            "sampler: keys and values of a sequence of 65536 tokens need 6.4 GB on one 80 GB device, 0.85 of it for vLLM, "
            "and 4.8 GB are left; set sampler.maxModelLen: 48880, or at most that",
        ),
        (
            QWEN,
            SamplerLayout(engine="torch", length=32_768, sequences=64),
            "sampler: keys and values of 64 sequences of 32768 tokens need 120 GB on one 80 GB device, and 64 GB are left; "
            "set sampler.maxSequences: 33",
        ),
        (
            model_shape(LLAMA_2_7B),
            SamplerLayout(tensor_parallel=2, length=4096),
            None,
        ),
    ],
)
def test_samplers(shape: ModelShape, layout: SamplerLayout, sentence: str | None) -> None:
    assert sampler_misfit(shape, layout, H100) == sentence


def test_tensor_parallel_sizes_divide_the_heads() -> None:
    found = wider_sampler(SHAPES["Qwen2.5-0.5B"], SamplerLayout(length=1024), Device(2 * GB + 2**28))
    assert found is None or 14 % found.tensor_parallel == 0
    odd = replace(SHAPES["Qwen2.5-72B"], heads=2)
    large = wider_sampler(odd, SamplerLayout(length=1024), H100)
    assert large is not None
    assert (large.tensor_parallel, large.pipeline_parallel) == (2, 2), (
        "stages where heads cannot be divided further"
    )
    assert large.pods == 1
    over_pods = wider_sampler(odd, SamplerLayout(length=1024), H100, per_pod=2)
    assert over_pods == replace(large, pods=2), "each pod has a whole stage"
    assert wider_sampler(odd, SamplerLayout(length=1024), Device(2 * GB)) is None


def test_a_sampler_that_needs_more_than_a_pod_has_is_told_of_several() -> None:
    small = Device(20 * GB)
    sentence = sampler_misfit(SHAPES["Qwen2.5-72B"], SamplerLayout(length=1024, tensor_parallel=8), small)
    assert sentence is not None
    assert sentence.endswith("; set sampler.pipelineParallelSize: 2 and set sampler.podsPerReplica: 2")
    four = SamplerLayout(length=1024, tensor_parallel=2, pipeline_parallel=4, pods=4)
    wider = wider_sampler(SHAPES["Qwen2.5-72B"], four, small, per_pod=4)
    assert wider == replace(four, tensor_parallel=4), "in the pods that it has, where that does"


def test_a_pod_without_accelerators_needs_memory() -> None:
    sentence = sampler_misfit(
        QWEN, SamplerLayout(engine="torch", sequences=1, length=100), Device(8 * GB, False)
    )
    assert sentence == "sampler: 7.6 B parameters need 30 GB on one 8.0 GB pod; give the pods more memory"


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        ({"acceleratorResource": "nvidia.com/mig-1g.10gb"}, 10 * GB),
        (
            {
                "acceleratorResource": "nvidia.com/gpu",
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            },
            80 * GB,
        ),
        (
            {"acceleratorResource": "nvidia.com/gpu", "nodeSelector": {"nvidia.com/gpu.memory": "24576"}},
            24 * 2**30,
        ),
        (
            {
                "deviceClass": {
                    "name": "mig.nvidia.com",
                    "selectors": ["device.attributes['gpu.nvidia.com'].profile == '2g.20gb'"],
                },
                "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"},
            },
            20 * GB,
        ),
        ({"acceleratorResource": "nvidia.com/gpu", "nodeSelector": {"pool": "a"}}, None),
    ],
)
def test_pools_that_say_how_large_their_accelerators_are(pool: dict[str, object], size: int | None) -> None:
    assert accelerator_memory(PoolSpec.model_validate({"name": "one", **pool})) == size
