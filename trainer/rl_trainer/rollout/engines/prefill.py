"""Keys and values of prompts, several prompts in one pass.

Matrix products run over the tokens alone, without padding; only attention sees a padded batch. Token rows and
padded lengths come in whole blocks, for the reason `decode` gives: the result of a prompt does not depend on
its companions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from rl_trainer.model.block import Block
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.layers import rms_norm
from rl_trainer.rollout.engines.kv_cache import round_up


@torch.inference_mode()
def prefill(decoder: Decoder, prompts: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
    """Keys and values [layers, 2, B, kv_heads, T, D] of B prompts (at least one token each), T a multiple of
    16.

    Beyond a prompt's own length the values are finite and without meaning.
    """
    config, device = decoder.config, decoder.embed.device
    lengths = np.array([len(prompt) for prompt in prompts])
    count, total, longest = len(prompts), int(lengths.sum()), round_up(int(lengths.max()))
    rows = round_up(total)
    tokens = np.zeros(rows, np.int64)
    tokens[:total] = np.concatenate(prompts)
    column = np.arange(longest)
    # Where each place of the padded batch finds its token row; padding takes row 0, which is as good as any.
    inside = column[None, :] < lengths[:, None]
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    padded_from = np.where(inside, starts[:, None] + column[None, :], 0).reshape(-1)
    # And where each token row stands in the padded batch, with its position.
    packed_from = np.zeros(rows, np.int64)
    packed_from[:total] = np.flatnonzero(inside.reshape(-1))
    positions = torch.from_numpy(packed_from % longest).to(device)
    to_padded = torch.from_numpy(padded_from).to(device)
    to_packed = torch.from_numpy(packed_from).to(device)

    shape = (config.layers, 2, count, config.kv_heads, longest, config.head_dim)
    stored = torch.empty(shape, dtype=decoder.embed.dtype, device=device)
    rotations = decoder.rotations(longest)[positions][:, None]
    x = F.embedding(torch.from_numpy(tokens).to(device), decoder.embed)
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Block)
        q, k, v = layer.project(rms_norm(x, layer.attention_norm, config.norm_eps), rotations)
        heads = torch.cat((q, k, v), dim=1).index_select(0, to_padded).unflatten(0, (count, longest))  # type: ignore[no-untyped-call]
        q, k, v = heads.transpose(1, 2).split((config.heads, config.kv_heads, config.kv_heads), dim=1)
        stored[index, 0].copy_(k)
        stored[index, 1].copy_(v)
        if index == config.layers - 1:
            break  # what follows would only feed a next layer
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=config.groups > 1)
        attended = attended.transpose(1, 2).reshape(count * longest, -1).index_select(0, to_packed)
        x = layer.after_attention(x, attended)
    return stored
