"""What a service's Ray cluster runs: the Serve applications, and how they are told which policy to serve.

The arguments are read by `rl_serve.application`; a test holds the two against each other.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import yaml

from rl_api.documents import dump_yaml, load_documents
from rl_api.errors import InvalidConfig
from rl_api.service import GateSpec
from rl_api.service_status import FollowedRun, PolicyVersion
from rl_operator.model.names import PREFILL, REPLICA, Manifest
from rl_operator.model.nesting import shallow
from rl_operator.plan.roles import Role
from rl_operator.plan.service import EffectiveService

SERVE_PORT: Final = 8000
CONTROL_PREFIX: Final = "/-/rltrain"
"""Where the control answers, beside the policy's own paths."""

APPLICATION: Final = "rltrain"
_DEPLOYMENT: Final = "policy"
KEYS_FOLDER: Final = "/etc/rltrain-keys"
PROBE_FOLDER: Final = "/etc/rltrain-probe"
TOKEN_FILE: Final = "/etc/rltrain-token/token"
POLICIES_FOLDER: Final = "/var/lib/rltrain"

_SPARE_SECONDS: Final = 10.0
_ONGOING: Final = 8.0
"""Requests that a copy has under way before there are to be more copies."""


def serve_config(
    service: EffectiveService, followed: FollowedRun | None, policy: PolicyVersion | None
) -> str:
    """`serveConfigV2` of a RayService. Another policy changes `user_config` alone, by which copies load it in place."""
    arguments = _arguments(service, followed)
    replicas = service.spec.replicas
    told = {"user_config": {"policy": policy_config(policy)}}
    deployment: Manifest = {"name": _DEPLOYMENT, **told}
    deployments = [deployment]
    if service.spec.prefill is not None:
        deployments.append({"name": PREFILL, **told, "num_replicas": service.spec.prefill.replicas})
    if service.most_replicas == replicas.min:
        deployment["num_replicas"] = replicas.min
    else:
        deployment["autoscaling_config"] = {
            "min_replicas": replicas.min,
            "max_replicas": service.most_replicas,
            "target_ongoing_requests": _ONGOING,
        }
    return dump_yaml(
        {
            "proxy_location": "EveryNode",
            "http_options": {
                "host": "0.0.0.0",
                "port": SERVE_PORT,
                # Copies keep their deadlines themselves; this is for one that does not answer at all.
                "request_timeout_s": service.spec.limits.timeout.seconds + _SPARE_SECONDS,
            },
            "applications": [
                {
                    "name": "control",
                    "route_prefix": CONTROL_PREFIX,
                    "import_path": "rl_serve.application:control",
                    "args": arguments,
                },
                {
                    "name": APPLICATION,
                    "route_prefix": "/",
                    "import_path": "rl_serve.application:policy",
                    "args": arguments,
                    "deployments": deployments,
                },
            ],
        }
    )


@dataclass(frozen=True)
class ServeConfig:
    """A `serveConfigV2` that was rendered before."""

    document: Manifest

    @classmethod
    def read(cls, text: object) -> ServeConfig | None:
        """What a RayService has; None: somebody has made something else of it."""
        try:
            # With an alias a short text can be a document of any size; none was rendered with one.
            if not isinstance(text, str) or any(isinstance(one, yaml.AliasToken) for one in yaml.scan(text)):
                return None
            found = cls(*(shallow(document) for _, document in load_documents(text, "serveConfigV2")))
            known = isinstance(found.policy, dict | None) and isinstance(found.arguments, dict)
            return found if known else None
        except (InvalidConfig, yaml.YAMLError, LookupError, TypeError):
            return None

    @property
    def arguments(self) -> Manifest:
        """What the application was begun with."""
        found: Manifest = self._application["args"]
        return found

    @property
    def policy(self) -> Manifest | None:
        """The policy that copies are to serve."""
        found: Manifest | None = self._deployment["user_config"]["policy"]
        return found

    def serving(self, policy: Manifest | None) -> str:
        """It as text, with another policy and nothing else changed."""
        changed = ServeConfig(deepcopy(self.document))
        for deployment in changed._application[
            "deployments"
        ]:  # copies that compute prompts have the same one
            deployment["user_config"] = {"policy": policy}
        return dump_yaml(changed.document)

    @property
    def _application(self) -> Manifest:
        return _named(self.document["applications"], APPLICATION)

    @property
    def _deployment(self) -> Manifest:
        return _named(self._application["deployments"], _DEPLOYMENT)


def _named(there: list[Manifest], name: str) -> Manifest:
    found = {one["name"]: one for one in there}
    return found[name]


def policy_config(policy: PolicyVersion | None) -> Manifest | None:
    """A policy as the serving application is told of it."""
    if policy is None:
        return None
    return {"source": policy.source, "digest": policy.digest, "version": policy.version}


def gate_config(gate: GateSpec) -> Manifest:
    """The gate as the serving application is told of it."""
    parts = gate.model_dump(mode="json", by_alias=True, exclude_none=True)
    if gate.probe is not None:
        # Where its prompts are, and what is right, stands in the application's arguments.
        parts["probe"] = {"maxDrop": gate.probe.max_drop, "minScore": gate.probe.min_score}
    return parts


def run_folder(followed: FollowedRun) -> str:
    """Where the head finds the run's folder: one for each run, so that no two policies of one service have one path."""
    if followed.claim is None:
        return followed.folder
    return f"{POLICIES_FOLDER}/{followed.folder}/run"


def _arguments(service: EffectiveService, followed: FollowedRun | None) -> dict[str, Any]:
    spec, limits = service.spec, service.spec.limits
    replica, probe = service.role(REPLICA), spec.promotion.gate.probe
    source: dict[str, Any] = {"checkpoint": spec.source.checkpoint}
    if spec.source.run is not None:
        source = {"run": spec.source.run, "folder": run_folder(followed) if followed is not None else None}
    # An image from before there was vLLM behind a service knows no sizes.
    sizes: dict[str, Any] = (
        {
            "tensorParallelSize": spec.tensor_parallel_size,
            "pipelineParallelSize": spec.pipeline_parallel_size,
        }
        if spec.engine == "vllm"
        else {}
    )
    if spec.prefill is not None:
        sizes["prefill"] = {
            "resources": _resources(service.role(PREFILL)),
            "minPromptTokens": spec.prefill.min_prompt_tokens,
        }
    return {
        "service": service.name,
        "model": service.model,
        "engine": spec.engine,
        **sizes,
        "resources": _resources(replica),
        "source": source,
        "limits": {
            "context": limits.context,
            "newTokens": limits.new_tokens,
            "queue": limits.queue,
            "timeoutSeconds": limits.timeout.seconds,
            "requestsPerSecond": limits.requests_per_second,
            "requestsPerSecondPerKey": limits.requests_per_second_per_key,
        },
        "answers": spec.promotion.answers,
        "keysFolder": KEYS_FOLDER if spec.auth.secret is not None else None,
        "controlTokenFile": TOKEN_FILE,
        "probe": {"file": f"{PROBE_FOLDER}/{probe.key}", "scorer": probe.scorer}
        if probe is not None
        else None,
    }


def _resources(role: Role) -> Manifest:
    return {"cpus": role.ray_cpus, "gpus": role.accelerators}
