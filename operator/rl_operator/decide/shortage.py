"""What schedulers write about pods that they cannot place: of what there is too little, and for whom. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rl_operator.plan.roles import Role

_SHORT: Final = re.compile(
    r"[Ii]nsufficient ([\w.\-/]*\w)|didn't have enough resources?: ((?:GPU |CPU )?[\w.\-/]*\w)"
)
_GAP: Final = re.compile(r"([\w.\-/]+):\{\{")
"""A resource in the gap that coscheduling finds in the whole cluster, as Go prints it."""

_OTHERS: Final = re.compile(r"\bgang\b|pod ?group|sibling pods|minAvailable|possibly be assigned", re.I)
_NODES: Final = re.compile(
    r"node\(s\) (?:had|have|didn't|that)|untolerated|affinity|selector|PersistentVolumeClaim"
)

_WHOLE: Final = "resource gap"


def short_of(text: str) -> list[str]:
    """Resources of which there is too little."""
    found = {name for pair in _SHORT.findall(text) for name in pair if name}
    return sorted(found | set(_GAP.findall(text) if _WHOLE in text else ()))


def waits_for_others(text: str) -> bool:
    """Whether it is only said of a pod that its gang is not complete, and nothing of nodes for it."""
    return bool(_OTHERS.search(text)) and not short_of(text) and not _NODES.search(text)


def short_role(text: str, own: Role | None, roles: Sequence[Role]) -> Role | None:
    """The role for which there is too little, by what is said of a pod of `own`, or (None) of all pods together."""
    if own is not None and _WHOLE not in text:
        return own
    short = short_of(text)
    asking = (role for role in roles if role.accelerators and role.pool.accelerator_resource in short)
    return next(asking, own)
