"""What of a model decides how much memory it needs, read from its Hugging Face `config.json`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rl_api.base import MOST
from rl_api.errors import ModelError

MOST_LAYERS: Final = 10_000
"""Decoder layers of a model, each of which is counted by itself."""


@dataclass(frozen=True)
class Linear:
    """A linear module of each of `count` layers: weight [rows, columns]."""

    rows: int
    columns: int
    count: int


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer; all counts are of parameters (numbers), not bytes.

    Attributes:
        family: `model_type` of the configuration.
        layer_parameters: of every decoder layer, in order.
        active_layer_parameters: of these, what one token passes through; fewer where there are experts.
        embedding_parameters: token embeddings, and positions where they are learned.
        head_parameters: output head and the norm before it; of the head nothing where it shares the embeddings (`tied`).
        inner: width of what a token passes through between gate and down projection, all its experts together.
        experts: of a layer with experts; 0: the model has none.
        norms: of a layer, each over its width.
        head_norms: whether queries and keys have norms of their own.
        packed: whether queries, keys and values are one product, and gate and up another.
        gated: whether the feed-forward layer has a gate (SwiGLU, GeGLU) beside the projection up.
        pads: whether its configuration names a token for padding.
        fused: whether rltrain's own decoder runs the family, which keeps less for the backward pass.
        linears: modules that LoRA may adapt, by the last part of their names.
    """

    family: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    max_positions: int
    tied: bool
    layer_parameters: tuple[int, ...]
    active_layer_parameters: tuple[int, ...]
    embedding_parameters: int
    head_parameters: int
    experts: int = 0
    experts_per_token: int = 0
    norms: int = 2
    head_norms: bool = False
    packed: bool = False
    gated: bool = True
    pads: bool = False
    fused: bool = False
    linears: Mapping[str, Linear] | None = None

    @property
    def parameters(self) -> int:
        """All of them; shared embeddings count once."""
        return sum(self.layer_parameters) + self.outside_parameters

    @property
    def active_parameters(self) -> int:
        """What one token passes through."""
        return sum(self.active_layer_parameters) + self.outside_parameters

    @property
    def outside_parameters(self) -> int:
        """What is in no decoder layer."""
        return self.embedding_parameters + self.head_parameters

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest decoder layer."""
        return max(self.layer_parameters)

    def lora_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """What adapters of `rank` learn: rank x (rows + columns) of each adapted matrix (Hu et al. 2021, arXiv 2106.09685).

        Raises ModelError when the family has no module of one of the names in `targets`.
        """
        known = self.linears or {}
        for target in targets:
            if target not in known:
                raise ModelError(
                    f"spec.learner.lora.targetModules: found {target}, which a {self.family} model does not have; "
                    f"allowed: {', '.join(known)}"
                )
        return sum(rank * (known[one].rows + known[one].columns) * known[one].count for one in set(targets))


@dataclass(frozen=True)
class _Family:
    """How a family differs from Llama."""

    qkv_bias: Callable[[Mapping[str, Any]], bool] = lambda raw: bool(raw.get("attention_bias", False))
    output_bias: Callable[[Mapping[str, Any]], bool] = lambda raw: bool(raw.get("attention_bias", False))
    mlp_bias: bool = False
    head_norms: bool = False
    norms: int = 2
    tied: bool = False
    head_dim: int | None = None
    packed: bool = False
    pad: int | None = None
    fused: bool = False


def _never(raw: Mapping[str, Any]) -> bool:
    return False


def _always(raw: Mapping[str, Any]) -> bool:
    return True


_FAMILIES: Final[Mapping[str, _Family]] = {
    "llama": _Family(mlp_bias=True, fused=True),
    "mistral": _Family(qkv_bias=_never, output_bias=_never, fused=True),
    "qwen2": _Family(qkv_bias=_always, output_bias=_never, fused=True),
    "qwen3": _Family(head_norms=True, head_dim=128, fused=True),
    "qwen3_moe": _Family(head_norms=True),
    "gemma": _Family(tied=True, head_dim=256, pad=0),
    "gemma2": _Family(tied=True, head_dim=256, norms=4, pad=0),
    "gemma3_text": _Family(tied=True, head_dim=256, norms=4, head_norms=True, pad=0),
    "phi3": _Family(qkv_bias=_never, output_bias=_never, packed=True, pad=32_000),
}
_FLAGS: Final = ("attention_bias", "mlp_bias", "tie_word_embeddings")
FAMILIES: Final = (*_FAMILIES, "gpt2")
"""Values of `model_type` whose sizes are known."""


def model_shape(raw: Mapping[str, Any], where: str = "config.json") -> ModelShape:
    """The shape that the contents of a `config.json` describe; `where` begins the sentences of errors.

    Raises:
        ModelError: the family is not one of FAMILIES, a size is missing, no whole number of at least 1 or too large, or what
            is true or false is neither.
    """
    family = raw.get("model_type")
    if not isinstance(family, str):
        raise ModelError(f"{where}: model_type is missing; is this a Hugging Face model folder?")
    for key in _FLAGS:
        if not isinstance(value := raw.get(key), bool | None):
            raise ModelError(f"{where}: {key}: found {value!r}, allowed: true or false")
    if family == "gpt2":
        return _gpt2(raw, where)
    if family not in _FAMILIES:
        raise ModelError(
            f"{where}: model_type: found {family!r}, whose sizes are not known; allowed: {', '.join(FAMILIES)}"
        )
    return _decoder(raw, family, _FAMILIES[family], where)


def _decoder(raw: Mapping[str, Any], name: str, family: _Family, where: str) -> ModelShape:
    """Of everything that is built as Llama is: attention and a gated feed-forward layer, each behind an RMS norm."""
    hidden, heads = whole(raw, "hidden_size", where), whole(raw, "num_attention_heads", where)
    kv_heads = whole(raw, "num_key_value_heads", where, default=heads)
    head_dim = whole(raw, "head_dim", where, default=family.head_dim or hidden // heads)
    layers, vocab = whole(raw, "num_hidden_layers", where, most=MOST_LAYERS), whole(raw, "vocab_size", where)
    dense = whole(raw, "intermediate_size", where)
    # Versions of the library from 5 on write the second name.
    count = "num_local_experts" if "num_local_experts" in raw else "num_experts"
    experts = whole(raw, count, where) if name == "qwen3_moe" else 0
    per_token = whole(raw, "num_experts_per_tok", where, most=experts) if experts else 0
    inner = whole(raw, "moe_intermediate_size", where) if experts else dense

    queries, keys = heads * head_dim, kv_heads * head_dim
    attention = hidden * (queries + 2 * keys) + queries * hidden
    attention += (queries + 2 * keys) * family.qkv_bias(raw) + hidden * family.output_bias(raw)
    attention += 2 * head_dim * family.head_norms + family.norms * hidden
    biases = 2 * dense + hidden if family.mlp_bias and raw.get("mlp_bias", False) else 0
    plain = attention + 3 * hidden * dense + biases
    router, expert = hidden * experts, 3 * hidden * inner
    sparse = _have_experts(raw, layers, where) if experts else [False] * layers
    tied = bool(raw.get("tie_word_embeddings", family.tied))
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "qkv_proj": (queries + 2 * keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (dense, hidden),
        "up_proj": (dense, hidden),
        "gate_up_proj": (2 * dense, hidden),
        "down_proj": (hidden, dense),
    }
    packed = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
    own = packed if family.packed else tuple(one for one in sizes if one not in ("qkv_proj", "gate_up_proj"))
    # Experts are parameters of one module, and no linear modules that adapters could be put beside.
    counts = {one: layers if "o_proj" in one or one[0] in "qkv" else sparse.count(False) for one in own}
    return ModelShape(
        family=name,
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        inner=max(inner * per_token, dense if False in sparse else 0),
        max_positions=whole(raw, "max_position_embeddings", where),
        tied=tied,
        layer_parameters=tuple(attention + router + experts * expert if has else plain for has in sparse),
        active_layer_parameters=tuple(
            attention + router + per_token * expert if has else plain for has in sparse
        ),
        embedding_parameters=vocab * hidden,
        head_parameters=hidden + (0 if tied else vocab * hidden),
        experts=experts,
        experts_per_token=per_token,
        norms=family.norms,
        head_norms=family.head_norms,
        packed=family.packed,
        pads=raw.get("pad_token_id", family.pad) is not None,
        fused=family.fused,
        linears={one: Linear(*sizes[one], counts[one]) for one in own if counts[one]},
    )


def _have_experts(raw: Mapping[str, Any], layers: int, where: str) -> list[bool]:
    """Which layers of a model with experts have them, as the library's `decoder_sparse_step` and `mlp_only_layers` say."""
    step = whole(raw, "decoder_sparse_step", where, default=1)
    plain = raw.get("mlp_only_layers")
    plain = [] if plain is None else plain
    if not isinstance(plain, list | tuple) or any(type(one) is not int or one < 0 for one in plain):
        raise ModelError(
            f"{where}: mlp_only_layers: found {plain!r}, allowed: a list of numbers of layers, from 0 on"
        )
    return [index not in plain and (index + 1) % step == 0 for index in range(layers)]


