"""The run as it is carried out: the profile's defaults under the run's own values, pools, images, limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rl_api.paths import Path, render_path
from rl_api.problems import Problem
from rl_api.profile import PoolSpec, ProfileSpec, RLTrainingProfile, merge
from rl_api.run import CheckpointSpec, RLTrainingRun, RunSpec
from rl_api.validation import check_document
from rl_operator.model.names import API_VERSION, HEAD, KIND, LEARNER, SAMPLER, Manifest, folder_name
from rl_operator.model.settings import Settings
from rl_operator.plan.pools import choose_pools, head_pool, wrong_pools
from rl_operator.plan.roles import Role, make_roles, worker_roles

BUILT_IN: Final = ProfileSpec(pools=(PoolSpec(name="default"),))
"""What runs get where no profile is marked default: one pool without accelerators, on any node."""

RAY_PORTS: Final = {"gcs": 6379, "dashboard": 8265, "client": 10001}
"""Ports of the Ray head."""

_LONGEST_MESSAGE: Final = 2000


@dataclass(frozen=True)
class Effective:
    """A run that can be carried out."""

    name: str
    namespace: str
    uid: str
    spec: RunSpec
    document: Manifest
    """What the trainer reads: the run with everything filled in."""
    digest: str
    """Short hash of the spec, without `suspend`, which does not change what is trained."""
    roles: tuple[Role, ...]
    """Head, learner, sampler; of a program of the user's (`trainer.kind` command) the head, and its workers."""
    settings: Settings

    def role(self, name: str) -> Role:
        """One role."""
        return next(role for role in self.roles if role.name == name)

    def has(self, name: str) -> bool:
        """Whether the run has pods of this role: a program of the user's may do without workers."""
        return any(role.name == name for role in self.roles)

    @property
    def elastic(self) -> bool:
        """Whether the number of samplers may change while an attempt runs. A queue has admitted a fixed number of pods."""
        return self.has(SAMPLER) and self.role(SAMPLER).least is not None

    @property
    def claim(self) -> str | None:
        """PersistentVolumeClaim of the run's checkpoints, if it uses one."""
        storage = self.spec.checkpoint.storage if self.spec.checkpoint is not None else None
        return storage.persistent_volume_claim if storage is not None else None

    @property
    def status_port(self) -> int:
        """Port of the driver's status server."""
        return self.spec.server.port


@dataclass(frozen=True)
class Refused:
    """A run that cannot be carried out."""

    reason: str
    """One word: InvalidSpec, ProfileMissing, ProfileInvalid, LimitExceeded or Unsupported."""
    message: str
    """A sentence for each thing that is wrong."""


Plan = Effective | Refused


def plan(run: Mapping[str, Any], profiles: Sequence[Mapping[str, Any]], settings: Settings) -> Plan:
    """What is to be done for a run (an object of the API server), or why nothing can be.

    Args:
        run: the RLTrainingRun; any JSON, as the API server may hold an older or a broken one.
        profiles: all RLTrainingProfiles.
        settings: the operator's.
    """
    metadata = run.get("metadata") or {}
    own = run.get("spec")
    chosen = choose_profile(own.get("profile") if isinstance(own, dict) else None, profiles)
    if isinstance(chosen, Refused):
        return chosen
    profile_name, profile = chosen
    document = {
        "apiVersion": run.get("apiVersion", API_VERSION),
        "kind": run.get("kind", KIND),
        "metadata": {"name": metadata.get("name"), "namespace": metadata.get("namespace")},
        "spec": merge(profile.defaults, own) if isinstance(own, dict) else own,
    }
    resource, problems = check_document(document, "cluster")
    if not isinstance(resource, RLTrainingRun):
        return Refused("InvalidSpec", sentences(problems))
    spec = resource.spec
    if problems := list(_unsupported(spec)):
        return Refused("Unsupported", sentences(problems))
    problems = list(wrong_pools(profile, _title(profile_name), "trainer", spec.trainer.pools))
    pools: dict[str, tuple[PoolSpec, ...]] = {
        HEAD: choose_pools(profile, spec.trainer.pools) if spec.trainer.pools else (head_pool(profile),)
    }
    for role, names in ((LEARNER, spec.learner.pools), (SAMPLER, spec.sampler.pools)):
        if role in worker_roles(spec):
            problems += wrong_pools(profile, _title(profile_name), role, names)
            pools[role] = choose_pools(profile, names)
    if problems:
        return Refused("InvalidSpec", sentences(problems))
    queued = (spec.scheduling.queue or profile.queue) is not None
    roles = tuple(make_roles(spec, profile, pools, settings, queued))
    if problems := list(_misplaced(spec, roles)):
        return Refused("InvalidSpec", sentences(problems))
    if problems := list(_over_limits(profile_name, profile, roles)):
        return Refused("LimitExceeded", sentences(problems))
    uid = str(metadata.get("uid") or "")
    effective = _resolve(resource, uid, profile_name, profile, roles, settings)
    return Effective(
        name=resource.name,
        namespace=str(metadata.get("namespace") or "default"),
        uid=uid,
        spec=effective.spec,
        document=effective.model_dump(mode="json", by_alias=True, exclude={"status"}),
        digest=spec_digest(effective.spec),
        roles=roles,
        settings=settings,
    )


