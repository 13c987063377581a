"""The application on this machine, without the control application: `rltrain serve`."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, LoggingConfig, ReplicaState

from rl_serve.application import (
    APPLICATION,
    POLICY,
    PREFILL,
    SPARE_SECONDS,
    policy_deployment,
    prefill_deployment,
)
from rl_serve.arguments import PolicyRef
from rl_serve.loading import Setup


def start(setup: Setup, policy: PolicyRef, host: str, port: int, replicas: int, prefill: int = 0) -> None:
    """Start Ray Serve and give it the application; does not wait for the replicas. Ray is there already.

    Args:
        setup: what replicas are told.
        policy: what they serve.
        host, port: where clients ask.
        replicas, prefill: how many answer, and how many compute prompts for them.
    """
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    http = HTTPOptions(
        host=host,
        port=port,
        request_timeout_s=setup.serving.timeout + SPARE_SECONDS,
    )
    serve.start(proxy_location="HeadOnly", http_options=http, logging_config=quiet)
    actor = {"num_cpus": 1, "num_gpus": setup.serving.vllm.devices if setup.gpu else 0}
    same = {"user_config": {"policy": policy.to_document()}, "logging_config": quiet}
    deployment = policy_deployment(setup, actor).options(num_replicas=replicas, **same)
    others: tuple[Any, ...] = ()
    if prefill:
        others = (prefill_deployment(setup, actor).options(num_replicas=prefill, **same).bind(setup),)
    serve.run_many(
        [serve.RunTarget(deployment.bind(setup, *others), name=APPLICATION, route_prefix="/")],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def failure() -> str:
    """Why the application will not run, in Ray Serve's words; empty: nothing of the kind is known."""
    found: Any = serve.status().applications.get(APPLICATION)
    if found is None or found.status != ApplicationStatus.DEPLOY_FAILED:
        return ""
    return str(found.message)


def running_replicas() -> int:
    """Replicas that answer, and those that compute prompts for them."""
    found: Any = serve.status().applications.get(APPLICATION)
    deployments = {} if found is None else found.deployments
    states = [deployments[name].replica_states for name in (POLICY, PREFILL) if name in deployments]
    return sum(int(one.get(ReplicaState.RUNNING, 0)) for one in states)
