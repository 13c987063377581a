"""The run as it is carried out: the profile's defaults under the run's own values, pools, images, limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rl_api.paths import Path
from rl_api.placement_status import KeptPlacement, PlannedPlacement
from rl_api.problems import Problem
from rl_api.profile import ProfileLimitsSpec, ProfileSpec
from rl_api.run import RLTrainingRun, RunSpec
from rl_api.service import ServiceSpec
from rl_api.validation import check_document
from rl_operator.model.names import (
    KIND,
    SAMPLER,
    Manifest,
    attempt_name,
    labels_of,
    owned,
)
from rl_operator.model.settings import Settings
from rl_operator.model.workload import Placed
from rl_operator.plan.allowed import ask, idle_on_accelerators, names_image, not_allowed, wrong_claim
from rl_operator.plan.backends import Backend, backend_of
from rl_operator.plan.gangs import claims_in_gang, queue_beside_gang
from rl_operator.plan.limits import misplaced, over_limits
from rl_operator.plan.planned import placement_digest, planned_of, with_placement
from rl_operator.plan.pools import pools_of_roles
from rl_operator.plan.prior import by_prior, has_begun
from rl_operator.plan.profile import as_written, choose_profile, title, with_defaults
from rl_operator.plan.refused import Refused
from rl_operator.plan.resolve import resolved
from rl_operator.plan.roles import Role, make_roles

CHECKPOINT_CLAIM: Final[Path] = ("spec", "checkpoint", "storage", "persistentVolumeClaim")
WEIGHTS_CLAIM: Final[Path] = ("spec", "sampler", "endpoint", "persistentVolumeClaim")
"""Where a run names a claim."""


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
    profile_digest: str
    """Short hash of the profile, with its name."""
    roles: tuple[Role, ...]
    """Head, learner, sampler, workers of the task; of a program of the user's (`trainer.kind` command) the head, and its
    workers."""
    settings: Settings
    profile: ProfileSpec
    image_pull_policy: str
    """Whether nodes ask the registry for an image that they have."""
    shared_claim: bool = False
    """Whether pods on several nodes can write to its claim; known when an attempt starts."""
    planned: KeptPlacement | None = None
    """The placement that it was given, and has; None: it has what its user has written."""

    def role(self, name: str) -> Role:
        """One role."""
        return next(role for role in self.roles if role.name == name)

    def has(self, name: str) -> bool:
        """Whether the run has pods of this role: a program of the user's may do without workers."""
        return any(role.name == name for role in self.roles)

    def metadata(self, name: str) -> Manifest:
        """Metadata of an object for all attempts."""
        return owned(self.name, self.namespace, self.uid, name, labels_of(self.name))

    def attempt_metadata(self, attempt: int, more: Mapping[str, str] | None = None) -> Manifest:
        """Metadata of an object of one attempt, with `more` labels."""
        labels = {**labels_of(self.name, attempt), **(more or {})}
        return owned(self.name, self.namespace, self.uid, attempt_name(self.name, attempt), labels)

    @property
    def began(self) -> dict[str, Any]:
        """What an attempt that begins now begins with, by fields of `Attempt`."""
        facts = {"image": self.spec.image, "spec_hash": self.digest, "profile_hash": self.profile_digest}
        return {name: fact for name, fact in facts.items() if fact}

    @property
    def backend(self) -> Backend:
        """What follows from the run's trainer."""
        return backend_of(self.spec)

    @property
    def shared(self) -> int:
        """Samplers in learners' pods, on their devices."""
        return self.spec.shared_samplers

    @property
    def samplers(self) -> int:
        """All samplers as people count them, in pods of their own and in learners'."""
        return self.shared + (self.role(SAMPLER).wholes if self.has(SAMPLER) else 0)

    @property
    def elastic(self) -> bool:
        """Whether the number of samplers may change while an attempt runs. A queue that admits a RayJob has admitted a fixed
        number of pods; samplers of several pods keep their number as well, and so they do where some share devices."""
        return self.has(SAMPLER) and self.role(SAMPLER).least is not None

    @property
    def queue(self) -> str | None:
        """Queue that admits the run; None: none does."""
        return self.spec.scheduling.queue

    @property
    def labelled(self) -> bool:
        """Whether the queue admits the run's RayJob, by a label."""
        return self.queue is not None and self.spec.scheduling.integration == "label"

    @property
    def queued(self) -> bool:
        """Whether the queue admits the run itself, by a Workload of ours."""
        return self.queue is not None and not self.labelled

    def placed(self, roles: Mapping[str, Placed]) -> Effective:
        """The same run, whose roles a queue has put somewhere."""
        found = tuple(replace(role, placed=roles.get(role.name, role.placed)) for role in self.roles)
        return replace(self, roles=found)

    @property
    def claim(self) -> str | None:
        """PersistentVolumeClaim of the run's checkpoints, if it uses one."""
        storage = self.spec.checkpoint.storage if self.spec.checkpoint is not None else None
        return storage.persistent_volume_claim if storage is not None else None

    @property
    def in_object_store(self) -> bool:
        """Whether the run's checkpoints are in an object store."""
        storage = self.spec.checkpoint.storage if self.spec.checkpoint is not None else None
        return storage is not None and storage.s3 is not None

    @property
    def limits(self) -> ProfileLimitsSpec:
        """Limits of the profile."""
        return self.profile.limits

    @property
    def profile_name(self) -> str | None:
        """Name of the profile; None: the built-in one."""
        return self.spec.profile

    @property
    def weights_claim(self) -> str | None:
        """PersistentVolumeClaim by which an inference server outside the run gets its weights, if one samples for it."""
        server = self.spec.sampler.endpoint
        return server.persistent_volume_claim if server is not None else None

    @property
    def claims(self) -> dict[Path, str]:
        """PersistentVolumeClaims that the run names, by where it does."""
        found = {CHECKPOINT_CLAIM: self.claim, WEIGHTS_CLAIM: self.weights_claim}
        return {path: claim for path, claim in found.items() if claim is not None}

    def wrong_claim(self, path: Path, storage_class: str | None) -> str:
        """Why the run may not use its claim at `path`, which has this storage class; empty: it may."""
        return wrong_claim(
            title(self.spec.profile), self.profile, path, self.claims.get(path, ""), storage_class
        )

    @property
    def status_port(self) -> int:
        """Port of the driver's status server."""
        return self.spec.server.port

    def answering_at(self, port: int) -> Effective:
        """The same run, whose driver's status server has another port."""
        server = self.spec.server.model_copy(update={"port": port})
        return replace(self, spec=self.spec.model_copy(update={"server": server}))


