"""CEL rules of how a sampler's engine is opened, see `rl_api.sampler_rules`.

What a run does not say may be in its profile: then the operator compares.
"""

from __future__ import annotations

from typing import Final

from rl_api.allow import WITHOUT_V1
from rl_api.crd_places import cel_rule, loop_rule, or_value
from rl_api.crd_schema import Rule, cel_text
from rl_api.place_rules import AS_THE_SERVER_SEES_IT, DOTS, MOUNTED, MOUNTED_AT
from rl_api.roles import RESERVED_VARIABLES
from rl_api.sampler_rules import (
    CLAIM_OF_BOTH,
    EVERY_PART,
    FROM_BFLOAT16,
    NO_SERVER,
    NOT_OURS,
    OF_ENDPOINT,
    OF_THE_SERVER,
    OF_VLLM,
    ONE_RUN_AT_A_TIME,
    ONE_SERVER,
    OUR_SAMPLERS,
    OVER_PODS,
    ROOM_FOR_BOTH,
    STAGES_UNSEALED,
    URL_AND_FOLDER,
    WHOLE_STAGES,
)

_ENGINE: Final = "self.sampler.engine"
_SERVER: Final = "self.sampler.endpoint"
_IS_ENDPOINT: Final = f"(has({_ENGINE}) && {_ENGINE} == 'endpoint')"
_STAGES: Final = or_value("sampler.pipelineParallelSize", "1")
_RESERVED: Final = f"^({'|'.join(RESERVED_VARIABLES).replace('*', '.*')})$"
_PODS: Final = or_value("sampler.podsPerReplica", "1")
_STATED: Final = "has(self.sampler.pipelineParallelSize)", "has(self.sampler.podsPerReplica)"
_DEVICES: Final = f"{or_value('sampler.tensorParallelSize', '1')} * {_STAGES} / {_PODS}"
_ACCELERATORS: Final = "self.sampler.resources.accelerators"


def _unset(name: str) -> str:
    """Whether a field of vLLM's has the value that it has with another engine."""
    unset = OF_VLLM[name][1]
    if unset is None:
        return f"!has(self.sampler.{name})"
    value = cel_text(unset) if isinstance(unset, str) else str(unset)
    return f"self.sampler.?{name}.orValue({value}) == {value}"


def _found(name: str) -> str:
    """The value of the field within a sentence."""
    found = f"{{self.sampler.{name}}}"
    return f"'{found}'" if isinstance(OF_VLLM[name][1], str) else found


