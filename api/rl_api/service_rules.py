"""Rules across the fields of a service, which no single field can keep. The same in CEL: `rl_api.crd_service_rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.allow import selector_problems
from rl_api.place_rules import wrong_model_on_a_cluster
from rl_api.problems import Problem
from rl_api.service import ServiceSpec


def one_source(spec: ServiceSpec) -> Iterator[Problem]:
    """`from` names a run or a checkpoint."""
    given = [name for name in ("run", "checkpoint") if getattr(spec.source, name) is not None]
    if len(given) != 1:
        yield Problem(
            ("spec", "from"),
            f"found {' and '.join(given) or 'none'}, allowed: exactly one of run and checkpoint",
        )


def policies_on_a_cluster(spec: ServiceSpec) -> Iterator[Problem]:
    """`from.checkpoint` is one that a pod can read."""
    source = spec.source.checkpoint
    if source is not None and (wrong := wrong_model_on_a_cluster(source)) is not None:
        yield Problem(("spec", "from", "checkpoint"), wrong)


def one_way_in(spec: ServiceSpec) -> Iterator[Problem]:
    """`auth` names a Secret with keys, or says that there are none."""
    if (spec.auth.secret is not None) == spec.auth.anonymous:
        found = "secret and anonymous: true" if spec.auth.anonymous else "none"
        yield Problem(("spec", "auth"), f"found {found}, allowed: exactly one of secret, and anonymous: true")


def replicas_in_order(spec: ServiceSpec) -> Iterator[Problem]:
    """`replicas.max` is at least `replicas.min`."""
    least, most = spec.replicas.min, spec.replicas.max
    if most is not None and most < least:
        yield Problem(
            ("spec", "replicas", "max"),
            f"found {most}, allowed: a whole number >= replicas.min, which is {least}",
            (("spec", "replicas", "min"),),
        )


def service_pools_once(spec: ServiceSpec) -> Iterator[Problem]:
    """`pools`, `head.pools` and `prefill.pools` name each pool at most once."""
    prompts = spec.prefill.pools if spec.prefill is not None else ()
    for path, pools in (
        (("spec", "pools"), spec.pools),
        (("spec", "head", "pools"), spec.head.pools),
        (("spec", "prefill", "pools"), prompts),
    ):
        if len(set(pools)) < len(pools):
            yield Problem(path, "found a pool twice, allowed: each at most once")


def answers_in_their_context(spec: ServiceSpec) -> Iterator[Problem]:
    """`limits.newTokens` is less than `limits.context`."""
    limits = spec.limits
    if limits.new_tokens >= limits.context:
        yield Problem(
            ("spec", "limits", "newTokens"),
            f"found {limits.new_tokens}, allowed: a whole number < limits.context, which is {limits.context}",
            (("spec", "limits", "context"),),
        )


def keys_before_their_limit(spec: ServiceSpec) -> Iterator[Problem]:
    """`limits.requestsPerSecondPerKey` is set only with `auth.secret`."""
    if spec.limits.requests_per_second_per_key is not None and spec.auth.secret is None:
        yield Problem(
            ("spec", "limits", "requestsPerSecondPerKey"),
            f"found {spec.limits.requests_per_second_per_key:g}, allowed: null without auth.secret, as there are no keys",
            (("spec", "auth", "secret"),),
        )


def parts_of_vllm(spec: ServiceSpec) -> Iterator[Problem]:
    """`tensorParallelSize` and `pipelineParallelSize` are above 1 only with engine vllm."""
    if spec.engine == "vllm":
        return
    for name in ("tensorParallelSize", "pipelineParallelSize"):
        found = spec.tensor_parallel_size if name[0] == "t" else spec.pipeline_parallel_size
        if found > 1:
            yield Problem(
                ("spec", name), f"found {found}, allowed: 1 with engine {spec.engine}", (("spec", "engine"),)
            )


def prompts_of_vllm(spec: ServiceSpec) -> Iterator[Problem]:
    """`prefill` is set only with engine vllm, and then `pipelineParallelSize` is 1: stages cannot be handed over."""
    if spec.prefill is None:
        return
    if spec.engine != "vllm":
        yield Problem(
            ("spec", "prefill"),
            f"found an object, allowed: null with engine {spec.engine}",
            (("spec", "engine"),),
        )
    elif spec.pipeline_parallel_size > 1:
        yield Problem(
            ("spec", "pipelineParallelSize"),
            f"found {spec.pipeline_parallel_size}, allowed: 1 with prefill, as stages cannot be handed over",
            (("spec", "prefill"),),
        )


def one_policy_of_vllm(spec: ServiceSpec) -> Iterator[Problem]:
    """With engine vllm and strategy inPlace, `promotion.answers` is stamp: there is no room for a second policy."""
    promotion = spec.promotion
    if spec.engine == "vllm" and promotion.strategy == "inPlace" and promotion.answers == "finish":
        yield Problem(
            ("spec", "promotion", "answers"),
            "found finish, allowed with engine vllm and promotion.strategy inPlace: stamp, as vLLM leaves no room for two "
            "policies",
            (("spec", "engine"), ("spec", "promotion", "strategy")),
        )


def a_step_by_hand(spec: ServiceSpec) -> Iterator[Problem]:
    """`promotion.step` is set only with `promotion.mode` manual and `from.run`."""
    promotion, path = spec.promotion, ("spec", "promotion", "step")
    if promotion.step is None:
        return
    if promotion.mode != "manual":
        yield Problem(
            path,
            f"found {promotion.step}, allowed: null with promotion.mode {promotion.mode}",
            (("spec", "promotion", "mode"),),
        )
    elif spec.source.run is None:
        yield Problem(
            path, f"found {promotion.step}, allowed: null without from.run", (("spec", "from", "run"),)
        )


def steps_of_the_traffic(spec: ServiceSpec) -> Iterator[Problem]:
    """`promotion.incremental` is set with `promotion.strategy` incremental, and only then."""
    strategy, steps = spec.promotion.strategy, spec.promotion.incremental
    path, other = ("spec", "promotion", "incremental"), (("spec", "promotion", "strategy"),)
    if strategy == "incremental" and steps is None:
        yield Problem(
            path,
            "found null, allowed: an object with gatewayClass, with promotion.strategy incremental",
            other,
        )
    elif strategy != "incremental" and steps is not None:
        yield Problem(path, f"found an object, allowed: null with promotion.strategy {strategy}", other)


def labels_as_kubernetes_compares_them(spec: ServiceSpec) -> Iterator[Problem]:
    """In `clients`, operators In and NotIn have values, the others have none."""
    if spec.clients is not None:
        yield from selector_problems(spec.clients, ("spec", "clients"))


SERVICE_RULES: Final = (
    one_source,
    policies_on_a_cluster,
    one_way_in,
    replicas_in_order,
    service_pools_once,
    answers_in_their_context,
    keys_before_their_limit,
    parts_of_vllm,
    prompts_of_vllm,
    one_policy_of_vllm,
    a_step_by_hand,
    steps_of_the_traffic,
    labels_as_kubernetes_compares_them,
)
"""Rules across the fields of a service."""


def check_service_rules(spec: ServiceSpec) -> list[Problem]:
    """All rules across fields that `spec` breaks; an empty list when it keeps them."""
    return [problem for rule in SERVICE_RULES for problem in rule(spec)]