Plan = Effective | Refused

_LATER: Final[Mapping[tuple[str, ...], Mapping[str, object]]] = {
    ("task",): {
        **{"tools": [], "chatTemplateKwargs": {}, "observationRole": "user"},
        **{"secrets": [], "isolation": "shared", "resources": None},
        **{"dataset": None, "onLongPrompt": "drop", "simulators": None, "rewardModel": None},
    },
    ("task", "simulators"): {"pools": [], "ephemeralStorage": None},
    ("task", "rewardModel"): {"pools": [], "ephemeralStorage": None, "accelerators": 0},
    ("sampler",): {
        **{"topology": None, "pipelineParallelSize": 1, "gpuMemoryUtilization": None, "maxModelLen": None},
        **{"quantization": "none", "endpoint": None, "podsPerReplica": 1},
    },
    ("learner",): {
        **{"topology": None, "fsdpSize": None, "contextSize": 1, "resources": None},
        **{"optimizerOffload": False},
    },
    ("weightSync",): {"maxMismatch": 1.5},
    ("placement",): {
        **{"sharedSamplers": None, "partGroups": None, "handOver": "interrupt", "handOverAt": None},
        **{"residency": "auto", "replan": None},
    },
    ("retry",): {"livenessTimeout": "2m"},
    ("checkpoint",): {"asynchronous": "auto"},
    ("sampler", "resources"): {"ephemeralStorage": None},
    ("trainer", "resources"): {"ephemeralStorage": None},
    ("scheduling",): {"encryption": False, "integration": "workload", "workloadPriorityClass": None},
}
"""Fields that came after 0.1.0, by part of the spec, with what they are where a run does not say."""

_LATER_OF_PROFILES: Final[Mapping[tuple[str, ...], Mapping[str, object]]] = {
    (): {"gang": None},
    ("allow",): {"workloadPriorityClasses": [], "endpoints": []},
    ("limits",): {"maxPreemptionGracePeriod": None, "maxTaskWorkers": None},
    ("limits", "perNamespace"): {"maxTaskWorkers": None},
}
"""The same of a profile."""

_LATER_OF_POOLS: Final[Mapping[str, object]] = {"deviceClass": None, "topology": []}
"""The same of a profile's pools."""


def plan(
    run: Mapping[str, Any],
    profiles: Sequence[Mapping[str, Any]],
    settings: Settings,
    labels: Mapping[str, str] | None = None,
) -> Plan:
    """What is to be done for a run, or why nothing can be. Any JSON: the API server may hold an older or a broken one.

    `labels`: of the run's namespace; None: not known, and so not compared with what the profile allows.
    """
    own = run.get("spec")
    if run.get("wrong"):
        return Refused.because("InvalidSpec", [Problem(("spec",), run["wrong"])])
    chosen = choose_profile(own.get("profile") if isinstance(own, dict) else None, profiles)
    if isinstance(chosen, Refused):
        return chosen
    found = _plan(run, *chosen, settings, labels)
    if isinstance(found, Refused):
        return replace(found, profile_name=chosen[0], limits=chosen[1].limits)
    kept = planned_of(run)
    if kept is None and not has_begun(run):
        kept = by_prior(found.spec, found.roles)
    if kept is None or kept.instead_of != placement_digest(found.spec.placement):
        return found
    moved = placed_as(run, found, kept, labels)
    # What is not allowed any more, or does not go with the rest of the spec, is given up.
    return replace(moved, planned=kept) if isinstance(moved, Effective) else found


