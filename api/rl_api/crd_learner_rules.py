"""`rl_api.learner_rules` in CEL. See `rl_api.crd_rules`.

What a run does not say may be in its profile: then the operator compares. So it is always for an adapter without LoRA, as
CEL takes null for what is not said.
"""

from __future__ import annotations

from typing import Final

from rl_api.crd_places import loop_rule, or_value
from rl_api.crd_schema import Rule
from rl_api.learner_rules import SEALED_WAYS

_SEQUENCES: Final = "self.algorithm.promptsPerStep * self.algorithm.groupSize"
_REPLICAS: Final = or_value("learner.replicas", "1")
_ACCELERATORS: Final = or_value("learner.resources.accelerators", "0")
_RANKS: Final = f"({_REPLICAS} * ({_ACCELERATORS} > 1 ? {_ACCELERATORS} : 1))"
_RANKS_SAID: Final = (
    "(self.?learner.?replicas.hasValue() && self.?learner.?resources.?accelerators.hasValue())"
)
_SIZE: Final = or_value("learner.fsdpSize", "1")
_CONTEXT: Final = or_value("learner.contextSize", "1")
_ALONE: Final = f"{_ACCELERATORS} <= 1"
_SEVERAL: Final = f"{_ACCELERATORS} > 1"
_PRODUCT: Final = f"algorithm.promptsPerStep * algorithm.groupSize = {{{_SEQUENCES}}}"
_PROCESSES: Final = "learner.replicas * learner.resources.accelerators"


def _both(rule: str, field: str, message: str) -> list[Rule]:
    """The rule for learners of one process, and for those of several, whose sentence names both numbers.

    NAME in the message: their product; DIVISOR: the same to divide by; FOUND: the same before its value.
    """
    return [
        loop_rule(
            f"{other} || ({rule})",
            field,
            message.replace("NAME", name).replace("DIVISOR", divisor).replace("FOUND", found),
        )
        for other, name, divisor, found in (
            (_SEVERAL, "learner.replicas", "learner.replicas", ""),
            (_ALONE, _PROCESSES, f"({_PROCESSES})", f"{_PROCESSES} = "),
        )
    ]


LEARNER_RULES: Final[list[Rule]] = [
    *_both(
        f"{_SEQUENCES} % {_RANKS} == 0",
        ".learner.replicas",
        f"found FOUND{{{_RANKS}}}, allowed: a divisor of {_PRODUCT}",
    ),
    *_both(
        f"{_SEQUENCES} % {_RANKS} != 0 || {_SEQUENCES} % ({_RANKS} * self.algorithm.miniBatches) == 0",
        ".algorithm.miniBatches",
        "found {self.algorithm.miniBatches}, allowed: a divisor of algorithm.promptsPerStep * "
        f"algorithm.groupSize / DIVISOR = {{{_SEQUENCES} / {_RANKS}}}",
    ),
    loop_rule(
        f"!self.?learner.?fsdpSize.hasValue() || {or_value('learner.parallelism', repr('fsdp2'))} == 'fsdp2'",
        ".learner.fsdpSize",
        f"found {{{_SIZE}}}, allowed: null with learner.parallelism ddp, as only fsdp2 divides a copy",
    ),
    *_both(
        f"{or_value('learner.parallelism', repr('ddp'))} != 'fsdp2' || !{_RANKS_SAID} || {_RANKS} % {_SIZE} == 0",
        ".learner.fsdpSize",
        f"found {{{_SIZE}}}, allowed: a divisor of NAME = {{{_RANKS}}}",
    ),
    *_both(
        f"!{_RANKS_SAID} || {_RANKS} % {_CONTEXT} == 0",
        ".learner.contextSize",
        f"found {{{_CONTEXT}}}, allowed: a divisor of NAME = {{{_RANKS}}}",
    ),
    loop_rule(
        f"{or_value('weightSync.transport', repr('auto'))} != 'collective' || self.trainer.kind != 'rltrain' || "
        f"!{or_value('scheduling.encryption', 'false')}",
        ".weightSync.transport",
        f"found collective, {SEALED_WAYS}",
    ),
]
