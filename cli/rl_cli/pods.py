"""Which pods of a run are meant. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_operator.model.names import ATTEMPT_LABEL, ROLE_LABEL


def newest(pods: Sequence[Mapping[str, Any]], role: str) -> list[Mapping[str, Any]]:
    """The pods of a role that belong to the newest attempt that has any, by name."""
    found = [pod for pod in pods if _labels(pod).get(ROLE_LABEL) == role]
    last = max((_attempt(pod) for pod in found), default=0)
    return sorted((pod for pod in found if _attempt(pod) == last), key=name_of)


def running(pod: Mapping[str, Any]) -> bool:
    """Whether commands can be run in the pod."""
    return (pod.get("status") or {}).get("phase") == "Running" and not pod["metadata"].get(
        "deletionTimestamp"
    )


def name_of(pod: Mapping[str, Any]) -> str:
    """Name of a pod."""
    return str(pod["metadata"]["name"])


def _labels(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return pod["metadata"].get("labels") or {}


def _attempt(pod: Mapping[str, Any]) -> int:
    text = str(_labels(pod).get(ATTEMPT_LABEL, ""))
    return int(text) if text.isdecimal() else 0