def placed_as(
    run: Mapping[str, Any],
    effective: Effective,
    planned: PlannedPlacement,
    labels: Mapping[str, str] | None = None,
) -> Plan:
    """The run with another placement under the same profile, or why that cannot be."""
    moved = with_placement(run, planned)
    return _plan(moved, effective.profile_name, effective.profile, effective.settings, labels)


def _plan(
    run: Mapping[str, Any],
    profile_name: str | None,
    profile: ProfileSpec,
    settings: Settings,
    labels: Mapping[str, str] | None,
) -> Plan:
    """The same under this profile."""
    metadata, own = run.get("metadata") or {}, run.get("spec")
    namespace, called = str(metadata.get("namespace") or "default"), title(profile_name)
    merged = {"spec": with_defaults(profile, own)} if isinstance(own, dict) else {}
    resource, problems = check_document(as_written(run, KIND) | merged, "cluster")
    if not isinstance(resource, RLTrainingRun):
        return Refused.because("InvalidSpec", problems)
    spec = resource.spec
    if problems := list(not_allowed(called, profile, spec, namespace, labels)):
        return Refused.because("NotAllowed", problems, ask=ask(profile))
    if problems := list(queue_beside_gang(called, profile, spec)):
        return Refused.because("InvalidSpec", problems)
    backend = backend_of(spec)
    if spec.workload == "Service":
        allowed = "allowed: Job or Cluster; to serve a policy, apply an RLPolicyService"
        return Refused.because("Unsupported", [Problem(("spec", "workload"), f"found 'Service', {allowed}")])
    pools, problems = pools_of_roles(spec, profile, called, backend.workers(spec))
    if problems:
        return Refused.because("InvalidSpec", problems)
    labelled = (spec.scheduling.queue or profile.queue) is not None and spec.scheduling.integration == "label"
    roles = tuple(make_roles(spec, profile, pools, settings, labelled))
    if problems := [
        *misplaced(spec, roles),
        *backend.misplaced(pools),
        *claims_in_gang(called, profile, roles),
    ]:
        return Refused.because("InvalidSpec", problems)
    if problems := list(idle_on_accelerators(roles)):
        return Refused.because("NotAllowed", problems, ask=ask(profile))
    if problems := list(over_limits(called, profile, spec, roles)):
        return Refused.because("LimitExceeded", problems, ask=ask(profile))
    uid = str(metadata.get("uid") or "")
    effective = resolved(resource, uid, profile_name, profile, roles, settings)
    return Effective(
        name=resource.name,
        namespace=namespace,
        uid=uid,
        spec=effective.spec,
        document=effective.model_dump(mode="json", by_alias=True, exclude={"status"}),
        digest=spec_digest(effective.spec),
        profile_digest=_profile_digest(profile_name, profile),
        roles=roles,
        settings=settings,
        profile=profile,
        image_pull_policy=pull_policy(profile, spec, settings),
    )


def pull_policy(profile: ProfileSpec, spec: RunSpec | ServiceSpec, settings: Settings) -> str:
    """Images that are named may be somebody else's, left on the node: the registry is asked who may pull them."""
    always = profile.allow.images.always_pull and names_image(profile, spec)
    return "Always" if always else settings.image_pull_policy


def spec_digest(spec: RunSpec) -> str:
    """Hash of a spec, without `suspend`. That of a run that says nothing of a later field is what it was before there was
    such a field: it trains the same."""
    document = spec.model_dump(mode="json", by_alias=True, exclude={"suspend"})
    _drop_later(document, _LATER)
    return _digest(document)


def _profile_digest(name: str | None, profile: ProfileSpec) -> str:
    """Hash of a profile, which is what it was before there were later fields, where it says nothing of them."""
    document = profile.to_document()
    _drop_later(document, _LATER_OF_PROFILES)
    for pool in document["pools"]:
        _drop_unsaid(pool, _LATER_OF_POOLS)
    return _digest([name, document])


def _drop_later(document: Mapping[str, Any], later: Mapping[tuple[str, ...], Mapping[str, object]]) -> None:
    for path, fields in later.items():
        part: Any = document
        for name in path:
            part = (part or {}).get(name)
        if part is not None:
            _drop_unsaid(part, fields)


def _drop_unsaid(part: dict[str, Any], later: Mapping[str, object]) -> None:
    for name, unsaid in later.items():
        if part[name] == unsaid:
            del part[name]


def _digest(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
