"""Everything a run needs in the cluster, in the order in which it is created."""

from __future__ import annotations

from rl_operator.model.names import HASH_ANNOTATION, Manifest, digest_of
from rl_operator.model.seen import QueuePriority
from rl_operator.plan.effective import Effective
from rl_operator.render.budget import disruption_budget
from rl_operator.render.claims import claim_templates
from rl_operator.render.config import config_map, secret
from rl_operator.render.gang.gang import as_gang
from rl_operator.render.network import network_policy, server_policies
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job
from rl_operator.render.workload import run_workload


def run_objects(effective: Effective) -> list[Manifest]:
    """Objects that all attempts share and that follow the run as it changes."""
    claims = claim_templates(effective.name, effective.roles, effective.metadata)
    policies = [network_policy(effective), *server_policies(effective)]
    return [*map(hashed, policies), hashed(disruption_budget(effective)), *map(hashed, claims)]


def attempt_objects(
    effective: Effective, attempt: int, key: bytes, pod_group: str = "", preemptions: int = 0
) -> list[Manifest]:
    """Objects of one attempt, with tokens of the operator's `key`. The RayJob or RayCluster last: its pods need the
    others. `pod_group`: the kind of PodGroup that the cluster knows, and `preemptions`: see `as_gang`."""
    ray = ray_cluster if effective.spec.workload == "Cluster" else ray_job
    config = hashed(config_map(effective, attempt))
    gang = map(hashed, as_gang(effective, attempt, ray(effective, attempt), pod_group, preemptions))
    return [secret(effective, attempt, key), config, *gang]


def all_objects(effective: Effective, attempt: int, key: bytes) -> list[Manifest]:
    """What the operator creates for the first attempt of a run; the first of it, where it has a queue, what that admits."""
    queued = [hashed(run_workload(effective, QueuePriority()))] if effective.queued else []
    return [*queued, *run_objects(effective), *attempt_objects(effective, attempt, key)]


def hashed(manifest: Manifest) -> Manifest:
    """The manifest with its own hash as an annotation, to see later whether it must be written again."""
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = dict(metadata.get("annotations", {})) | {HASH_ANNOTATION: digest_of(manifest)}
    return manifest | {"metadata": metadata}
