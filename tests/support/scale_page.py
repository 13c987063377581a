"""Writes docs/scale.md: what models of several sizes need on H100s, by the formulas of `rl_api.sizes`.

python tests/support/scale_page.py > docs/scale.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from model_configs import LLAMA_2_7B, MODELS

from rl_api.sizes.fit import fewest_shards, smallest_change, wider_sampler
from rl_api.sizes.learner import (
    LearnerLayout,
    checkpoint_bytes,
    kept_bytes,
    layer_bytes_per_token,
    learner_parts,
)
from rl_api.sizes.memory import GB, Device, gigabytes
from rl_api.sizes.sampler import SamplerLayout, block_bytes, kv_blocks, sampler_memory, swap_blocks
from rl_api.sizes.shape import ModelShape, model_shape

H100 = Device(80 * GB)
GPUS = (8, 64, 256)
LENGTH = 32_768
"""Tokens of the longest sequence."""

LEFT = int(3796.3 * 8 * 2**20)
"""Bytes that were left for keys and values on each device in the measurement of pipeline stages."""
STAGES = (1, 2, 4)

_BEGIN = """\
# How much memory a run needs

`rltrain plan run.yaml --profile profile.yaml` says for one run what this page says for some models: what each device has
to hold, before anything starts, and the smallest change with which a run would fit that does not. The tables are written
by `tests/support/scale_page.py` with the functions of `api/rl_api/sizes`, which the command uses too; a test holds that
they are the same. GB are 10^9 bytes; an H100 is reckoned with 80 of them.

