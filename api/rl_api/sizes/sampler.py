"""Memory of one device of a sampler, and how many keys and values it has room for. Pure.

An engine divides the layers over pipeline stages, and each layer over tensor-parallel devices. Of the memory that it may
take (vLLM: `gpuMemoryUtilization` of the device) weights, the highest point of a forward pass and what is nobody's
tensors go first; all the rest is for keys and values, in blocks of 16 tokens (Kwon et al. 2023, arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rl_api.sizes.memory import Device, Parts
from rl_api.sizes.shape import ModelShape

BLOCK: Final = 16
"""Tokens of one block of keys and values."""
SWAP: Final = 4 * 2**30
"""Bytes of main memory per device that vLLM's first engine kept for blocks of sequences that had to wait."""
BATCHED_TOKENS: Final = 8192
"""Tokens of one forward pass of vLLM at most, its default for servers."""
UTILIZATION: Final = 0.9
"""Share of a device that vLLM takes where nobody says."""
_BYTES: Final[Mapping[str, int]] = {"fp8": 1}


@dataclass(frozen=True)
class SamplerLayout:
    """How one sampler is spread, and what it has to hold.

    Attributes:
        engine: `vllm` takes a share of the device and fills it; `torch` takes what its sequences need, `endpoint` nothing.
        quantization: of the weights in layers: none or fp8.
        utilization: share of the device's memory that vLLM takes.
        length: longest sequence in tokens, prompt and completion.
        sequences: decoded at once.
        pods: over which its stages are spread.
    """

    engine: str = "vllm"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    half: bool = True
    quantization: str = "none"
    utilization: float = UTILIZATION
    length: int = 32_768
    sequences: int = 64
    pods: int = 1

    @property
    def devices(self) -> int:
        """Of one sampler."""
        return 0 if self.engine == "endpoint" else self.tensor_parallel * self.pipeline_parallel

    @property
    def width(self) -> int:
        """Bytes of one number of activations, keys and values."""
        return 2 if self.half else 4


@dataclass(frozen=True)
class SamplerMemory:
    """One device of a sampler; `allowed`: bytes the engine may take, `left`: of them for keys and values, negative where
    weights alone are too large. `blocks` and `tokens` are those of one sampler, all its devices together."""

    parts: Parts
    allowed: int
    left: int
    blocks: int

    @property
    def tokens(self) -> int:
        """Whose keys and values fit at once."""
        return self.blocks * BLOCK


def sampler_memory(shape: ModelShape, layout: SamplerLayout, device: Device) -> SamplerMemory:
    """Bytes on the fullest device of a sampler, and the room for keys and values. A server outside the run has them all."""
    if layout.engine == "endpoint":
        return SamplerMemory(Parts(), device.memory, device.memory, 0)
    fills = layout.engine == "vllm" and device.accelerator
    allowed = int(device.memory * layout.utilization) if fills else device.memory
    # On a CPU rltrain's own decoder copies a new version to a second set of parameters, while the first decodes.
    sets = 2 if layout.engine == "torch" and shape.fused and not device.accelerator else 1
    needs = Parts(
        weights=sets * weight_bytes(shape, layout),
        activations=activation_bytes(shape, layout),
        overhead=device.overhead,
    )
    room = allowed - needs.total
    blocks = kv_blocks(room, shape, layout)
    per_block = block_bytes(shape, layout)
    if not fills:
        blocks = layout.sequences * -(-layout.length // BLOCK)
    # What the engine asks for: with vLLM all there is, else what its sequences need.
    parts = Parts(
        weights=needs.weights,
        activations=needs.activations,
        caches=blocks * per_block,
        overhead=needs.overhead,
    )
    return SamplerMemory(parts, allowed, room, blocks)


def weight_bytes(shape: ModelShape, layout: SamplerLayout) -> int:
    """Weights on the fullest device: its stage's layers, with embeddings and head, over the tensor-parallel devices.

    Quantised are the layers; embeddings and head stay as they are. With more stages than one, the first has the embeddings
    and the last the head, a copy where both share their weights.
    """
    stages, of_layer = layout.pipeline_parallel, _BYTES.get(layout.quantization, layout.width)
    layers = of_layer * -(-shape.layers // stages) * shape.largest_layer
    outside = shape.outside_parameters
    if stages > 1:
        outside = max(shape.embedding_parameters, shape.vocab * shape.hidden + shape.hidden)
    else:
        layers = of_layer * sum(shape.layer_parameters)
    return -(-(layers + layout.width * outside) // layout.tensor_parallel)


def block_bytes(shape: ModelShape, layout: SamplerLayout) -> int:
    """Keys and values of 16 tokens on one device: 16 x 2 x layers of the stage x key heads of the device x D x bytes.

    A device has at least one head, so that more devices than heads hold some twice.
    """
    layers = -(-shape.layers // layout.pipeline_parallel)
    heads = -(-shape.kv_heads // layout.tensor_parallel)
    return BLOCK * 2 * layers * heads * shape.head_dim * layout.width


def kv_blocks(room: int, shape: ModelShape, layout: SamplerLayout) -> int:
    """Blocks that fit into `room` bytes of every device of a sampler; 0 where there is none."""
    return max(0, room // block_bytes(shape, layout))


def swap_blocks(shape: ModelShape, layout: SamplerLayout, room: int = SWAP) -> int:
    """Blocks that fit into `room` bytes of main memory beside each device."""
    return room // block_bytes(shape, layout)


def activation_bytes(shape: ModelShape, layout: SamplerLayout) -> int:
    """The highest point of a forward pass of 8192 tokens (with the torch engine: of one token of each sequence).

    Input, norm and residual; projections of attention, or of the feed-forward layer if these are wider; and float32 logits
    of every sequence, with their softmax and the sorted copy that sampling makes.
    """
    tokens = BATCHED_TOKENS if layout.engine == "vllm" else layout.sequences
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    divided = max(2 * queries + 2 * keys, 3 * shape.inner) // layout.tensor_parallel
    routed = 2 * shape.experts_per_token * shape.hidden
    return tokens * layout.width * (3 * shape.hidden + divided + routed) + layout.sequences * shape.vocab * 12
