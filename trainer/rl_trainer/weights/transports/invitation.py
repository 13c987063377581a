"""What calls learner and samplers to a broadcast. The driver makes it, and imports no torch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Invitation:
    """To one broadcast.

    Attributes:
        version: weight version that is sent.
        group: name of the group; the same name, the same processes.
        address: host and port at which its members meet.
        size: members, the learner included.
        seconds: for meeting, and again for sending.
        backend: nccl where every member has a CUDA device of its own.
    """

    version: int
    group: str
    address: tuple[str, int]
    size: int
    seconds: float
    backend: Literal["gloo", "nccl"] = "gloo"
