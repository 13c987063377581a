"""What says where a weight version is. The buffer hands it on to samplers, and imports no torch for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rl_api.roles import WeightTransport


@dataclass(frozen=True)
class Publication:
    """What samplers are handed of one weight version: where it is, not what it is.

    Attributes:
        version: weight version, +1 per publication.
        way: how the version travels.
        blocks: handle in the store of each of its blocks, in order.
        base: what these blocks are to be put on top of, for ways that send a part of the weights only. A receiver that
            does not hold it takes it first.
        whole: all of the same version, for those who do not hold the base, and of `ipc` for those whom it does not reach;
            None: there is none, who does not hold the base goes back along `base`.
        node: Ray's id of the learner's; empty: not known.
    """

    version: int
    way: WeightTransport
    blocks: list[Any]
    base: Publication | None = None
    whole: Publication | None = None
    node: str = ""
