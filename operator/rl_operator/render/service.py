"""Everything a policy service needs in the cluster: RayService, Secret, NetworkPolicy, budget."""

from __future__ import annotations

import base64
import math
from typing import Final

from rl_api.service import IncrementalSpec
from rl_api.service_status import FollowedRun, PolicyVersion
from rl_operator.model.names import (
    HEAD,
    PREFILL,
    PROFILE_ANNOTATION,
    RAY_PORTS,
    REPLICA,
    ROLE_LABEL,
    SERVICE_LABEL,
    Manifest,
    service_labels,
)
from rl_operator.model.tokens import CONTROL, RAY, derive_token
from rl_operator.plan.roles import Role
from rl_operator.plan.service import EffectiveService
from rl_operator.render.autoscaler import idle_autoscaler
from rl_operator.render.claims import add_claim, claim_templates
from rl_operator.render.config import RAY_TOKEN_KEY, TOKEN_KEY
from rl_operator.render.network import isolated, pods_of, port
from rl_operator.render.objects import hashed
from rl_operator.render.pods import NO_DEVICES, TOKEN_FOLDER, counts_no_devices, restricted_pod
from rl_operator.render.raycluster import guarded_cluster, start_params, worker_group
from rl_operator.render.secrets import add_secrets
from rl_operator.render.service_config import (
    KEYS_FOLDER,
    POLICIES_FOLDER,
    PROBE_FOLDER,
    SERVE_PORT,
    serve_config,
)

POLICY_ANNOTATION: Final = "rltrain.dev/policy"
"""Of the head's pods with strategy newCluster: the version, so that another one takes another Ray cluster."""

PREFILL_ANNOTATION: Final = "rltrain.dev/prefill-replicas"
"""Of pods of copies for prompts: KubeRay leaves the number of a group's pods to others, so another one takes another Ray
cluster."""

_METRICS_PORT: Final = 8080
"""Where each Ray node shows metrics, those of the copies among them."""

_OLD_CLUSTER_SECONDS: Final = 40
"""How long a cluster that has lost the traffic stays beyond the longest answer: clients keep a connection to it for half
of that (`rl_serve.proxy`)."""


def service_objects(service: EffectiveService) -> list[Manifest]:
    """What follows the service as it changes, but for its RayService."""
    claims = claim_templates(service.object_name, service.roles, service.metadata)
    return [hashed(_network_policy(service)), hashed(_disruption_budget(service)), *map(hashed, claims)]


def service_secret(service: EffectiveService, key: bytes) -> Manifest:
    """The tokens of a service, derived from the operator's key."""
    tokens = {
        TOKEN_KEY: derive_token(key, service.uid, 0, CONTROL),
        RAY_TOKEN_KEY: derive_token(key, service.uid, 0, RAY),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": service.metadata(service.secret),
        "immutable": True,
        "type": "Opaque",
        "data": {part: base64.b64encode(token.encode()).decode() for part, token in tokens.items()},
    }


def ray_service(
    service: EffectiveService,
    followed: FollowedRun | None,
    policy: PolicyVersion | None,
    *,
    first: bool = False,
    hurried: bool = False,
) -> Manifest:
    """The RayService that serves `policy`.

    Args:
        service: how it is carried out.
        followed: where policies come from.
        policy: None: there is none yet, and requests are told so.
        first: whether it takes the cluster that came up without one, whatever the strategy.
        hurried: whether the traffic moves at once, as it does back to a policy that was better.
    """
    head, replica, steps = service.role(HEAD), service.role(REPLICA), service.spec.promotion.incremental
    template = _pod(service, head, followed)
    if service.spec.promotion.strategy != "inPlace" and policy is not None and not first:
        template["metadata"]["annotations"] = {POLICY_ANNOTATION: policy.version}
    copies = worker_group(replica, replica.replicas, _pod(service, replica, followed))
    groups = [copies]
    if service.spec.prefill is not None:
        prefill = service.role(PREFILL)
        pod = _pod(service, prefill, followed)
        pod["metadata"]["annotations"] = {PREFILL_ANNOTATION: str(prefill.replicas)}
        groups.append(worker_group(prefill, prefill.replicas, pod))
    cluster = guarded_cluster(
        service.settings.ray_version,
        service.secret,
        # It hands out none of its cores: what answers requests runs beside the policy.
        start_params(HEAD, 0, 0),
        template,
        groups,
    )
    if steps is None:
        copies["minReplicas"] = 1  # what is wanted may become less
    else:
        # KubeRay begins the second cluster with the fewest, and leaves the rest to an autoscaler.
        cluster |= idle_autoscaler(template)
    profile = {"annotations": {PROFILE_ANNOTATION: service.profile_name}} if service.profile_name else {}
    return hashed(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayService",
            "metadata": service.metadata(service.name) | profile,
            "spec": {
                "rayClusterDeletionDelaySeconds": _OLD_CLUSTER_SECONDS
                + math.ceil(service.spec.limits.timeout.seconds),
                "upgradeStrategy": _upgrade(steps, hurried),
                "serveConfigV2": serve_config(service, followed, policy),
                "rayClusterConfig": cluster,
            },
        }
    )


