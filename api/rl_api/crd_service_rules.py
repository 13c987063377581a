"""The rules across fields of a service in CEL, so that the API server refuses what `rltrain validate` refuses."""

from __future__ import annotations

from typing import Final

from rl_api import place_rules as places
from rl_api.crd_places import cel_rule
from rl_api.crd_rules import SELECTOR_RULES
from rl_api.crd_schema import Rule, cel_text

_SOURCE: Final = "self.checkpoint"
_CONTEXT: Final = "self.?context.orValue(4096)"
_NEW: Final = "self.?newTokens.orValue(1024)"
_LEAST: Final = "self.?min.orValue(1)"
_S3: Final = (
    f"({_SOURCE}.matches({cel_text(places.S3_ADDRESS)}) && !{_SOURCE}.matches({cel_text(places.CLIMBS)}))"
)
_HERE: Final = (
    f"{_SOURCE}.matches({cel_text(places.HUB_ID)}) || "
    f"({_SOURCE}.startsWith('/') && !{_SOURCE}.matches({cel_text(places.CLIMBS)}))"
)

SERVICE_CEL_RULES: Final[dict[str, list[Rule]]] = {
    "spec": [
        *(
            cel_rule(
                f"self.?{name}.orValue(1) == 1 || self.?engine.orValue('torch') == 'vllm'",
                f".{name}",
                f"found {{self.{name}}}, allowed: 1 with engine torch",
            )
            for name in ("tensorParallelSize", "pipelineParallelSize")
        ),
        *(
            cel_rule(
                f"!self.{there}.hasValue() || "
                f"self.{path}.all(one, self.{path}.exists_one(other, other == one))",
                f".{path}",
                "found a pool twice, allowed: each at most once",
            )
            for path, there in (
                ("pools", "?pools"),
                ("head.pools", "?head.?pools"),
                ("prefill.pools", "?prefill.?pools"),
            )
        ),
        cel_rule(
            "!has(self.prefill) || self.?engine.orValue('torch') == 'vllm'",
            ".prefill",
            "found an object, allowed: null with engine torch",
        ),
        cel_rule(
            "!has(self.prefill) || self.?engine.orValue('torch') != 'vllm' || "
            "self.?pipelineParallelSize.orValue(1) == 1",
            ".pipelineParallelSize",
            "found {self.pipelineParallelSize}, allowed: 1 with prefill, as stages cannot be handed over",
        ),
        cel_rule(
            "self.?engine.orValue('torch') != 'vllm' || (has(self.promotion) && "
            "(self.promotion.?strategy.orValue('inPlace') != 'inPlace' || "
            "self.promotion.?answers.orValue('finish') == 'stamp'))",
            ".promotion.answers",
            "found finish, allowed with engine vllm and promotion.strategy inPlace: stamp, as vLLM leaves no room for two "
            "policies",
        ),
        cel_rule(
            "!has(self.limits) || !has(self.limits.requestsPerSecondPerKey) || has(self.auth.secret)",
            ".limits.requestsPerSecondPerKey",
            "found a number, allowed: null without auth.secret, as there are no keys",
        ),
        cel_rule(
            "!has(self.promotion) || !has(self.promotion.step) || has(self.from.run) || "
            "self.promotion.?mode.orValue('automatic') != 'manual'",
            ".promotion.step",
            "found {self.promotion.step}, allowed: null without from.run",
        ),
    ],
    "spec.from": [
        cel_rule(
            "has(self.run) != has(self.checkpoint)",
            "",
            "allowed: exactly one of run and checkpoint",
        ),
        # Steps of two runs cannot be compared, and the pods of a service see the folder of one.
        cel_rule(
            "self == oldSelf",
            "",
            "from cannot be changed on a service that exists; make another service, with another name, for another source",
        ),
        cel_rule(
            f"!has({_SOURCE}) || !{_SOURCE}.contains('://') || {_S3}",
            ".checkpoint",
            f"found '{{{_SOURCE}}}', {places.MODELS}",
        ),
        cel_rule(
            f"!has({_SOURCE}) || {_SOURCE}.contains('://') || {_HERE}",
            ".checkpoint",
            f"found '{{{_SOURCE}}}', {places.MODELS_ON_A_CLUSTER}",
        ),
    ],
    "spec.auth": [
        cel_rule(
            "has(self.secret) != self.?anonymous.orValue(false)",
            "",
            "allowed: exactly one of secret, and anonymous: true",
        ),
    ],
    "spec.replicas": [
        cel_rule(
            f"!has(self.max) || self.max >= {_LEAST}",
            ".max",
            f"found {{self.max}}, allowed: a whole number >= replicas.min, which is {{{_LEAST}}}",
        ),
    ],
    "spec.limits": [
        cel_rule(
            f"{_NEW} < {_CONTEXT}",
            ".newTokens",
            f"found {{{_NEW}}}, allowed: a whole number < limits.context, which is {{{_CONTEXT}}}",
        ),
    ],
    "spec.promotion": [
        cel_rule(
            "!has(self.step) || self.?mode.orValue('automatic') == 'manual'",
            ".step",
            "found {self.step}, allowed: null with promotion.mode automatic",
        ),
        cel_rule(
            "self.?strategy.orValue('inPlace') != 'incremental' || has(self.incremental)",
            ".incremental",
            "found null, allowed: an object with gatewayClass, with promotion.strategy incremental",
        ),
        cel_rule(
            "self.?strategy.orValue('inPlace') == 'incremental' || !has(self.incremental)",
            ".incremental",
            "found an object, allowed: null with promotion.strategy {self.?strategy.orValue('inPlace')}",
        ),
    ],
    "spec.clients.matchExpressions[]": SELECTOR_RULES,
}
"""Rules of an RLPolicyService by the path of the object they look at."""