def choose_profile(
    name: object, profiles: Sequence[Mapping[str, Any]]
) -> tuple[str | None, ProfileSpec] | Refused:
    """Name and spec of the profile called `name`, else of the default one, else of the built-in one (no name)."""
    by_name = {str((profile.get("metadata") or {}).get("name")): profile for profile in profiles}
    if name is None:
        marked = sorted(
            key for key, profile in by_name.items() if (profile.get("spec") or {}).get("default") is True
        )
        if not marked:
            return None, BUILT_IN
        if len(marked) > 1:
            return Refused(
                "ProfileMissing",
                f"spec.profile: missing, required where several profiles are marked default: {', '.join(marked)}",
            )
        name = marked[0]
    if not isinstance(name, str) or name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        return Refused(
            "ProfileMissing",
            f"spec.profile: found {name!r}, but there is no such RLTrainingProfile (there are: {known}); "
            "name one of them or ask your platform team",
        )
    resource, problems = check_document(_without_status(by_name[name]))
    if not isinstance(resource, RLTrainingProfile):
        return Refused("ProfileInvalid", f"RLTrainingProfile {name}: {sentences(problems)}")
    return name, resource.spec


def sentences(problems: Sequence[Problem]) -> str:
    """All problems as one message of bounded length."""
    texts = [f"{render_path(problem.path)}: {problem.sentence}" for problem in problems]
    message = "; ".join(texts)
    if len(message) <= _LONGEST_MESSAGE:
        return message
    return f"{message[: _LONGEST_MESSAGE - 30]}... ({len(texts)} problems)"


def spec_digest(spec: RunSpec) -> str:
    """Hash of a spec, without `suspend`."""
    document = spec.model_dump(mode="json", by_alias=True, exclude={"suspend"})
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_status(document: Mapping[str, Any]) -> dict[str, Any]:
    metadata = document.get("metadata") or {}
    return {
        "apiVersion": document.get("apiVersion", API_VERSION),
        "kind": document.get("kind", "RLTrainingProfile"),
        "metadata": {"name": metadata.get("name")},
        "spec": document.get("spec"),
    }


def _title(profile: str | None) -> str:
    return "the built-in profile" if profile is None else f"profile {profile}"


def _unsupported(spec: RunSpec) -> Iterator[Problem]:
    """What the contract has and this version of the operator has not."""
    if spec.workload == "Service":
        yield Problem(
            ("spec", "workload"),
            "found 'Service', allowed in this version: Job or Cluster; serving a policy comes with a later one",
        )


