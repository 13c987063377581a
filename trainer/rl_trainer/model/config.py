"""Which models our decoder runs, read from a Hugging Face `config.json` without the library.

Supported: Llama, Qwen2, Qwen3 and Mistral with full attention, SwiGLU and rotary positions of type default,
linear or llama3. Everything else raises ModelError with the reason; the caller then chooses the library's own
model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rl_api.errors import ModelError

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
FIELD: Final = "model.source: "
"""How a sentence about a source begins, unless the source stands elsewhere."""
RopeType = Literal["default", "linear", "llama3"]


class UnsupportedModelError(ModelError):
    """The folder is sound, but our decoder does not run this family or variant; the library may."""


@dataclass(frozen=True)
class Rope:
    """Rotary position parameters; fields besides `theta` belong to the scaling types `linear` and `llama3`."""

    theta: float = 10_000.0
    type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes and switches of one decoder-only transformer."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_eps: float = 1e-6
    rope: Rope = Rope()
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def groups(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises ModelError naming the file and what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"model folder {path.parent}: {path.name} is missing; a Hugging Face model folder needs it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"model folder {path.parent}: {path.name} cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise ModelError(
            f"model folder {path.parent}: {path.name} is not valid JSON "
            f"(line {error.lineno}, column {error.colno}: {error.msg})"
        ) from None
    if not isinstance(value, dict):
        raise ModelError(f"model folder {path.parent}: {path.name} holds no JSON object")
    return value


def read_config(folder: str | Path) -> DecoderConfig:
    """Read `config.json` of a folder.

    Raises ModelError when it is broken, UnsupportedModelError when it is sound but not for our decoder.
    """
    path = Path(folder) / "config.json"
    return parse_config(read_json(path), where=str(path))


def is_supported(folder: str | Path) -> bool:
    """Whether `load_decoder` can run this folder's model; ModelError when `config.json` itself is broken."""
    try:
        read_config(folder)
    except UnsupportedModelError:
        return False
    return True


def parse_config(raw: dict[str, Any], where: str = "config.json") -> DecoderConfig:
    """Turn the contents of a `config.json` into a DecoderConfig; see `read_config` for the errors."""
    model_type = raw.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{where}: model_type is missing; is this a Hugging Face model folder?")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModelError(
            f"{where}: model_type {model_type!r} is not one that the built-in decoder runs "
            f"({', '.join(SUPPORTED_MODEL_TYPES)})"
        )
    if "quantization_config" in raw:
        raise UnsupportedModelError(
            f"{where}: quantization_config is set; the built-in decoder runs unquantised models"
        )
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(
            f"{where}: hidden_act is {activation!r}; the built-in decoder runs 'silu'"
        )

    hidden = _positive(raw, "hidden_size", where)
    heads = _positive(raw, "num_attention_heads", where)
    kv_heads = _positive(raw, "num_key_value_heads", where, default=heads)
    head_dim = _positive(raw, "head_dim", where, default=128 if model_type == "qwen3" else hidden // heads)
    if heads % kv_heads:
        raise ModelError(
            f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise ModelError(f"{where}: head_dim is {head_dim}; rotary positions need an even number")
    max_positions = _positive(raw, "max_position_embeddings", where)
    _refuse_sliding_window(raw, model_type, max_positions, where)
    attention_bias = bool(raw.get("attention_bias", False))
    return DecoderConfig(
        model_type=model_type,
        vocab_size=_positive(raw, "vocab_size", where),
        hidden_size=hidden,
        layers=_positive(raw, "num_hidden_layers", where),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_positive(raw, "intermediate_size", where),
        max_positions=max_positions,
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope=_rope(raw, max_positions, where),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=model_type == "qwen2" or (model_type in ("llama", "qwen3") and attention_bias),
        output_bias=model_type in ("llama", "qwen3") and attention_bias,
        mlp_bias=model_type == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=model_type == "qwen3",
    )


def _positive(raw: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "missing" if value is None else repr(value)
        raise ModelError(f"{where}: {key} is {found}; a whole number of at least 1 is needed")
    return value


def _refuse_sliding_window(raw: dict[str, Any], model_type: str, max_positions: int, where: str) -> None:
    """Sliding windows change the mask; one that is as long as the context, or switched off, does not."""
    layer_types = raw.get("layer_types") or []
    if any(kind != "full_attention" for kind in layer_types):
        raise UnsupportedModelError(
            f"{where}: layer_types holds other than 'full_attention'; the built-in decoder has no other"
        )
    window = raw.get("sliding_window")
    if model_type == "mistral":
        # The library's default is a window of 4096 when the field is absent, none when it is null.
        window = raw.get("sliding_window", 4096)
    elif not raw.get("use_sliding_window", False) or layer_types:
        window = None
    if window is not None and window < max_positions:
        raise UnsupportedModelError(
            f"{where}: sliding_window is {window}, below max_position_embeddings {max_positions}; "
            "the built-in decoder has full attention only"
        )


def _rope(raw: dict[str, Any], max_positions: int, where: str) -> Rope:
    """Both spellings: `rope_theta` with `rope_scaling`, and `rope_parameters` of library versions from 5 on."""
    parameters = dict(raw.get("rope_scaling") or {})
    parameters.update(raw.get("rope_parameters") or {})
    theta = parameters.get("rope_theta", raw.get("rope_theta"))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(
            f"{where}: rotary positions of type {kind!r}; the built-in decoder runs default, linear, llama3"
        )
    partial = parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1.0, 1):
        raise UnsupportedModelError(
            f"{where}: partial_rotary_factor is {partial}; the built-in decoder runs 1.0"
        )
    if kind != "default" and "factor" not in parameters:
        raise ModelError(f"{where}: rotary positions of type {kind!r} need a factor")
    return Rope(
        theta=float(10_000.0 if theta is None else theta),
        type=kind,
        factor=float(parameters.get("factor", 1.0)),
        low_freq_factor=float(parameters.get("low_freq_factor", 1.0)),
        high_freq_factor=float(parameters.get("high_freq_factor", 4.0)),
        original_max_positions=int(parameters.get("original_max_position_embeddings") or max_positions),
    )
