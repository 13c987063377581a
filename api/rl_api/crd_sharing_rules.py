"""`rl_api.sharing_rules` in CEL. See `rl_api.crd_rules`.

What a run does not say may be in its profile: then the operator compares.
"""

from __future__ import annotations

from typing import Final

from rl_api import sharing_rules as words
from rl_api.crd_places import cel_rule, or_value, size_of
from rl_api.crd_schema import Rule

_MODE: Final = or_value("placement.mode", "''")
_SHARED: Final = "self.placement.sharedSamplers"
_SAID: Final = "self.?placement.?sharedSamplers.hasValue()"
_REPLICAS: Final = "self.sampler.replicas"
_ENGINE: Final = or_value("sampler.engine", "''")
_RANKS_SAID: Final = "self.?learner.?replicas.hasValue()"
_ACCELERATORS: Final = or_value("learner.resources.accelerators", "0")
_RANKS: Final = f"(self.learner.replicas * ({_ACCELERATORS} > 1 ? {_ACCELERATORS} : 1))"
_SHARES: Final = f"({_MODE} == 'collocated' || {_MODE} == 'hybrid' || ({_SAID} && {_SHARED} > 0))"
"""Whether samplers share, as far as the run says it."""
_ALL_SHARE: Final = (
    f"({_ENGINE} != 'endpoint' && ({_MODE} == 'collocated' || "
    f"({_MODE} in ['auto', ''] && {_SAID} && {_SHARED} >= {_REPLICAS})))"
)
"""Whether all do, as far as the run says it."""
_OWN_ACCELERATORS: Final = or_value("sampler.resources.accelerators", "1")


def _rule(rule: str, field: str, message: str) -> Rule:
    return cel_rule(f"self.trainer.kind != 'rltrain' || ({rule})", field, message)


def _processes(rule: str, field: str, message: str) -> list[Rule]:
    """The rule for learners of one process, and for those of several, whose sentence names both numbers (NAME). Without
    `learner.resources.accelerators` a profile may say more, so both numbers must be there."""
    said = f"{_RANKS_SAID} && self.?learner.?resources.?accelerators.hasValue()"
    return [
        _rule(f"!({said}) || {other} || ({rule})", field, message.replace("NAME", name))
        for other, name in (
            (f"{_ACCELERATORS} > 1", "learner.replicas"),
            (f"{_ACCELERATORS} <= 1", "learner.replicas * learner.resources.accelerators"),
        )
    ]


