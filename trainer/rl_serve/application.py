"""The two Ray Serve applications of a service on a cluster; `import_path` of a RayService names the builders."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from rl_serve.arguments import Arguments, Resources, parse_arguments
from rl_serve.control import Control
from rl_serve.loading import Serving, Setup
from rl_serve.prefill import ASK_SECONDS, LEAST_TOKENS
from rl_serve.replica import CONTROL, PolicyReplica, PrefillReplica
from rl_serve.routing import PrefixRouter
from rl_serve.trials import HEAD
from rl_trainer.rollout.engines.vllm_needs import SERVICE, VllmOptions

APPLICATION: Final = "rltrain"
POLICY: Final = "policy"
PREFILL: Final = "prefill"
# All requests get to a replica, which says no by itself: Ray Serve would let them wait, or refuse them in its own words.
ALL: Final = 1_000_000
# The custom resources that nodes are marked with: a replica has a pod to itself.
_REPLICA: Final = {"replica": 1}
_PREFILL: Final = {"prefill": 1}
# A replica that is to go ends its answers first; beyond their deadline there are none.
SPARE_SECONDS: Final = 10.0
# No user config, no policy: a service is up before there is one.
NONE_YET: Final[dict[str, Any]] = {"policy": None}


def policy(args: dict[str, Any]) -> Application:
    """The application that clients ask; its `user_config` says which policy answers.

    Raises:
        InvalidConfig: `args` are wrong, in one sentence.
    """
    found = parse_arguments(args)
    setup = setup_of(found)
    deployment = policy_deployment(setup, _options(found.resources, _REPLICA))
    if found.prefill is None:
        return deployment.bind(setup)
    # Its own cores are as many as its own resources say.
    threads = max(1, int(found.prefill.resources.cpus))
    own = replace(
        setup, gpu=found.prefill.resources.gpus > 0, serving=replace(setup.serving, threads=threads)
    )
    prefill = prefill_deployment(own, _options(found.prefill.resources, _PREFILL))
    return deployment.bind(setup, prefill.bind(own))


def control(args: dict[str, Any]) -> Application:
    """The application that the operator asks.

    Raises:
        InvalidConfig: `args` are wrong, in one sentence.
    """
    found = parse_arguments(args)
    deployment = serve.deployment(Control).options(
        name=CONTROL,
        num_replicas=1,
        max_ongoing_requests=ALL,
        ray_actor_options={"num_cpus": 0, "resources": HEAD},
    )
    return deployment.bind(found, _cache(), APPLICATION, POLICY)


def policy_deployment(setup: Setup, actor: dict[str, Any]) -> Any:
    """The deployment of the replicas; `actor`: what Ray shall give each."""
    own: dict[str, Any] = {}
    if setup.serving.engine == "vllm":
        own["request_router_config"] = RequestRouterConfig(request_router_class=PrefixRouter)
    return serve.deployment(PolicyReplica).options(
        name=POLICY,
        max_ongoing_requests=ALL,
        user_config=NONE_YET,
        graceful_shutdown_timeout_s=setup.serving.timeout + SPARE_SECONDS,
        ray_actor_options=actor,
        **own,
    )


def prefill_deployment(setup: Setup, actor: dict[str, Any]) -> Any:
    """The deployment of the replicas that compute prompts; a handle of it is an argument of the others."""
    return serve.deployment(PrefillReplica).options(
        name=PREFILL,
        max_ongoing_requests=ALL,
        user_config=NONE_YET,
        graceful_shutdown_timeout_s=ASK_SECONDS + SPARE_SECONDS,
        ray_actor_options=actor,
    )


def _options(resources: Resources, node: dict[str, int]) -> dict[str, Any]:
    return {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "resources": node}


def setup_of(found: Arguments) -> Setup:
    """What replicas are told."""
    limits = found.limits
    return Setup(
        serving=Serving(
            name=found.model,
            max_context=limits.context,
            max_new_tokens=limits.new_tokens,
            queue=limits.queue,
            timeout=limits.timeout_seconds,
            threads=max(1, int(found.resources.cpus)),
            answers=found.answers,
            engine=found.engine,
            vllm=VllmOptions(found.tensor_parallel_size, found.pipeline_parallel_size, SERVICE),
        ),
        gpu=found.resources.gpus > 0,
        keys_folder=None if found.keys_folder is None else Path(found.keys_folder),
        control=CONTROL,
        service=found.service,
        requests_per_second=limits.requests_per_second,
        requests_per_second_per_key=limits.requests_per_second_per_key,
        least_prefill=LEAST_TOKENS if found.prefill is None else found.prefill.min_prompt_tokens,
    )


def _cache() -> Path:
    """Where policies lie on the head, as long as its pod lives."""
    base = os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir()
    return Path(base) / "rltrain-served"