def _gpt2(raw: Mapping[str, Any], where: str) -> ModelShape:
    """Learned positions, layer norms with biases, biases everywhere, no gate."""
    hidden, heads = whole(raw, "n_embd", where), whole(raw, "n_head", where)
    layers, vocab = whole(raw, "n_layer", where, most=MOST_LAYERS), whole(raw, "vocab_size", where)
    positions, inner = whole(raw, "n_positions", where), whole(raw, "n_inner", where, default=4 * hidden)
    if heads > hidden:
        raise ModelError(f"{where}: n_head: found {heads}, allowed: at most n_embd, which is {hidden}")
    attention = hidden * 3 * hidden + 3 * hidden + hidden * hidden + hidden
    layer = attention + hidden * inner + inner + inner * hidden + hidden + 4 * hidden
    tied = bool(raw.get("tie_word_embeddings", True))
    return ModelShape(
        family="gpt2",
        vocab=vocab,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        inner=inner,
        max_positions=positions,
        tied=tied,
        layer_parameters=(layer,) * layers,
        active_layer_parameters=(layer,) * layers,
        embedding_parameters=(vocab + positions) * hidden,
        head_parameters=2 * hidden + (0 if tied else vocab * hidden),
        gated=False,
        pads=raw.get("pad_token_id") is not None,
        # `c_proj` is in attention and in the feed-forward layer: rows and columns of both, in one entry of each layer.
        linears={
            "c_attn": Linear(3 * hidden, hidden, layers),
            "c_proj": Linear(2 * hidden, hidden + inner, layers),
            "c_fc": Linear(inner, hidden, layers),
        },
    )


def whole(raw: Mapping[str, Any], key: str, where: str, default: int | None = None, most: int = MOST) -> int:
    """A size of the configuration; ModelError where it is no whole number of at least 1, or above `most`."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "missing" if value is None else f"found {value!r}"
        raise ModelError(f"{where}: {key}: {found}, allowed: a whole number of at least 1")
    if value > most:
        raise ModelError(f"{where}: {key}: found {value}, allowed: at most {most}")
    return value
