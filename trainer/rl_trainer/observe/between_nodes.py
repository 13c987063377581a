"""Bytes that came to a node from another one, as those say who read them there.

A version of weights, or the answers of a group, go to a node once, however many actors read them there: Ray's store keeps
what it has fetched. So a reader tells what it read and on which node, and each is counted once for each node. Where two
actors of a node ask in the same moment, or one asks again much later, Ray may move more; a broadcast passes from sampler to
sampler, and is counted as what has to come to each node. What learners reduce and gather among themselves is not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rl_trainer.observe.timeline import MEASURED, Span

_MOST_VERSIONS: Final = 4096
"""Versions by node that are remembered: samplers that load one late are the exception."""


def came_from(source: str, node: str, size: float) -> float:
    """Of `size` bytes that were read on `node`, those that came from another one; none where `source`, the node where they
    were, is empty: not known."""
    return size if source and source != node else 0.0


class BetweenNodes:
    """Counts from spans, over all steps: samplers of a node may load a version in different ones."""

    def __init__(self) -> None:
        self._weights: OrderedDict[tuple[int, str], float] = OrderedDict()

    def step(self, spans: Iterable[Span]) -> dict[str, float]:
        """Bytes of one step by field of `StepRecord`.

        Told are with `load weights` the version, `node` and `elsewhere` (bytes); and with numbers that were measured
        `elsewhere_bytes`, of what nobody else reads, or `node` and `elsewhere` (bytes by group)."""
        weights = passed = 0.0
        answers: dict[tuple[int, str], float] = {}
        for span in spans:
            told = span.args
            if span.name == "load weights" and told.get("elsewhere"):
                weights += self._more(told)
            elif span.name == MEASURED:
                passed += told.get("elsewhere_bytes", 0.0)
                for group, size in told.get("elsewhere", {}).items():
                    answers[group, told["node"]] = size
        return {
            "weights_between_nodes_bytes": weights,
            "answers_between_nodes_bytes": passed + sum(answers.values()),
        }

    def _more(self, told: Mapping[str, Any]) -> float:
        """What this reader needed beyond those of its node before it: with changes alone one may have needed older ones."""
        key = told["version"], told["node"]
        before = self._weights.pop(key, 0.0)
        self._weights[key] = max(before, told["elsewhere"])
        if len(self._weights) > _MOST_VERSIONS:
            self._weights.popitem(last=False)
        return self._weights[key] - before
