"""A group that one sampler has begun, as bytes for another one that goes on with it. Pure.

Arrays as of a finished group (`trajectory.pack`), and before them what only a group under way has, as JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, cast

from rl_api.errors import RLTrainError
from rl_trainer.buffer.groups import Handed, Ticket
from rl_trainer.rollout.group_rollout import GroupRollout, Member
from rl_trainer.tasks import Score
from rl_trainer.trajectory import pack, unpack

_LENGTH = struct.Struct("<I")


def dump_begun(group: GroupRollout) -> bytes:
    """The members of a group, none of which has an environment."""
    states = [
        {
            "begun": len(member.begun),
            "turns": member.turns,
            "text": member.text,
            "truncated": member.truncated,
            "score": None if member.score is None else vars(member.score),
        }
        for member in group.members
    ]
    words = json.dumps(states).encode()
    return b"".join((_LENGTH.pack(len(words)), words, pack(group.trajectories())))


def load_begun(data: Any) -> Sequence[Member]:
    """The inverse, of bytes-like `data`; seeds come from whoever starts them. Raises RLTrainError when it is damaged."""
    view = memoryview(data).cast("B")
    try:
        (length,) = _LENGTH.unpack_from(view)
        states = json.loads(bytes(view[_LENGTH.size : _LENGTH.size + length]))
    except (struct.error, ValueError):
        raise RLTrainError(f"a group that was handed over is damaged: {len(view)} bytes") from None
    members = []
    for state, one in zip(states, unpack(view[_LENGTH.size + length :]), strict=True):
        tokens = one.tokens.tolist()
        members.append(
            Member(
                seed=0,
                tokens=tokens,
                sampled=one.mask.tolist(),
                logprobs=one.log_probs.tolist(),
                versions=one.versions.tolist(),
                begun=tokens[len(tokens) - state["begun"] :],
                turns=state["turns"],
                truncated=state["truncated"],
                text=state["text"],
                score=None if state["score"] is None else Score(**state["score"]),
            )
        )
    return members


def handed(begun: Sequence[GroupRollout], tickets: Sequence[Ticket]) -> list[Handed]:
    """What one sampler gives to others: groups that it has begun, whose keys are tickets, and `tickets` of which it has
    begun none."""
    started = [(cast(Ticket, group.key), group) for group in begun]
    return [
        *(Handed(one.group_id, group.oldest_version, dump_begun(group), one.issue) for one, group in started),
        *(Handed(one.group_id, None, issue=one.issue) for one in tickets),
    ]
