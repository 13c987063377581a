"""The tokens of a group as compact arrays, and the one flat form in which they travel and are stored.

Per trajectory of T tokens, S of them sampled: `tokens` int32 [T] (prompt, completions and what an environment
said, in order), `mask` bool [T] (True where the policy sampled the token), `logprobs` float32 [S] and
`versions` int32 [S] (of the sampled tokens only). Never text, never logits: about 5 bytes per token and 8
more per sampled token.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_api.errors import RLTrainError

_MAGIC = b"RLG1"
_HEADER = struct.Struct("<4sIQQ")  # magic, trajectories, tokens, sampled tokens

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trajectory:
    """One sampled sequence: `tokens` [T], `mask` [T], `logprobs` [S], `versions` [S] with S = mask.sum()."""

    tokens: Int32
    mask: Bool
    logprobs: Float32
    versions: Int32


@dataclass(frozen=True)
class GroupMeta:
    """What the buffer knows of a group; the tokens are in the payload.

    `rewards`, `lengths` (completion tokens): one per trajectory. `min_version`, `max_version`: oldest and
    newest weight version among its tokens. `tokens`: prompt and completion tokens of all trajectories (for
    token budgets). `extra`: anything JSON-able the sampler wants to hand to the learner or the report.
    """

    group_id: int
    rewards: list[float]
    lengths: list[int]
    min_version: int
    max_version: int
    tokens: int = 0
    priority: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GroupPayload:
    """The trajectories of one group, concatenated; `offsets` [G + 1]: where each begins in `tokens`."""

    offsets: Int32
    tokens: Int32
    mask: Bool
    logprobs: Float32
    versions: Int32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def trajectories(self) -> list[Trajectory]:
        """The trajectories as views of the blocks (read-only where the payload came over the wire)."""
        sampled = np.concatenate([[0], np.cumsum(self.mask, dtype=np.int64)])
        parts = []
        for begin, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            first, last = sampled[begin], sampled[end]
            parts.append(
                Trajectory(
                    self.tokens[begin:end],
                    self.mask[begin:end],
                    self.logprobs[first:last],
                    self.versions[first:last],
                )
            )
        return parts

    def to_bytes(self) -> bytes:
        """The flat form: header, offsets, tokens, log-probs, versions, mask; little-endian."""
        header = _HEADER.pack(_MAGIC, len(self), len(self.tokens), len(self.logprobs))
        blocks = (self.offsets, self.tokens, self.logprobs, self.versions, self.mask)
        return b"".join([header, *(block.tobytes() for block in blocks)])


def pack_group(trajectories: Sequence[Trajectory]) -> GroupPayload:
    """Concatenate trajectories. Raises RLTrainError when the lengths of one do not fit together."""
    for index, one in enumerate(trajectories):
        sampled = int(np.count_nonzero(one.mask))
        if len(one.mask) != len(one.tokens) or len(one.logprobs) != sampled or len(one.versions) != sampled:
            raise RLTrainError(
                f"trajectory {index} has {len(one.tokens)} tokens, {len(one.mask)} mask entries "
                f"({sampled} sampled), {len(one.logprobs)} log-probs "
                f"and {len(one.versions)} versions: they must match"
            )
    lengths = [len(one.tokens) for one in trajectories]
    return GroupPayload(
        offsets=np.cumsum([0, *lengths], dtype=np.int32),
        tokens=_block([one.tokens for one in trajectories], np.int32),
        mask=_block([one.mask for one in trajectories], np.bool_),
        logprobs=_block([one.logprobs for one in trajectories], np.float32),
        versions=_block([one.versions for one in trajectories], np.int32),
    )


def unpack_group(data: Any) -> GroupPayload:
    """The payload in `data` (bytes-like), as views of it. Raises RLTrainError when it is damaged."""
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size:
        raise RLTrainError(f"a group's payload has only {len(view)} bytes")
    magic, groups, tokens, sampled = _HEADER.unpack_from(view)
    expected = _HEADER.size + 4 * (groups + 1) + 5 * tokens + 8 * sampled
    if magic != _MAGIC or len(view) != expected:
        raise RLTrainError(
            f"a group's payload is damaged: {len(view)} bytes where its header says {expected}"
        )
    position = _HEADER.size
    blocks: list[np.ndarray] = []
    for dtype, count in (
        (np.int32, groups + 1),
        (np.int32, tokens),
        (np.float32, sampled),
        (np.int32, sampled),
        (np.bool_, tokens),
    ):
        block = np.frombuffer(view, dtype, count, position)
        position += block.nbytes
        blocks.append(block)
    offsets, token_block, logprobs, versions, mask = blocks
    return GroupPayload(offsets, token_block, mask, logprobs, versions)


def _block(parts: Sequence[npt.ArrayLike], dtype: type) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype) for part in parts]) if parts else np.zeros(0, dtype)