SAMPLER_CEL_RULES: Final[list[Rule]] = [
    *(
        cel_rule(
            f"!has({_ENGINE}) || {_ENGINE} == 'vllm' || {_unset(name)}",
            f".sampler.{name}",
            f"found {_found(name)}, allowed: {allowed} with engine {{{_ENGINE}}}, as only vllm has it",
        )
        for name, (allowed, _) in OF_VLLM.items()
    ),
    cel_rule(
        f"!has({_ENGINE}) || {_ENGINE} == 'endpoint' || !has(self.sampler.endpoint)",
        ".sampler.endpoint",
        f"found an object, allowed: null with engine {{{_ENGINE}}}, {OF_ENDPOINT}",
    ),
    cel_rule(f"!{_IS_ENDPOINT} || has({_SERVER})", ".sampler.endpoint", URL_AND_FOLDER),
    *(
        cel_rule(
            f"!{_IS_ENDPOINT} || {found} <= {most}",
            f".sampler.{name}",
            f"found {{{found}}}, allowed: {most} with engine endpoint, {why}",
        )
        for name, found, most, why in (
            ("replicas", "self.sampler.replicas", 1, ONE_SERVER),
            ("tensorParallelSize", or_value("sampler.tensorParallelSize", "1"), 1, OF_THE_SERVER),
            ("resources.accelerators", or_value("sampler.resources.accelerators", "0"), 0, OF_THE_SERVER),
        )
    ),
    cel_rule(
        f"!has({_SERVER}) || !{_SERVER}.url.matches('/v1/*$')",
        ".sampler.endpoint.url",
        f"found '{{{_SERVER}.url}}', {WITHOUT_V1}",
    ),
    cel_rule(
        f"!has({_SERVER}) || !has({_SERVER}.apiKeyVariable) || !{_SERVER}.apiKeyVariable.matches({cel_text(_RESERVED)})",
        ".sampler.endpoint.apiKeyVariable",
        f"found '{{{_SERVER}.apiKeyVariable}}', {NOT_OURS}",
    ),
    cel_rule(
        f"!{_IS_ENDPOINT} || self.trainer.kind == 'rltrain'",
        ".sampler.engine",
        f"found 'endpoint', allowed: torch or vllm with trainer.kind {{self.trainer.kind}}, {OUR_SAMPLERS}",
    ),
    cel_rule(
        f"!{_IS_ENDPOINT} || !has({_SERVER}) || has({_SERVER}.persistentVolumeClaim)",
        ".sampler.endpoint.persistentVolumeClaim",
        CLAIM_OF_BOTH,
    ),
    cel_rule(
        f"!{_IS_ENDPOINT} || !has({_SERVER}) || {_SERVER}.folder.matches({cel_text(MOUNTED_AT)})",
        ".sampler.endpoint.folder",
        f"found '{{{_SERVER}.folder}}', {MOUNTED}",
    ),
    cel_rule(
        f"!{_IS_ENDPOINT} || !has({_SERVER}) || !has({_SERVER}.serverFolder) || "
        f"!{_SERVER}.serverFolder.matches({cel_text(DOTS)})",
        ".sampler.endpoint.serverFolder",
        f"found '{{{_SERVER}.serverFolder}}', {AS_THE_SERVER_SEES_IT}",
    ),
    cel_rule(
        "!has(self.sampler.maxModelLen) || !has(self.sampler.maxNewTokens) || "
        "self.sampler.maxModelLen > self.sampler.maxNewTokens",
        ".sampler.maxModelLen",
        "found {self.sampler.maxModelLen}, allowed: a whole number > sampler.maxNewTokens = {self.sampler.maxNewTokens}, "
        f"{ROOM_FOR_BOTH}",
    ),
    cel_rule(
        "!has(self.sampler.maxModelLen) || !self.?task.?evaluation.?maxNewTokens.hasValue() || "
        "self.sampler.maxModelLen > self.task.evaluation.maxNewTokens",
        ".sampler.maxModelLen",
        "found {self.sampler.maxModelLen}, allowed: a whole number > task.evaluation.maxNewTokens = "
        f"{{self.task.evaluation.maxNewTokens}}, {ROOM_FOR_BOTH}",
    ),
    cel_rule(
        f"!has({_ENGINE}) || {_ENGINE} != 'vllm' || !{_STATED[0]} || !{_STATED[1]} || {_STAGES} % {_PODS} == 0",
        ".sampler.podsPerReplica",
        f"found {{{_PODS}}}, allowed: a divisor of pipelineParallelSize = {{{_STAGES}}}, {WHOLE_STAGES}",
    ),
    *(
        cel_rule(
            f"{other} || self.trainer.kind != 'rltrain' || !has({_ENGINE}) || {_ENGINE} != 'vllm' || "
            # Of one of the two alone, the other one may be the profile's, which makes the devices of a pod more or fewer.
            f"{_STATED[0]} != {_STATED[1]} || "
            f"{_STAGES} % {_PODS} != 0 || !self.sampler.?resources.?accelerators.hasValue() || {_ACCELERATORS} == 0 || "
            f"{_ACCELERATORS} >= {_DEVICES}",
            ".sampler.resources.accelerators",
            f"found {{{_ACCELERATORS}}}, allowed: 0, or a whole number >= tensorParallelSize * pipelineParallelSize{over} = "
            f"{{{_DEVICES}}}, {EVERY_PART}",
        )
        for other, over in ((f"{_PODS} > 1", ""), (f"{_PODS} == 1", OVER_PODS))
    ),
    loop_rule(
        f"{_PODS} == 1 || self.trainer.kind != 'rltrain' || !{or_value('scheduling.encryption', 'false')}",
        ".sampler.podsPerReplica",
        f"found {{{_PODS}}}, {STAGES_UNSEALED}",
    ),
    cel_rule(
        f"{_unset('quantization')} || !has(self.model) || self.model.dtype == 'bfloat16'",
        ".sampler.quantization",
        f"found {_found('quantization')}, allowed: none with model.dtype {{self.model.dtype}}, {FROM_BFLOAT16}",
    ),
]
"""Rules of a run's spec."""

SAMPLER_DEFAULT_RULES: Final[list[Rule]] = [
    cel_rule(
        "!has(self.engine) || self.engine != 'endpoint'",
        ".engine",
        f"found '{{self.engine}}', {ONE_RUN_AT_A_TIME}",
    ),
    cel_rule("!has(self.endpoint)", ".endpoint", NO_SERVER),
]
"""Rules of a profile's default for `sampler`."""

ENDPOINT_RULES: Final[list[Rule]] = [
    cel_rule("!self.url.endsWith('/v1')", ".url", f"found '{{self.url}}', {WITHOUT_V1}")
]
"""Rules of a server that a profile allows."""
