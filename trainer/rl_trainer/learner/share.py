"""A rank's share of a batch: the groups it needs and no others, and by arrays which of their members it computes when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_trainer.algorithms.value_targets import Advantage
from rl_trainer.learner.plan import Member
from rl_trainer.observe.between_nodes import came_from

Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Selection:
    """M trajectories of a share, in the order in which they are computed.

    Attributes:
        groups: [M] position in `Share.payloads`.
        members: [M] position in the group.
        advantages: [M] as one array where each is one number, else a list.
    """

    groups: Int32
    members: Int32
    advantages: Float64 | list[Advantage]

    def member_advantages(self) -> list[Advantage]:
        """One for each trajectory."""
        return self.advantages.tolist() if isinstance(self.advantages, np.ndarray) else self.advantages


@dataclass(frozen=True)
class Share:
    """What one rank gets of a batch.

    Attributes:
        payloads: one per group that the rank needs, as in `Group.payload`: bytes or a reference to them.
        selections: one per mini-batch, possibly empty: a rank takes part in each.
        origins: of each payload its group's id, and Ray's id of the node where it is.
    """

    payloads: tuple[Any, ...]
    selections: tuple[Selection, ...]
    origins: tuple[tuple[int, str], ...]

    def elsewhere(self, node: str, payloads: Sequence[Any]) -> dict[int, float]:
        """By id of its group the bytes of each payload that came to `node` from another; `payloads`: what was fetched."""
        sizes = {
            group: came_from(source, node, len(payload))
            for (group, source), payload in zip(self.origins, payloads, strict=True)
        }
        return {group: size for group, size in sizes.items() if size}


def deal(
    payloads: Sequence[Any],
    chosen: Sequence[Sequence[Sequence[Member]]],
    put: Callable[[bytes], Any] | None = None,
    origins: Sequence[tuple[int, str]] | None = None,
) -> list[Share]:
    """The shares of all ranks.

    Args:
        payloads: of all groups of the batch.
        chosen: per rank, per mini-batch: members; groups by their position in `payloads`.
        put: makes a reference of bytes; asked once for each payload that several ranks need. None: bytes stay bytes.
        origins: see `Share.origins`, of all payloads; None: it is not known where they are.

    Returns:
        One share per rank. Each holds a payload once, however many mini-batches and epochs need it.
    """
    needed = [sorted({member.group for part in parts for member in part}) for parts in chosen]
    if put is not None:
        users = Counter(index for indices in needed for index in indices)
        payloads = [
            put(payload) if users[index] > 1 and isinstance(payload, bytes) else payload
            for index, payload in enumerate(payloads)
        ]
    origins = [(index, "") for index in range(len(payloads))] if origins is None else origins
    shares = []
    for indices, parts in zip(needed, chosen, strict=True):
        places = {index: place for place, index in enumerate(indices)}
        selections = tuple(_selection(part, places) for part in parts)
        mine, where = (tuple(of[index] for index in indices) for of in (payloads, origins))
        shares.append(Share(mine, selections, where))
    return shares


def _selection(members: Sequence[Member], places: dict[int, int]) -> Selection:
    advantages: Float64 | list[Advantage] = [member.advantage for member in members]
    if all(isinstance(one, float | np.floating) for one in advantages):
        advantages = np.array(advantages, np.float64)
    return Selection(
        np.array([places[member.group] for member in members], np.int32),
        np.array([member.member for member in members], np.int32),
        advantages,
    )
