"""The state machine of a policy service: from the world as it is to what should be done. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from rl_api.service_status import ReplicasStatus, ServicePhase, ServiceStatus, Traffic
from rl_operator.decide.conditions import Conditions, State
from rl_operator.decide.diagnose import (
    Diagnosis,
    missing_dra,
    missing_kuberay,
    no_quota,
    one_line,
    pods_problems,
)
from rl_operator.decide.drift import drift
from rl_operator.decide.look import IDLE, QUICK, SLOW, SOON, TURN
from rl_operator.decide.promotion import Promoting, Second
from rl_operator.decide.room import no_room_for_service
from rl_operator.decide.scaling import scale_copies
from rl_operator.decide.waiting import meanwhile, policy_change
from rl_operator.model.decision import Note, Scale
from rl_operator.model.names import HEAD, REPLICA, Manifest
from rl_operator.model.service import Control, RayService, ServiceDecision, ServiceWorld
from rl_operator.plan.refused import Refused
from rl_operator.plan.service import EffectiveService, ServicePlan
from rl_operator.render.service import ray_service, service_objects, service_secret
from rl_operator.render.service_config import APPLICATION, SERVE_PORT

_WATCHED_SECONDS: Final = 2.0
"""How often the control of a service that serves is asked."""


def reconcile_service(world: ServiceWorld, now: datetime, plan: ServicePlan) -> ServiceDecision:
    """What is to be done for a service now, in whole seconds, as the API server keeps times."""
    old = known_service_status(world.service)
    if world.deleted is not None:
        # What it has goes with it.
        return ServiceDecision(old, requeue=IDLE)
    known = {condition.type: condition for condition in old.conditions}
    look = _Look(world, plan, old, Conditions(known, world.generation, now), now)
    if isinstance(plan, Refused):
        # What runs goes on as it is: a service is not taken down for a mistake in what it is to become.
        return look.set("Accepted", "False", plan.reason, plan.message).decide(old.phase or "Pending", SLOW)
    look = look.set("Accepted", "True", "Valid", "the service can be carried out")
    return _serve(_sourced(look, plan), plan)


def known_service_status(service: Mapping[str, Any]) -> ServiceStatus:
    """The status as it was last written; an empty one where it cannot be read."""
    try:
        return ServiceStatus.model_validate(service.get("status") or {})
    except ValidationError:
        return ServiceStatus()


@dataclass(frozen=True)
class _Look:
    """What is known of a service: the world, and the status as far as it follows from it by now."""

    world: ServiceWorld
    plan: ServicePlan
    status: ServiceStatus
    conditions: Conditions
    now: datetime
    notes: tuple[Note, ...] = ()

    def set(self, kind: str, status: State, reason: str, message: str) -> _Look:
        """With a condition."""
        return replace(self, conditions=self.conditions.set(kind, status, reason, message))

    def showing(self, **fields: Any) -> _Look:
        """With these fields of the status."""
        return replace(self, status=self.status.model_copy(update=fields))

    def decide(self, phase: ServicePhase, requeue: float, **more: Any) -> ServiceDecision:
        """A decision by which the status is as known by now."""
        shown = {
            "phase": phase,
            "conditions": self.conditions.all(),
            "observed_generation": self.world.generation,
        }
        status = self.status.model_copy(update=shown)
        notes = (*self.notes, *self.conditions.notes())
        return ServiceDecision(status, notes=notes, requeue=requeue, **more)


def _sourced(look: _Look, service: EffectiveService) -> _Look:
    """Whether there are policies to serve."""
    world, run = look.world, service.spec.source.run
    look = look.showing(followed=world.followed)
    if run is None:
        fixed, control = service.spec.source.checkpoint, world.control
        if control is not None and control.problem and not control.checkpoints:
            why = one_line(f"{fixed} cannot be read: {control.problem}", 500)
            return look.set("SourceFound", "False", "NoCheckpoint", why)
        return look.set("SourceFound", "True", "Fixed", f"{fixed} is the policy to serve")
    if world.lost is not None:
        return look.set("SourceFound", "False", *world.lost)
    control = world.control
    if control is not None and not control.checkpoints and look.status.serving is None:
        why = (
            control.problem or "it has written none yet; the first one is a candidate as soon as it is there"
        )
        return look.set(
            "SourceFound", "False", "NoCheckpoint", one_line(f"run {run} has no checkpoint: {why}")
        )
    return look.set("SourceFound", "True", "Followed", f"checkpoints of run {run} are candidates")


def _serve(look: _Look, service: EffectiveService) -> ServiceDecision:
    world = look.world
    if not world.kuberay:
        found = missing_kuberay("RayService")
        return look.set("ClusterReady", "False", found.reason, found.message).decide("Pending", SLOW)
    if not world.dra and world.ray is None and (without := missing_dra(service.roles)) is not None:
        return look.set("ClusterReady", "False", without.reason, without.message).decide("Pending", SLOW)
    if service.spec.source.run is not None and world.followed is None and world.ray is None:
        # It may have waited for room before, which it does no longer.
        look = replace(look, conditions=look.conditions.clear("ClusterReady"))
        return look.set("Serving", "False", "NoSource", "there is no policy to serve").decide("Pending", SLOW)
    crowded = no_room_for_service(service, world.ray, world.others) if not world.refusal else None
    if crowded is not None and world.ray is None:
        look = look.showing(replicas=None, traffic=[], endpoints=[])
        look = look.set("ClusterReady", "False", crowded.reason, crowded.message)
        return look.set("Serving", "False", crowded.reason, "its pods wait for room").decide("Pending", TURN)
    before, wanted = look.status, service_objects(service)
    change: tuple[Manifest, ...] = ()
    promoting = Promoting(service.spec, look.status, look.now, _current(world), _second(world))
    if crowded is None or world.ray is None:
        promoting = promoting.advanced()
        wanted = [*wanted, _ray_service(world, service, promoting)]
    else:
        live = world.ray.live
        policies = meanwhile(live, _ray_service(world, service, promoting))
        if policies.why:
            crowded = replace(crowded, message=f"{crowded.message}; {policies.why}")
        if policies.changes:
            promoting = replace(promoting, tries=policies.tries).advanced()
            in_place = service.spec.promotion.strategy == "inPlace"
            change = policy_change(live, _ray_service(world, service, promoting), in_place)
    look = replace(look, status=promoting.status, notes=(*look.notes, *promoting.notes))
    create, apply = drift(wanted, world.live) if not world.refusal else ((), ())
    if any(one["kind"] == "RayService" for one in create) or _secret_lost(world, service):
        create = (service_secret(service, world.key), *create)
    look = _seen(look, service, crowded)
    wanted_copies = _scale(world, service) if crowded is None else None
    if wanted_copies is not None:
        group = wanted_copies.group
        text = f"{wanted_copies.replicas} instead of {group.replicas} pods for copies are wanted in {group.cluster}"
        look = replace(look, notes=(*look.notes, Note("Normal", "Scaling", text)))
    busy = look.status.candidate is not None or look.status != before
    decision = look.decide(_phase(look), _WATCHED_SECONDS if world.ray is not None else QUICK)
    waits = SOON if world.control is None and world.ray is not None else decision.requeue
    return replace(
        decision,
        create=create,
        apply=apply,
        change=change,
        scale=wanted_copies,
        wish=promoting.wish,
        requeue=min(waits, 1.0) if busy else waits,
    )


def _ray_service(world: ServiceWorld, service: EffectiveService, promoting: Promoting) -> Manifest:
    """The RayService as it should be."""
    # KubeRay also takes the traffic back where the pods are to be others in the middle of it.
    back = promoting.hurried or (world.ray is not None and world.ray.going_back)
    return ray_service(service, world.followed, promoting.target, first=promoting.first, hurried=back)


def _scale(world: ServiceWorld, service: EffectiveService) -> Scale | None:
    """Another number of pods for a cluster that has the traffic: one that is to have it begins with what is wanted."""
    ray = world.ray
    if ray is None or not ray.active or ray.pending or world.refusal:
        return None
    group = world.groups.get(ray.active)
    if group is None:
        return None
    return scale_copies(group, service.role(REPLICA).replicas, world.pods_of(ray.active))


def _current(world: ServiceWorld) -> Control | None:
    """What the control of the cluster with the traffic said, once there is one and it is the only one."""
    ray, control = world.ray, world.control
    if ray is None or control is None or control.cluster != (ray.active or ray.pending):
        return None
    return control


def _second(world: ServiceWorld) -> Second | None:
    """The cluster that is to have the traffic, where another one has it."""
    ray, control = world.ray, world.coming
    if ray is None or not ray.active or not ray.pending:
        return None
    return Second(control if control is not None and control.cluster == ray.pending else None, ray.share)


def _seen(look: _Look, service: EffectiveService, crowded: Diagnosis | None) -> _Look:
    """Cluster, copies, traffic; `crowded`: why the cluster stays as it was."""
    world, ray, control = look.world, look.world.ray, _current(look.world)
    desired = service.spec.replicas.min
    replicas = control.replicas if control is not None else ()
    ready = sum(bool(one.version) for one in replicas)
    found = _problem(look, service)
    status = ReplicasStatus(
        desired=max(desired, len(replicas)),
        ready=ready,
        reason=found.message if found is not None and ready < desired else None,
    )
    look = look.showing(replicas=status, traffic=_traffic(world), endpoints=_endpoints(world, service))
    if found is not None:
        look = look.set("ClusterReady", "False", found.reason, found.message)
    elif crowded is not None:
        state: State = "True" if _is_ready(world) else "False"
        look = look.set("ClusterReady", state, crowded.reason, crowded.message)
    elif _is_ready(world):
        look = look.set("ClusterReady", "True", "Ready", "the pods are ready")
    else:
        look = look.set("ClusterReady", "False", "Starting", "the pods are starting")
    serving = look.status.serving
    if serving is not None and ready and ray is not None and ray.ready:
        keys = f"; auth.secret: {control.key_problem}" if control is not None and control.key_problem else ""
        look = look.set("Serving", "True", "Serving", one_line(f"{serving.version} is served{keys}", 500))
    elif control is None and world.control_error:
        look = look.set(
            "Serving",
            "Unknown",
            "ControlSilent",
            f"the service does not answer the operator: {world.control_error}",
        )
    elif serving is not None and (look.conditions.holds("Serving") or not ready):
        why = "no copy of the policy answers" if not ready else "no pod of the service takes requests"
        look = look.set("Serving", "False", "NoReplica", why)
    elif serving is not None:
        look = look.set("Serving", "False", "Starting", "no pod of the service takes requests yet")
    else:
        look = look.set("Serving", "False", "Starting", "no policy is served yet")
    return _promoting(look)


def _is_ready(world: ServiceWorld) -> bool:
    """KubeRay goes on to call a service ready whose head is gone, until there is another."""
    ray, head = world.ray, None if world.ray is None else world.head_of(world.ray.active)
    return ray is not None and ray.ready and head is not None and head.ready


def _traffic(world: ServiceWorld) -> list[Traffic]:
    """Share of the requests that each version has: of the copies, and of the two clusters where they share them. None at all
    where a cluster has some whose control is silent: the rest is no whole."""
    ray, second = world.ray, _second(world)
    parts: list[tuple[Control | None, float]] = [(_current(world), 1.0)]
    if ray is not None and second is not None and second.share is not None:
        parts = [(_current(world), 1 - second.share / 100), (second.control, second.share / 100)]
    if any(control is None and part for control, part in parts):
        return []
    shares: defaultdict[str, float] = defaultdict(float)
    for control, part in parts:
        versions = [one.version for one in control.replicas if one.version] if control is not None else []
        for version in versions:
            shares[version] += part / len(versions)
    known = sum(shares.values())
    return [
        Traffic(version=version, percent=round(100 * part / known))
        for version, part in sorted(shares.items())
        if part > 0
    ]


def _endpoints(world: ServiceWorld, service: EffectiveService) -> list[str]:
    """Addresses for clients."""
    if world.ray is None:
        return []
    if service.spec.promotion.incremental is not None:
        address = world.gateway.address if world.gateway is not None else ""
        return [f"http://{address}/v1"] if address else []
    return [f"http://{service.name}-serve-svc.{service.namespace}.svc:{SERVE_PORT}/v1"]


def _promoting(look: _Look) -> _Look:
    candidate = look.status.candidate
    plan, control = look.plan, look.world.control
    if candidate is not None:
        text, second = candidate.message, _second(look.world)
        if candidate.state == "RollingOut" and second is not None and second.share is not None:
            moves = plan.spec.promotion.incremental if isinstance(plan, EffectiveService) else None
            halted = "; halted" if moves is not None and moves.halted else ""
            text = f"{second.share}% of the requests go to it{halted}"
        return look.set("Promoting", "True", candidate.state, f"{candidate.version}: {text}")
    if (
        isinstance(plan, EffectiveService)
        and control is not None
        and (step := plan.spec.promotion.step) is not None
    ):
        serving = look.status.serving
        there = sorted(one.step for one in control.checkpoints)
        if step not in there and (serving is None or serving.step != step):
            steps = ", ".join(map(str, there)) or "none"
            why = f"spec.promotion.step: found {step}, allowed: a step with a checkpoint: {steps}"
            return look.set("Promoting", "False", "StepMissing", why)
        wanted = next((one.digest for one in control.checkpoints if one.step == step), None)
        if wanted in look.status.refused and (serving is None or serving.digest != wanted):
            ended = [one.message for one in look.status.promotions if one.digest == wanted]
            why = f"spec.promotion.step: found {step}, whose checkpoint was refused or taken back and is not tried again"
            return look.set(
                "Promoting", "False", "StepRefused", one_line(f"{why}: {ended[-1]}" if ended else why, 500)
            )
    last = look.status.promotions[-1] if look.status.promotions else None
    if last is None:
        return look.set("Promoting", "False", "Idle", "there is no candidate")
    words = {
        "promoted": "was promoted",
        "refused": "was refused",
        "rolledBack": "was rolled back",
        "stuck": "could not be rolled back",
    }[last.result]
    why = f": {last.message}" if last.message else ""
    return look.set(
        "Promoting", "False", last.result[0].upper() + last.result[1:], f"{last.version} {words}{why}"
    )


def _problem(look: _Look, service: EffectiveService) -> Diagnosis | None:
    """Why the service's cluster does not run as it should; None: nothing is known."""
    world, ray = look.world, look.world.ray
    if world.refusal:
        return no_quota(world.refusal) or Diagnosis("ObjectRefused", world.refusal)
    if ray is None:
        return None
    if found := _pods_problems(world, service):
        return found[0]
    if ray.problem:
        return Diagnosis("ServeFailed", one_line(f"Ray Serve: {ray.problem}", 600))
    return _gateway_problem(world, ray, service)


