"""One sampled sequence, from the engine to the learner's batch; and the group of those of one prompt, packed for travel.

Packed are per trajectory of T tokens, S of them sampled: `tokens` int32 [T] (prompt, completions and what an environment
said, in order), `mask` bool [T] (True where the policy sampled the token), `log_probs` float32 [S] and `versions`
int32 [S] (of the sampled tokens only). Never text, never logits: about 5 bytes per token and 8 more per sampled token.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_api.errors import RLTrainError
from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.observe.timeline import Span

_MAGIC = b"RLG1"
_HEADER = struct.Struct("<4sIQQ")  # magic, trajectories, tokens, sampled tokens

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trajectory:
    """One sampled sequence: `tokens` [T], `mask` [T], `log_probs` [S], `versions` [S] with S = mask.sum().

    Attributes:
        tokens: prompt, completions and what an environment said, in order.
        mask: true for tokens that the policy produced: those are trained on.
        log_probs: the sampler's, of the sampled tokens in order.
        versions: weight version that sampled each of them.
        reward: what the task gave for it.
        truncated: it was cut off before the model ended it.
        advantage: what the algorithm makes of it, see `Advantage`.
    """

    tokens: Int32
    mask: Bool
    log_probs: Float32
    versions: Int32
    reward: float = 0.0
    truncated: bool = False
    advantage: Advantage = 0.0


@dataclass(frozen=True)
class Group:
    """The trajectories of one prompt: numbers of each, which buffer, advantages and plan look at, and their packed arrays.

    Attributes:
        group_id: the prompt's index.
        rewards, lengths (sampled tokens), total_lengths (prompt and observations too), truncated: one per trajectory.
        min_version: oldest weight version among their tokens.
        priority: of the prompt, see `Prompt.priority`.
        spans: what their sampler did since the group before.
        version: the weights when it was admitted; the buffer sets it.
        payload: `pack` of the trajectories, or where the buffer keeps that.
        issue: of the ticket that it was sampled for; None: of the one that its sampler has now.
        prompt_length: tokens before the first one that was sampled, which all of them begin with; 0: not known.
        node: Ray's id of the one that has the payload; empty: not known. No checkpoint has it.
    """

    group_id: int
    rewards: list[float]
    lengths: list[int]
    total_lengths: list[int]
    truncated: list[bool]
    min_version: int
    priority: float = 0.0
    spans: list[Span] = field(default_factory=list)
    version: int = -1
    payload: Any = b""
    issue: int | None = None
    prompt_length: int = 0
    node: str = ""

    @classmethod
    def of(
        cls,
        group_id: int,
        members: Sequence[Trajectory],
        *,
        priority: float = 0.0,
        spans: Sequence[Span] = (),
        issue: int | None = None,
        node: str = "",
    ) -> Group:
        """Packs the trajectories of one prompt. Raises RLTrainError when the lengths of one do not fit together."""
        return cls(
            group_id=group_id,
            rewards=[one.reward for one in members],
            lengths=[len(one.versions) for one in members],
            total_lengths=[len(one.tokens) for one in members],
            truncated=[one.truncated for one in members],
            min_version=min(int(one.versions.min()) for one in members if len(one.versions)),
            priority=priority,
            spans=list(spans),
            payload=pack(members),
            issue=issue,
            prompt_length=min((int(one.mask.argmax()) for one in members if one.mask.any()), default=0),
            node=node,
        )

    def trajectories(self, payload: Any) -> list[Trajectory]:
        """The members, from the bytes of `payload`. Raises RLTrainError when these are damaged."""
        return [
            replace(one, reward=reward, truncated=truncated)
            for one, reward, truncated in zip(unpack(payload), self.rewards, self.truncated, strict=True)
        ]

    def dump(self) -> dict[str, Any]:
        """All but the payload and where it is, as plain JSON-able values."""
        kept = [one.name for one in fields(self) if one.name not in ("payload", "node")]
        return {name: getattr(self, name) for name in kept}

    @classmethod
    def load(cls, state: Mapping[str, Any], payload: Any) -> Group:
        """The inverse of `dump`."""
        return cls(**{**state, "spans": [Span(*span) for span in state["spans"]]}, payload=payload)


def pack(trajectories: Sequence[Trajectory]) -> bytes:
    """The flat form: header, offsets, tokens, log-probs, versions, mask; little-endian.

    Raises RLTrainError when the lengths of a trajectory do not fit together.
    """
    for index, one in enumerate(trajectories):
        sampled = int(np.count_nonzero(one.mask))
        if len(one.mask) != len(one.tokens) or len(one.log_probs) != sampled or len(one.versions) != sampled:
            raise RLTrainError(
                f"trajectory {index} has {len(one.tokens)} tokens, {len(one.mask)} mask entries "
                f"({sampled} sampled), {len(one.log_probs)} log-probs "
                f"and {len(one.versions)} versions: they must match"
            )
    offsets = np.cumsum([0, *(len(one.tokens) for one in trajectories)], dtype=np.int32)
    blocks = (
        offsets,
        _block([one.tokens for one in trajectories], np.int32),
        _block([one.log_probs for one in trajectories], np.float32),
        _block([one.versions for one in trajectories], np.int32),
        _block([one.mask for one in trajectories], np.bool_),
    )
    header = _HEADER.pack(_MAGIC, len(trajectories), len(blocks[1]), len(blocks[2]))
    return b"".join([header, *(block.tobytes() for block in blocks)])


def packed_bytes(group: Group) -> int:
    """Bytes of the payload of a group, wherever that is."""
    return _packed_bytes(len(group.lengths), sum(group.total_lengths), sum(group.lengths))


def _packed_bytes(count: int, tokens: int, sampled: int) -> int:
    return _HEADER.size + 4 * (count + 1) + 5 * tokens + 8 * sampled


def unpack(data: Any) -> list[Trajectory]:
    """The trajectories in `data` (bytes-like), as views of it. Raises RLTrainError when it is damaged."""
    view = memoryview(data).cast("B")
    if len(view) < _HEADER.size:
        raise RLTrainError(f"a group's payload has only {len(view)} bytes")
    magic, count, tokens, sampled = _HEADER.unpack_from(view)
    expected = _packed_bytes(count, tokens, sampled)
    if magic != _MAGIC or len(view) != expected:
        raise RLTrainError(
            f"a group's payload is damaged: {len(view)} bytes where its header says {expected}"
        )
    position = _HEADER.size
    blocks: list[np.ndarray] = []
    for dtype, length in (
        (np.int32, count + 1),
        (np.int32, tokens),
        (np.float32, sampled),
        (np.int32, sampled),
        (np.bool_, tokens),
    ):
        block = np.frombuffer(view, dtype, length, position)
        position += block.nbytes
        blocks.append(block)
    offsets, token_block, log_probs, versions, mask = blocks
    before = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    return [
        Trajectory(
            token_block[begin:end],
            mask[begin:end],
            log_probs[before[begin] : before[end]],
            versions[before[begin] : before[end]],
        )
        for begin, end in itertools.pairwise(offsets)
    ]


def _block(parts: Sequence[npt.ArrayLike], dtype: type) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype) for part in parts]) if parts else np.zeros(0, dtype)