- [Formulas](#formulas)
- [Models](#models)
- [Learners](#learners)
- [Samplers](#samplers)
- [Devices that are shared](#devices-that-are-shared)
- [On 8, 64 and 256 GPUs](#on-8-64-and-256-gpus)
- [Pipeline stages and blocks](#pipeline-stages-and-blocks)
- [Seconds of a step](#seconds-of-a-step)
- [What is not in it](#what-is-not-in-it)
"""

_LETTERS = (
    "P: parameters; T: those that learn (P, with LoRA rank x (rows + columns) of every adapted matrix); R: "
    "those in no layer (embeddings, head); f: ranks that share one copy of the model (1 with DDP); w: bytes of "
    "a number in products (2 in bfloat16, 4 in float32); L: layers; H: width; V: vocabulary; q, kv: heads x "
    "head size of queries, of keys; I: width of the feed-forward layer, of all k experts that one token passes "
    "through together; t: tokens of a micro-batch."
)
_OF_LEARNERS = (
    ("weights", "4 P / f", "float32 masters: ZeRO (arXiv 1910.02054), 3.1"),
    ("gradients", "4 T / f", "float32"),
    (
        "optimizer moments",
        "8 T / f, with `learner.optimizerOffload` 2^28 at most",
        "AdamW, two in float32; offloaded they are in the pod's main memory, 8 T / f of each device, and the critic's too",
    ),
    ("KL reference", "4 P / f, with LoRA 0", "a frozen copy; with LoRA the base itself"),
    ("critic", "16 P / f", "a second model that learns"),
    (
        "working copies, f > 1",
        "4 R + (3 w + 4) x layer",
        "FSDP (arXiv 2304.11277), 4: two layers gathered at once, the gradient of one, and what is in no layer; "
        "on CPUs, where nothing is fetched ahead, 4 R + (w + 4) x layer",
    ),
    ("working copies, f = 1", "in bfloat16 2 P", "autocast's"),
    (
        "a layer's activations",
        "t (8 H + w (2 H + 3 (q + kv) + 3 I) + 4 (heads + 2))",
        "arXiv 2205.05198, 4.1, without dropout and scores; of rltrain's own decoder. Families that the library "
        "computes keep more, see `api/rl_api/sizes/learner.py`. With `learner.contextSize` t are a process's own tokens",
    ),
    ("activations", "L of these, with checkpointing 4 t L H and one of these", "arXiv 1604.06174"),
    (
        "logits",
        "2^24 (w + 8) + V H (w + 4)",
        "a chunk of 64 MiB in float32 whatever t and V are; head and its gradient; on CPUs without softmax: "
        "2^24 w + V H (w + 4), a single chunk with its gradient or the head's",
    ),
    ("libraries", "1 GiB, without accelerator 0.6 GiB", "assumed: CUDA context, NCCL, cuBLAS"),
)
_OF_SAMPLERS = (
    (
        "weights",
        "w P / (tensor-parallel size x stages) on the fullest stage; layers in fp8: 1 in place of w; on a CPU twice, as a "
        "new version is copied beside the one that decodes",
    ),
    ("forward pass", "8192 w (3 H + max(2 q + 2 kv, 3 I) / tensor-parallel size), and 12 V of each sequence"),
    (
        "left for keys and values",
        "what the engine may take (`sampler.gpuMemoryUtilization`, 0.9) less the rows above",
    ),
    ("a block of 16 tokens", "16 x 2 x (L / stages) x (key heads / tensor-parallel size) x head size x w"),
)

_OF_SCORING = (
    ("weights", "4 P; of a classifier P without an output head of its own, and H for its row"),
    (
        "forward pass",
        "4 b t (5 H + max(4 q + 2 kv, 3 I)) and 5 b t^2, the mask of attention; of a judge 4 b (b + 1) V, logits where "
        "texts end; where the feed-forward layer has no gate 5 I, where gate and up are one matrix 4 I, and 3 k H with "
        "experts",
    ),
)

_END = """\
## Seconds of a step

`rltrain plan run.yaml --measured RUN` takes times from a run folder (steps from `metrics.jsonl`, the first two left out;
checkpoints from `timeline.json`) and scales them to the run that is planned, on devices that are as fast:

| part | grows with |
| --- | --- |
| generating | tokens of answers x active parameters / devices of samplers |
| scoring | answers / samplers |
| training | tokens of answers x active parameters x passes x epochs / ranks |
| publishing | bytes of the weights, w P |
| a checkpoint | its bytes |

Passes are counted in forward ones: a backward pass is two (arXiv 2001.08361, 2.1) or with LoRA one, activation
checkpointing and a KL reference are one more each, and a critic learns with passes of its own. Answers are taken to be as
long as those measured: a lower `sampler.maxNewTokens` cuts those that are longer, as the run's `placement-profile.json` has
them (without one only their mean is cut), and with a higher one those that were cut are taken to reach it too. With
`buffer.maxStaleness` above 0 a step takes as long as the slower of sampling (generating and scoring) and learning (training
and publishing), else as long as both. Small models leave devices
idle between products and short answers leave attention cheap, so measure a run that is like the one planned: the same
model and devices, and a few steps. Where one of the two was on GPUs and the other is not, or parameters are more than ten
times apart, a sentence says so; where a server decodes (`sampler.engine: endpoint`) it is refused.

## What is not in it

- How memory breaks into pieces: PyTorch's allocator needs some percent more where sizes of micro-batches differ.
- Samples, and what Ray's object store holds, which are in main memory.
- How torch rounds blocks of pinned memory up, to powers of two: offloaded moments can take up to twice as much.
- Seconds, but for [those scaled from another run's](#seconds-of-a-step). Nothing on this page is measured on GPUs yet:
  activations of a layer are held against what autograd keeps on a CPU, a reward model's forward pass against what the
  library's tensors take there, and parameter counts against the library's models
  (`tests/unit/api/sizes`); on CPUs `make bench-memory` holds whole learners against it, see
  [bench/README.md](../bench/README.md#what-was-seen).
"""


_SHARED = """\
## Devices that are shared

Where samplers live on learners' devices (`placement.mode: collocated` or `hybrid`), `rltrain plan` reckons what both
need of one:

- `residency: keep`: the learner's bytes and the sampler's, with the overhead of each one's process;
- `residency: swap`: the larger of the two, and the overhead of the other's process, which stays;
- `residency: auto`: keep where both fit, else swap; where how large the device is is not known, swap on accelerators;
- with `weightSync.transport: ipc`, two versions of the weights besides, in `model.dtype`, which are not moved.

vLLM takes `gpuMemoryUtilization` of the device whoever else is there: with `keep` it must leave the learner its part, and
where neither `keep` nor `swap` fits, the plan says with which value it would. With `swap`, what a pod with accelerators
moves out is in its main memory: the learner's weights, gradients, moments, reference and critic, and the sampler's
weights (its keys and values are dropped); without accelerators it is in a file.
"""


def write() -> str:
    """The page."""
    shapes = {name: model_shape(raw, name) for name, raw in MODELS.items()}
    parts = [
        _BEGIN,
        _formulas(),
        _models(shapes),
        _learners(shapes),
        _samplers(shapes),
        _SHARED,
        _clusters(shapes),
        _stages(),
        _END,
    ]
    return "\n".join(parts)


def _formulas() -> str:
    learners = _table(("of a learner's device", "bytes", "source"), iter(_OF_LEARNERS))
    samplers = _table(("of a sampler's device", "bytes"), iter(_OF_SAMPLERS))
    end = _paragraph(
        "A checkpoint has 4 P + 8 T bytes, with a critic 12 P more. Where learners copy it before they write it "
        "(`checkpoint.asynchronous`; on a cluster only if that is `always`), that much is in main memory, "
        "divided by the ranks."
    )
    scoring = _table(("of a reward model's device", "bytes"), iter(_OF_SCORING))
    texts = _paragraph(
        "Of a reward model (`task.rewardModel`) b are the texts of a pass (`batchSize`; of a classifier whose config.json "
        "names no `pad_token_id` one), and t the tokens of each: those of a sampler's sequence, or as many as the model "
        "reads. It computes in float32 and keeps no keys and values; "
        "libraries take what they take of a learner's device."
    )
    return f"## Formulas\n\n{_paragraph(_LETTERS)}\n{learners}\n{samplers}\n{scoring}\n{texts}\n{end}"


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _models(shapes: Mapping[str, ModelShape]) -> str:
    head = [
        "model",
        "parameters",
        "a token passes",
        "layers x width",
        "heads / of keys",
        "KV of a token",
        "checkpoint",
    ]
    rows = (
        [
            name,
            f"{shape.parameters:,}",
            f"{shape.active_parameters:,}",
            f"{shape.layers} x {shape.hidden}",
            f"{shape.heads} / {shape.kv_heads}",
            f"{block_bytes(shape, SamplerLayout()) // 16 // 1024} KiB",
            gigabytes(checkpoint_bytes(shape, LearnerLayout())),
        ]
        for name, shape in shapes.items()
    )
    return f"## Models\n\n{_table(head, rows)}"


def _learner(**changes: Any) -> LearnerLayout:
    return LearnerLayout(checkpointing=True, **changes)


def _learners(shapes: Mapping[str, ModelShape]) -> str:
    head = [
        "model",
        "state",
        "shards",
        "with KL reference",
        "with critic",
        "LoRA, rank 16",
        "a layer, 1,000 tokens",
    ]
    rows = (
        [
            name,
            gigabytes(kept_bytes(learner_parts(shape, _learner(), H100))),
            *(
                _shards(shape, _learner(**changes))
                for changes in (
                    {},
                    {"reference": True},
                    {"critic": True},
                    {"trained": shape.lora_parameters(16, _targets(shape))},
                )
            ),
            gigabytes(1000 * layer_bytes_per_token(shape, 2)),
        ]
        for name, shape in shapes.items()
    )
    text = (
        "The fewest H100s that hold one copy, in bfloat16 with activation checkpointing and micro-batches of 16,384"
        " tokens, and how full each is; where that would be far more, micro-batches are smaller. State: weights, "
        "gradients and moments together."
    )
    return f"## Learners\n\n{_paragraph(text)}\n{_table(head, rows)}"


def _targets(shape: ModelShape) -> tuple[str, ...]:
    return tuple(shape.linears or {})


def _shards(shape: ModelShape, layout: LearnerLayout) -> str:
    found = layout
    if learner_parts(shape, layout, H100).total > H100.memory:
        change = smallest_change(shape, layout, H100)
        assert change is not None
        found = change.layout
    tokens = f", {found.tokens:,} tokens" if found.tokens < layout.tokens else ""
    return f"{found.shard} ({gigabytes(learner_parts(shape, found, H100).total)}{tokens})"


def _samplers(shapes: Mapping[str, ModelShape]) -> str:
    head = [
        "model",
        "weights",
        "devices",
        "weights of each",
        "left for KV",
        "blocks",
        f"sequences of {LENGTH:,}",
        "with fp8",
    ]

    def rows() -> Iterator[Sequence[str]]:
        for name, shape in shapes.items():
            layout = wider_sampler(shape, SamplerLayout(length=LENGTH), H100)
            quantised = wider_sampler(shape, SamplerLayout(length=LENGTH, quantization="fp8"), H100)
            assert layout is not None
            assert quantised is not None
            memory, other = sampler_memory(shape, layout, H100), sampler_memory(shape, quantised, H100)
            yield [
                name,
                gigabytes(2 * shape.parameters),
                str(layout.devices),
                gigabytes(memory.parts.weights),
                gigabytes(memory.left),
                f"{memory.blocks:,}",
                f"{memory.tokens // LENGTH}",
                f"{quantised.devices}: {other.tokens // LENGTH}",
            ]

    text = (
        f"The fewest H100s with vLLM on which one sequence of {LENGTH:,} tokens fits, in bfloat16, 64 sequences at once; "
        "tensor-parallel sizes divide the heads. With fp8: devices, and sequences."
    )
    return f"## Samplers\n\n{_paragraph(text)}\n{_table(head, rows())}"


def _clusters(shapes: Mapping[str, ModelShape]) -> str:
    head = [
        *("model", "GPUs", "learns", "copies x shards", "tokens of a micro-batch", "of each device"),
        *("samplers x devices", "left for KV", "tokens at once"),
    ]
    text = (
        "Half of the GPUs learn and half sample, as in the tables above; where a copy needs more than half, it gets what it "
        "needs, and samplers the rest. Ranks that a copy does not need hold further copies. Where a copy does not fit, the "
        "micro-batch is halved, down to 2,048 tokens; where that is not enough either, LoRA of rank 16 is what learns."
    )
    rows = ([name, str(gpus), *_cluster(shape, gpus)] for name, shape in shapes.items() for gpus in GPUS)
    return f"## On 8, 64 and 256 GPUs\n\n{_paragraph(text)}\n{_table(head, rows)}"


def _cluster(shape: ModelShape, gpus: int) -> list[str]:
    sampler = wider_sampler(shape, SamplerLayout(length=LENGTH), H100)
    assert sampler is not None
    adapters = shape.lora_parameters(16, _targets(shape))
    for trained in (None, adapters):
        for tokens in (16_384, 8192, 4096, 2048):
            learner = fewest_shards(shape, _learner(tokens=tokens, trained=trained), H100)
            if learner is None or learner.shard + sampler.devices > gpus:
                continue
            copies = max(1, gpus // 2 // learner.shard)
            layout = replace(learner, ranks=copies * learner.shard)
            samplers = (gpus - layout.ranks) // sampler.devices
            memory = sampler_memory(shape, sampler, H100)
            return [
                "all" if trained is None else "LoRA",
                f"{layout.copies} x {layout.shard}",
                f"{tokens:,}",
                gigabytes(learner_parts(shape, layout, H100).total),
                f"{samplers} x {sampler.devices}",
                gigabytes(memory.left),
                f"{samplers * memory.tokens:,}",
            ]
    return ["does not fit", *[""] * 6]


def _stages() -> str:
    shape = model_shape(LLAMA_2_7B, "Llama-2-7B")
    layouts = [SamplerLayout(pipeline_parallel=stages) for stages in STAGES]
    card = Device(int(47.5 * 2**30))
    head = [
        "pipeline stages",
        "a block on each device",
        "blocks, as measured",
        "blocks in main memory",
        "blocks, weights divided",
    ]
    rows = (
        [
            str(layout.pipeline_parallel),
            f"{block_bytes(shape, layout) // 2**20} MiB",
            str(kv_blocks(LEFT, shape, layout)),
            str(swap_blocks(shape, layout)),
            str(sampler_memory(shape, layout, card).blocks),
        ]
        for layout in layouts
    )
    left = f"{LEFT / 2**30:.2f}"
    text = (
        "With more stages each device holds fewer layers, so that a block is smaller and more of them fit. vLLM "
        "once reported 3796, 7592 and 15185 blocks on GPUs, and 512, 1024 and 2048 in main memory, for 1, 2 and 4"
        " stages at a share of 0.9. 512 blocks in its 4 GiB of swap space make a block of 8 MiB, which are 16 "
        f"tokens of Llama-2-7B's shape in 16 bits (32 layers, 32 key heads of 128). 3796 of these are {left} GiB, "
        "about what a card of 48 GB has left beside all weights (12.55 GiB) and a forward pass. That blocks "
        "double exactly says that as much was left on each device whatever the stages were, so that weights were "
        "not divided there. Where they are, as in vLLM today, more is left, and blocks more than double (last "
        "column: 47.5 GiB, with forward pass and libraries as in the formulas)."
    )
    return f"## Pipeline stages and blocks\n\n{_paragraph(text)}\n{_table(head, rows)}"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


if __name__ == "__main__":
    print(write(), end="")