SHARING_CEL_RULES: Final[list[Rule]] = [
    _rule(
        f"!{_SAID} || {_MODE} != 'disaggregated' || {_SHARED} == 0",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, {words.OWN_DEVICES}",
    ),
    _rule(
        f"!{_SAID} || {_MODE} != 'collocated' || {_SHARED} == {_REPLICAS}",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, allowed with mode collocated, {words.ALL_SHARE}: null or sampler.replicas = "
        f"{{{_REPLICAS}}}",
    ),
    _rule(
        f"!{_SAID} || {_MODE} != 'hybrid' || {_SHARED} > 0",
        ".placement.sharedSamplers",
        words.SOME_SHARE,
    ),
    _rule(
        f"{_ENGINE} == 'endpoint' || {_MODE} != 'hybrid' || {_REPLICAS} >= 2",
        ".sampler.replicas",
        f"found {{{_REPLICAS}}}, {words.TWO_SAMPLERS}",
    ),
    _rule(
        f"!{_SAID} || {_MODE} != 'hybrid' || {_REPLICAS} < 2 || {_SHARED} < {_REPLICAS}",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, allowed with mode hybrid: a whole number < sampler.replicas = {{{_REPLICAS}}}, "
        f"{words.NOT_ALL_SHARE}",
    ),
    _rule(
        f"!{_SAID} || {_MODE} != 'auto' || {_SHARED} <= {_REPLICAS}",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, allowed: a whole number <= sampler.replicas = {{{_REPLICAS}}}",
    ),
    _rule(
        f"{_ENGINE} != 'endpoint' || !({_MODE} in ['collocated', 'hybrid'])",
        ".placement.mode",
        f"found {{{_MODE}}}, {words.NOTHING_TO_SHARE}",
    ),
    _rule(
        f"{_ENGINE} != 'endpoint' || {_MODE} != 'auto' || !{_SAID} || {_SHARED} == 0",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, {words.NOBODY_SHARES}",
    ),
    *_processes(
        f"{_ENGINE} == 'endpoint' || {_MODE} != 'collocated' || {_REPLICAS} <= {_RANKS}",
        ".sampler.replicas",
        f"found {{{_REPLICAS}}}, allowed with placement.mode collocated: at most NAME = {{{_RANKS}}}, "
        f"{words.ONE_BESIDE_EACH}",
    ),
    *_processes(
        f"{_ENGINE} == 'endpoint' || !({_MODE} in ['hybrid', 'auto']) || !{_SAID} || {_SHARED} > {_REPLICAS} || "
        f"{_SHARED} <= {_RANKS}",
        ".placement.sharedSamplers",
        f"found {{{_SHARED}}}, allowed: at most NAME = {{{_RANKS}}}, {words.ONE_BESIDE_EACH}",
    ),
    _rule(
        f"!{_ALL_SHARE} || {size_of('sampler.pools')} == 0",
        ".sampler.pools",
        f"found [{{self.sampler.pools.join(', ')}}], {words.NO_POOLS}",
    ),
    _rule(
        f"!{_ALL_SHARE} || !self.?sampler.?topology.hasValue()",
        ".sampler.topology",
        words.NO_TOPOLOGY,
    ),
    _rule(
        f"!{_ALL_SHARE} || {_OWN_ACCELERATORS} == 1",
        ".sampler.resources.accelerators",
        f"found {{self.sampler.resources.accelerators}}, {words.NO_ACCELERATORS}",
    ),
    *(
        _rule(
            f"!{_SHARES} || {_ENGINE} == 'endpoint' || {or_value(f'sampler.{name}', '1')} == 1",
            f".sampler.{name}",
            f"found {{self.sampler.{name}}}, allowed {words.ONE_DEVICE}",
        )
        for name in ("tensorParallelSize", "pipelineParallelSize")
    ),
    _rule(
        f"!{_SHARES} || {or_value('weightSync.transport', repr('auto'))} != 'collective'",
        ".weightSync.transport",
        f"found collective, {words.NOT_TWICE}",
    ),
    _rule(
        f"{or_value('weightSync.transport', repr('auto'))} != 'ipc' || !({_MODE} == 'disaggregated' || "
        f"({_MODE} == 'auto' && {_SAID} && {_SHARED} == 0))",
        ".weightSync.transport",
        f"found ipc, {words.NOT_BESIDE}",
    ),
    _rule(
        f"{or_value('weightSync.transport', repr('auto'))} != 'ipc' || !{_SHARES} || {_ALL_SHARE} || "
        f"{_OWN_ACCELERATORS} != 0 || {_ACCELERATORS} < 1",
        ".weightSync.transport",
        f"found ipc, {words.OUT_OF_REACH}",
    ),
    _rule(
        "!self.?placement.?partGroups.hasValue() || self.placement.partGroups <= self.algorithm.promptsPerStep",
        ".placement.partGroups",
        "found {self.placement.partGroups}, allowed: a whole number <= algorithm.promptsPerStep = "
        "{self.algorithm.promptsPerStep}",
    ),
    _rule(
        f"!self.?placement.?handOverAt.hasValue() || {_MODE} in ['hybrid', 'auto', '']",
        ".placement.handOverAt",
        f"found {{self.placement.handOverAt}}, {words.NOBODY_TO_HAND_TO} {{{_MODE}}}, {words.OTHERS_SAMPLE_ON}",
    ),
    _rule(
        f"!self.?placement.?handOverAt.hasValue() || !({_MODE} in ['hybrid', 'auto', '']) || "
        f"{or_value('placement.handOver', repr(''))} != 'drain'",
        ".placement.handOverAt",
        f"found {{self.placement.handOverAt}}, {words.NOTHING_TO_HAND_OVER}",
    ),
    _rule(
        f"!self.?placement.?replan.hasValue() || {_MODE} in ['auto', '']",
        ".placement.replan",
        f"{words.NOTHING_CHANGES} {{{_MODE}}}, {words.AUTO_CHANGES}",
    ),
]
"""Rules of a run's spec."""
