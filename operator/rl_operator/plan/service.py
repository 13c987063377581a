"""The service as it is carried out: profile, pools, images, limits, and where its run keeps checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rl_api.paths import Path
from rl_api.problems import Problem
from rl_api.profile import PoolSpec, ProfileSpec
from rl_api.service import RLPolicyService, ServiceSpec
from rl_api.service_status import FollowedRun
from rl_api.validation import check_document
from rl_operator.model.names import (
    HEAD,
    PREFILL,
    REPLICA,
    SERVICE_KIND,
    Manifest,
    folder_name,
    owned,
    secret_name,
    service_labels,
    service_object_name,
)
from rl_operator.model.settings import Settings
from rl_operator.plan.allowed import ask, idle_on_accelerators, service_not_allowed
from rl_operator.plan.effective import Effective, Plan, pull_policy
from rl_operator.plan.limits import pods_over_limits
from rl_operator.plan.pools import where, wrong_pools
from rl_operator.plan.profile import as_written, choose_profile, title
from rl_operator.plan.refused import Refused
from rl_operator.plan.roles import Role, RoleMaker


@dataclass(frozen=True)
class EffectiveService:
    """A service that can be carried out."""

    name: str
    namespace: str
    uid: str
    spec: ServiceSpec
    profile_name: str | None
    profile: ProfileSpec
    roles: tuple[Role, ...]
    """Head, replica, and prefill where there are copies for prompts."""
    settings: Settings
    image_pull_policy: str

    def role(self, name: str) -> Role:
        """One role."""
        return next(role for role in self.roles if role.name == name)

    def metadata(self, name: str) -> Manifest:
        """Metadata of an object of the service."""
        labels = service_labels(self.name)
        return owned(self.name, self.namespace, self.uid, name, labels, SERVICE_KIND)

    @property
    def object_name(self) -> str:
        """Name of what it has beside its RayService."""
        return service_object_name(self.name)

    @property
    def secret(self) -> str:
        """Name of the Secret with its tokens, which none of an earlier service of this name has."""
        return f"{secret_name(self.name, self.uid, 0)}.service"

    @property
    def model(self) -> str:
        """Name of the model for clients."""
        return self.spec.model or self.name

    @property
    def most_replicas(self) -> int:
        """Copies at most."""
        return self.spec.replicas.max or self.spec.replicas.min


ServicePlan = EffectiveService | Refused

_REPLICAS: Final[Mapping[str, Path]] = {
    REPLICA: ("spec", "replicas", "max"),
    PREFILL: ("spec", "prefill", "replicas"),
}


def plan_service(
    service: Mapping[str, Any],
    profiles: Sequence[Mapping[str, Any]],
    settings: Settings,
    labels: Mapping[str, str] | None = None,
) -> ServicePlan:
    """What is to be done for a service, or why nothing can be. Any JSON: the API server may hold an older or a broken one.

    `labels`: of the service's namespace; None: not known, and so not compared with what the profile allows.
    """
    own, metadata = service.get("spec"), service.get("metadata") or {}
    chosen = choose_profile(own.get("profile") if isinstance(own, dict) else None, profiles)
    if isinstance(chosen, Refused):
        return chosen
    profile_name, profile = chosen
    called, namespace = title(profile_name), str(metadata.get("namespace") or "default")
    resource, problems = check_document(as_written(service, SERVICE_KIND), "cluster")
    if not isinstance(resource, RLPolicyService):
        return Refused.because("InvalidSpec", problems)
    spec = resource.spec
    if found := list(service_not_allowed(called, profile, spec, namespace, labels)):
        return Refused.because("NotAllowed", found, ask=ask(profile))
    by_name = {pool.name: pool for pool in profile.pools}
    found = [_of_service(one) for one in wrong_pools(by_name, called, ("spec", "pools"), spec.pools)]
    found += wrong_pools(by_name, called, ("spec", HEAD), spec.head.pools)
    if spec.prefill is not None:
        found += wrong_pools(by_name, called, ("spec", PREFILL), spec.prefill.pools)
    if found:
        return Refused.because("InvalidSpec", found)
    roles = _roles(spec, profile, by_name, settings)
    if found := list(_misplaced(spec, profile, roles)):
        return Refused.because("InvalidSpec", found)
    idle = [one._replace(path=("spec", "head", "pools")) for one in idle_on_accelerators(roles[:1])]
    idle += map(_of_service, idle_on_accelerators(roles[1:2]))
    if found := [*idle, *idle_on_accelerators(roles[2:])]:
        return Refused.because("NotAllowed", found, ask=ask(profile))
    if found := list(pods_over_limits(called, profile, roles, lambda role: _REPLICAS[role.name])):
        return Refused.because("LimitExceeded", found, ask=ask(profile))
    return EffectiveService(
        name=resource.name,
        namespace=namespace,
        uid=str(metadata.get("uid") or ""),
        spec=spec,
        profile_name=profile_name,
        profile=profile,
        roles=roles,
        settings=settings,
        image_pull_policy=pull_policy(profile, spec, settings),
    )


def _of_service(problem: Problem) -> Problem:
    """A problem with the pools of a role, where a service, which has one kind of pods, names them."""
    return problem._replace(path=("spec", "pools", *problem.path[3:]))


def _roles(
    spec: ServiceSpec, profile: ProfileSpec, by_name: Mapping[str, PoolSpec], settings: Settings
) -> tuple[Role, ...]:
    """The head, where are no accelerators if there is such a place, the replicas, and those for prompts."""
    least = min(profile.pools, key=lambda pool: (pool.accelerator is not None, pool.spot))
    here = tuple(by_name[name] for name in spec.pools) or (profile.pools[0],)
    there = tuple(by_name[name] for name in spec.head.pools) or (least,)
    pools, prefill = {HEAD: there, REPLICA: here}, spec.prefill
    if prefill is not None:
        pools[PREFILL] = tuple(by_name[name] for name in prefill.pools) or here
    maker = RoleMaker(profile, pools, settings, spec.image)
    most = spec.replicas.max or spec.replicas.min
    roles = (
        maker.role(HEAD, 1, 1, asked=spec.head.resources),
        maker.role(REPLICA, most, 1, spec.devices, spec.resources, spec.replicas.min),
    )
    if prefill is None:
        return roles
    asked = spec.resources if prefill.resources is None else prefill.resources
    return (*roles, maker.role(PREFILL, prefill.replicas, 1, spec.devices, asked))


def _misplaced(spec: ServiceSpec, profile: ProfileSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Accelerators that nobody uses, that the nodes of the pools do not have, or that vLLM lacks."""
    head, role, *prefill = roles
    if head.accelerators:
        where_ = ("spec", "head", "resources", "accelerators")
        yield Problem(where_, f"found {head.accelerators}, allowed: 0, as candidates are measured on its CPU")
    path, bare = ("spec", "resources", "accelerators"), role.pool.accelerator is None
    if bare and role.accelerators:
        yield Problem(
            path, f"found {role.accelerators}, allowed: 0 on {where(role.pools)}, without accelerators"
        )
    elif bare and spec.engine == "vllm" and (spec.image or profile.images.cpu) is None:
        yield Problem(
            ("spec", "engine"),
            f"found vllm, allowed on {where(role.pools)}, without accelerators: torch, as rltrain's image for CPUs has no "
            "vLLM; name a pool with accelerators in spec.pools, or an image with vLLM's build for CPUs in spec.image",
        )
    elif not bare and spec.engine == "vllm":
        yield from _unlike_its_parts(path, spec, role)
    elif role.accelerators > 1:
        yield Problem(path, f"found {role.accelerators}, allowed: 0 or 1, as a copy of engine torch uses one")
    for other in prefill:
        if _kind(other) != _kind(role):
            yield Problem(
                ("spec", "prefill", "pools"),
                f"found {where(other.pools)}, with {_kind(other)}, allowed: pools with {_kind(role)} as those of the copies "
                "that take the keys and values over",
            )
        elif not bare:
            yield from _unlike_its_parts(("spec", "prefill", "resources", "accelerators"), spec, other)