def _pods_problems(world: ServiceWorld, service: EffectiveService) -> list[Diagnosis]:
    """What keeps pods of the service from running, the most telling first."""
    ray = world.ray
    clusters = (ray.active, ray.pending) if ray is not None else ()
    pods = [pod for cluster in clusters if cluster for pod in world.pods_of(cluster)]
    return pods_problems(sorted(pods, key=lambda pod: (pod.role != HEAD, pod.name)), world, service.roles)


def _secret_lost(world: ServiceWorld, service: EffectiveService) -> bool:
    """Whether a pod cannot start without the service's tokens, which somebody has deleted."""
    return any(
        found.reason == "ObjectMissing" and repr(service.secret) in found.message
        for found in _pods_problems(world, service)
    )


def _gateway_problem(world: ServiceWorld, ray: RayService, service: EffectiveService) -> Diagnosis | None:
    """Why no request comes through the Gateway of a service whose traffic moves in steps."""
    steps = service.spec.promotion.incremental
    if steps is None or not ray.active:
        return None
    if not ray.steps:
        return Diagnosis(
            "NoIncrementalUpgrade",
            "KubeRay moves no traffic in steps: its feature gate RayServiceIncrementalUpgrade is off; ask the platform team "
            "for it, or take promotion.strategy newCluster",
        )
    named = f"Gateway {service.name}-gateway of class {steps.gateway_class}"
    if world.gateway is None:
        return Diagnosis("NoGateway", f"{named} is not there: does the cluster have the Gateway API?")
    if world.gateway.problem:
        return Diagnosis(
            "GatewayNotReady", one_line(f"{named} takes no requests: {world.gateway.problem}", 500)
        )
    return None


def _phase(look: _Look) -> ServicePhase:
    serves = look.conditions.holds("Serving")
    candidate, ray = look.status.candidate, look.world.ray
    if serves and ((candidate is not None and candidate.state in ("RollingOut", "RollingBack")) or _two(ray)):
        return "Updating"
    if serves:
        return "Serving"
    failed = ray is not None and ray.applications.get(APPLICATION) == "DEPLOY_FAILED"
    return "Failed" if failed else "Starting"


def _two(ray: RayService | None) -> bool:
    return ray is not None and bool(ray.active) and bool(ray.pending)