def _upgrade(steps: IncrementalSpec | None, hurried: bool) -> Manifest:
    """How another cluster takes the traffic over."""
    if steps is None:
        return {"type": "NewCluster"}
    percent, seconds = (100, 1) if hurried else (steps.step_percent, math.ceil(steps.interval.seconds))
    options = {
        "gatewayClassName": steps.gateway_class,
        # Every copy comes up before the first request moves: pods of both clusters are there anyway.
        "maxSurgePercent": 100,
        "stepSizePercent": 0 if steps.halted and not hurried else percent,
        "intervalSeconds": seconds,
    }
    return {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": options}


def _pod(service: EffectiveService, role: Role, followed: FollowedRun | None) -> Manifest:
    spec, container = restricted_pod(role, service.image_pull_policy, _environment(service, role))
    add_claim(service.object_name, role, spec, container)
    ports = {"serve": SERVE_PORT, "metrics": _METRICS_PORT} | (RAY_PORTS if role.name == HEAD else {})
    container["ports"] = [{"name": name, "containerPort": number} for name, number in ports.items()]
    if role.name == HEAD:
        add_secrets(service.spec.secrets, spec, container)
        _add_folder(spec, container, "token", TOKEN_FOLDER, _secret(service.secret, TOKEN_KEY))
        _add_policies(spec, container, followed)
        probe = service.spec.promotion.gate.probe
        if probe is not None:
            files = {
                "configMap": {"name": probe.config_map, "items": [{"key": probe.key, "path": probe.key}]}
            }
            _add_folder(spec, container, "probe", PROBE_FOLDER, files)
    else:
        # Traffic comes to a pod that is ready: the proxy is there as long as a copy of the policy is.
        container["readinessProbe"] |= {
            "httpGet": {"path": "/-/healthz", "port": SERVE_PORT},
            "failureThreshold": 2,
        }
    if service.spec.auth.secret is not None:
        _add_folder(spec, container, "keys", KEYS_FOLDER, _secret(service.spec.auth.secret))
    return {"metadata": {"labels": service_labels(service.name, role.name)}, "spec": spec}


def _environment(service: EffectiveService, role: Role) -> list[Manifest]:
    middlewares = "middlewares_with_prefixes" if service.spec.engine == "vllm" else "middlewares"
    values = {
        "RLTRAIN_SERVICE": service.name,
        "RLTRAIN_SERVICE_UID": service.uid,
        "RLTRAIN_NAMESPACE": service.namespace,
        "RAY_AUTH_MODE": "token",
        # A request of which nothing was answered goes to another copy when its own dies.
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": f"rl_serve.proxy:{middlewares}",
        # Ray Serve gives a proxy three times 5 s to start, then ends it: on a busy node again and again.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
        # Every pod has a proxy: with the copy beside it first, copies would be as busy as connections happen to fall.
        "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",
        **(NO_DEVICES if counts_no_devices(role) else {}),
    }
    secret = {"secretKeyRef": {"name": service.secret, "key": RAY_TOKEN_KEY}}
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": "RAY_AUTH_TOKEN", "valueFrom": secret},
    ]


def _secret(name: str, key: str | None = None) -> Manifest:
    items = {"items": [{"key": key, "path": key}]} if key is not None else {}
    return {"secret": {"secretName": name, "defaultMode": 0o440, **items}}


def _add_folder(spec: Manifest, container: Manifest, name: str, path: str, source: Manifest) -> None:
    container["volumeMounts"].append({"name": name, "mountPath": path, "readOnly": True})
    spec["volumes"].append({"name": name, **source})


def _add_policies(spec: Manifest, container: Manifest, followed: FollowedRun | None) -> None:
    """The followed run's own folder, and none of another run that shares the claim. The head writes its pin there."""
    if followed is None or followed.claim is None:
        return
    mount = {
        "name": "policies",
        "mountPath": f"{POLICIES_FOLDER}/{followed.folder}",
        "subPath": followed.folder,
    }
    container["volumeMounts"].append(mount)
    spec["volumes"].append(
        {"name": "policies", "persistentVolumeClaim": {"claimName": followed.claim, "readOnly": False}}
    )


def _network_policy(service: EffectiveService) -> Manifest:
    """Lets in the service's own pods, its clients, the operator, and KubeRay. Lets out to DNS, its own pods, and what the
    profile allows."""
    settings, own = service.settings, {"podSelector": {"matchLabels": {SERVICE_LABEL: service.name}}}
    operator = pods_of(settings.namespace, settings.labels)
    kuberay = pods_of(settings.kuberay_namespace, settings.kuberay_labels)
    clients: list[Manifest] = [{"podSelector": {}}]
    if service.spec.clients is not None:
        selector = service.spec.clients.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        clients.append({"namespaceSelector": selector})
    readers = [dict(peer) for peer in settings.metrics_from]
    return isolated(
        service.metadata(service.object_name),
        own,
        [
            {"from": [*clients, operator], "ports": [port(SERVE_PORT)]},
            {"from": [kuberay], "ports": [port(RAY_PORTS["dashboard"]), port(SERVE_PORT)]},
            *([{"from": readers, "ports": [port(_METRICS_PORT)]}] if readers else ()),
        ],
        settings,
        service.profile,
    )


def _disruption_budget(service: EffectiveService) -> Manifest:
    """Keeps the head: without it all copies begin anew. Copies may go one after another; others take over."""
    labels = {SERVICE_LABEL: service.name, ROLE_LABEL: HEAD}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": service.metadata(service.object_name),
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
    }