def _kind(role: Role) -> str:
    return role.pool.accelerator or "no accelerators"


def _unlike_its_parts(path: Path, spec: ServiceSpec, role: Role) -> Iterator[Problem]:
    """Accelerators of a copy that are not those that its model is divided over, or more than a node has."""
    sizes = (
        f"tensorParallelSize {spec.tensor_parallel_size} * pipelineParallelSize {spec.pipeline_parallel_size}"
    )
    if role.accelerators != spec.devices:
        yield Problem(
            path, f"found {role.accelerators}, allowed: {spec.devices}, as a copy of engine vllm has {sizes}"
        )
        return
    for pool in role.pools:
        most = pool.accelerators_per_node
        if most is not None and role.accelerators > most:
            yield Problem(
                ("spec", "tensorParallelSize"),
                f"found {sizes}, in one pod {spec.devices} accelerators, allowed: at most {most}, what a node of pool "
                f"{pool.name} has",
            )


@dataclass(frozen=True)
class Lost:
    """Why there is no run to follow (any more)."""

    reason: str
    message: str


def follow(
    name: str, run: Mapping[str, Any] | None, plan: Plan | None, known: FollowedRun | None
) -> tuple[FollowedRun | None, Lost | None]:
    """Where the run keeps its checkpoints, and what is to be said of it.

    Args:
        name: of the run that the service names.
        run: it, as the API server holds it; None: it does not.
        plan: how it is carried out.
        known: what was found of it before: a service outlives its run.
    """
    if known is not None and known.name != name:
        known = None
    if run is None:
        if known is None:
            return None, Lost(
                "RunMissing",
                f"spec.from.run: there is no RLTrainingRun {name!r} in this namespace; create it, and the service goes on "
                "by itself",
            )
        return known, Lost(
            "RunDeleted",
            f"run {name} was deleted; what it left is served, and there will be no better policies of it",
        )
    uid = str((run.get("metadata") or {}).get("uid") or "")
    if known is not None and known.uid != uid:
        return known, Lost(
            "RunReplaced",
            f"run {name} was deleted and made anew; the service goes on with policies of the first one: delete the service "
            "and make it again to follow the other",
        )
    if not isinstance(plan, Effective):
        why = f": {plan.message}" if plan is not None else ""
        return known, None if known is not None else Lost(
            "RunRefused", f"run {name} cannot be carried out{why}"
        )
    if plan.spec.trainer.kind != "rltrain":
        return known, Lost(
            "RunNotServed",
            f"spec.from.run: run {name} has trainer.kind {plan.spec.trainer.kind}, whose checkpoints are its own, allowed: "
            "rltrain",
        )
    found = _place(name, uid, plan)
    if found is None:
        return known, Lost(
            "NoStorage",
            f"run {name} keeps its checkpoints where nobody else gets at them, allowed in its checkpoint.storage: "
            "persistentVolumeClaim or s3",
        )
    return found, None


def _place(name: str, uid: str, plan: Effective) -> FollowedRun | None:
    folder = folder_name(name, uid)
    storage = plan.document["spec"]["checkpoint"]["storage"] if plan.spec.checkpoint is not None else None
    if storage is None:
        return None
    if plan.claim is not None:
        return FollowedRun(name=name, uid=uid, claim=plan.claim, folder=folder)
    if storage.get("s3"):
        return FollowedRun(name=name, uid=uid, claim=None, folder=str(storage["s3"]))
    return None
