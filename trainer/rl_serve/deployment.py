"""The application on this machine, without the control application: `rltrain serve`."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, LoggingConfig, ReplicaState

from rl_serve.application import APPLICATION, POLICY, SPARE_SECONDS, policy_deployment
from rl_serve.arguments import PolicyRef
from rl_serve.loading import Setup


def start(setup: Setup, policy: PolicyRef, host: str, port: int, replicas: int) -> None:
    """Start Ray Serve and give it the application; does not wait for the replicas. Ray is there already."""
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    http = HTTPOptions(
        host=host,
        port=port,
        request_timeout_s=setup.serving.timeout + SPARE_SECONDS,
    )
    serve.start(proxy_location="HeadOnly", http_options=http, logging_config=quiet)
    actor = {"num_cpus": 1, "num_gpus": setup.serving.vllm.devices if setup.gpu else 0}
    deployment = policy_deployment(setup, actor).options(
        num_replicas=replicas,
        user_config={"policy": policy.to_document()},
        logging_config=quiet,
    )
    serve.run_many(
        [serve.RunTarget(deployment.bind(setup), name=APPLICATION, route_prefix="/")],
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
    """Replicas that answer."""
    found: Any = serve.status().applications.get(APPLICATION)
    if found is None or POLICY not in found.deployments:
        return 0
    return int(found.deployments[POLICY].replica_states.get(ReplicaState.RUNNING, 0))