def _misplaced(spec: RunSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Roles that do not fit the nodes of their pools, and a status port that Ray needs itself."""
    if spec.server.port in RAY_PORTS.values():
        taken = ", ".join(f"{port} ({name})" for name, port in RAY_PORTS.items())
        yield Problem(
            ("spec", "server", "port"),
            f"found {spec.server.port}, allowed: a port that Ray does not use: {taken}",
        )
    head = next(role for role in roles if role.name == HEAD)
    if head.accelerators:
        yield from _no_room(("spec", "trainer", "resources", "accelerators"), head)
    if spec.trainer.kind == "verl":
        learner = next(role for role in roles if role.name == LEARNER)
        if learner.pool.accelerator_resource is None:
            yield Problem(
                ("spec", "learner", "pools"),
                f"found {learner.where}, without accelerators, allowed with trainer.kind verl: pools with accelerators, "
                "as verl trains on GPUs only",
            )
    sampler = next((role for role in roles if role.name == SAMPLER), None)
    if sampler is None:
        return
    resource = sampler.pool.accelerator_resource
    explicit = spec.sampler.resources is not None and spec.sampler.resources.accelerators is not None
    path: Path = (
        ("spec", "sampler", "resources", "accelerators")
        if explicit
        else ("spec", "sampler", "tensorParallelSize")
    )
    yield from _no_room(path, sampler)
    if spec.sampler.engine == "vllm" and sampler.accelerators == 0 and resource is not None:
        yield Problem(path, f"found 0, allowed: at least 1 with engine vllm on {sampler.where}")


def _no_room(path: Path, role: Role) -> Iterator[Problem]:
    """More accelerators per pod than the nodes of its pools have."""
    if role.accelerators and role.pool.accelerator_resource is None:
        yield Problem(path, f"found {role.accelerators}, allowed: 0 on {role.where}, without accelerators")
    for pool in role.pools:
        per_node = pool.accelerators_per_node
        if per_node is not None and role.accelerators > per_node:
            yield Problem(
                path,
                f"found {role.accelerators}, allowed: at most {per_node}, what a node of pool {pool.name} has",
            )


def _over_limits(profile_name: str | None, profile: ProfileSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Where the run asks for more than the profile lets one run have."""
    title, limits = _title(profile_name), profile.limits
    by_role = {role.name: role for role in roles}
    for name, limit in ((SAMPLER, limits.max_samplers), (LEARNER, limits.max_learners)):
        replicas = by_role[name].replicas if name in by_role else 0
        if limit is not None and replicas > limit:
            yield Problem(
                ("spec", name, "replicas"),
                f"found {replicas}, allowed: at most {limit}, the limit of {title}",
            )
    total = sum(role.replicas * role.accelerators for role in roles)
    if limits.max_accelerators is not None and total > limits.max_accelerators:
        yield Problem(
            ("spec",),
            f"found {total} accelerators ({_shares(roles)}), allowed: at most {limits.max_accelerators}, "
            f"the limit of {title}",
        )
    for pool in profile.pools:
        # Where a role has several pools, all of its pods may end up in any of them.
        here = [role for role in roles if pool in role.pools]
        for role in here:
            most = pool.limits.max_replicas
            if role.name != HEAD and most is not None and role.replicas > most:
                yield Problem(
                    ("spec", role.name, "replicas"),
                    f"found {role.replicas}, allowed: at most {most}, the limit of pool {pool.name}",
                )
        used = sum(role.replicas * role.accelerators for role in here)
        if pool.limits.max_accelerators is not None and used > pool.limits.max_accelerators:
            yield Problem(
                ("spec",),
                f"found {used} accelerators of pool {pool.name} ({_shares(here)}), allowed: at most "
                f"{pool.limits.max_accelerators}, the limit of the pool",
            )


def _shares(roles: Sequence[Role]) -> str:
    return ", ".join(
        f"{role.name}: {role.replicas} * {role.accelerators}" for role in roles if role.accelerators
    )


def _resolve(
    run: RLTrainingRun,
    uid: str,
    profile_name: str | None,
    profile: ProfileSpec,
    roles: Sequence[Role],
    settings: Settings,
) -> RLTrainingRun:
    """The run with everything written out that profile and operator decided."""
    spec = run.spec
    pools = {role.name: tuple(pool.name for pool in role.pools) for role in roles}
    images = {role.name: role.image for role in roles}
    groups = {name: getattr(spec, name) for name in (LEARNER, SAMPLER) if name in pools}
    changes: dict[str, Any] = {
        "profile": profile_name,
        "image": spec.image or images.get(LEARNER, images[HEAD]),
        **{name: group.model_copy(update={"pools": pools[name]}) for name, group in groups.items()},
        "scheduling": spec.scheduling.model_copy(update={"queue": spec.scheduling.queue or profile.queue}),
        "server": spec.server.model_copy(update={"port": spec.server.port or settings.status_port}),
        "checkpoint": _own_folder(spec.checkpoint, folder_name(run.name, uid)),
        "suspend": False,
    }
    return run.model_copy(update={"spec": spec.model_copy(update=changes), "status": None})


def _own_folder(checkpoint: CheckpointSpec | None, name: str) -> CheckpointSpec | None:
    """What a run or a profile names in an object store is for many runs: each has a folder of its own there."""
    storage = checkpoint.storage if checkpoint is not None else None
    if checkpoint is None or storage is None or storage.s3 is None:
        return checkpoint
    own = storage.model_copy(update={"s3": f"{storage.s3.rstrip('/')}/{name}"})
    return checkpoint.model_copy(update={"storage": own})
