"""What the status shows of a running attempt: roles, conditions, progress, phase. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from rl_api.progress import Progress, RoleStatus, RunStatus
from rl_api.run import StopSpec
from rl_operator.decide.diagnose import Diagnosis
from rl_operator.decide.look import Look
from rl_operator.decide.placement import same_but_measured, with_shared
from rl_operator.model.names import HEAD, LEARNER, SAMPLER, TASK_WORKERS
from rl_operator.model.seen import Pod, Ray, Reading
from rl_operator.plan.effective import Effective, Plan
from rl_operator.plan.refused import Refused

TRAINING: Final = frozenset({"WarmStart", "Training", "Evaluating", "Checkpointing", "Stopping"})
"""Phases in which a driver trains."""

SILENCE: Final = timedelta(seconds=60)
"""How long a driver may say nothing."""

IGNORED: Final = timedelta(seconds=60)
"""How long KubeRay may take to notice a RayJob, and to start its job when all pods are there."""

REFRESH: Final = timedelta(seconds=30)
"""After this time the same figures are written again, as a sign of life."""

BUDGET: Final = timedelta(seconds=10)
"""How long figures alone wait at least to be written after those before them."""

MOST_BUDGET: Final = timedelta(seconds=50)
"""How long they wait at most: a driver whose figures are older than a minute is taken for silent (rl_cli.view)."""

_FIGURES_A_SECOND: Final = 20.0
"""So many runs have their figures written in a second: each takes an API server some milliseconds, as it checks all of the
run's rules anew."""

_NOT_SUBMITTED: Final = (
    "all pods are ready, and KubeRay does not start the job in them: its operator must reach the head by Service {}, and "
    "that must be the one that KubeRay made"
)

_STEP_LINE: Final = re.compile(r"^step (\d{1,16})/(\d{1,16})  reward (-?\d+(?:\.\d+)?)?", re.MULTILINE)
"""A step as the driver writes it where nobody watches a terminal (rl_trainer.observe.console)."""


def merge_progress(old: Progress | None, new: Progress, read: datetime, now: datetime) -> Progress:
    """What to show after a reading of `new`: its figures with our own time, or the old ones where they are the same.

    What the driver did not say stays. What it says of the placement is shown beside its progress.
    """
    kept = {"step", "max_steps"} - new.model_fields_set if old is not None else set()
    update = {"updated_at": now, "placement": None, **{name: getattr(old, name) for name in kept}}
    new = new.model_copy(update=update)
    if old is None or old.updated_at is None or figures(old) != figures(new):
        return new
    return new if read > old.updated_at and now - old.updated_at >= REFRESH else old


def figures(progress: Progress) -> Progress:
    """Progress without what changes all the time."""
    return progress.model_copy(update={"updated_at": None, "eta_seconds": None})


def budget(followed: int) -> timedelta:
    """How long figures alone wait to be written after those before them, where so many drivers are followed."""
    return min(max(BUDGET, timedelta(seconds=math.ceil(followed / _FIGURES_A_SECOND))), MOST_BUDGET)


def news(old: Progress, new: Progress, followed: int) -> float | None:
    """In how many seconds a reading wants to be seen after another, of one of so many drivers; None: it says nothing new."""
    if old.phase != new.phase:
        return 0.0
    return budget(followed).total_seconds() if figures(old) != figures(new) else None


def within_budget(old: RunStatus, new: RunStatus, now: datetime, followed: int) -> float | None:
    """Seconds that a new status must wait to be written, where so many drivers are followed; None: none.

    What the driver counts, and how many pods are ready, waits until figures were written a `budget` ago; everything else
    that changes, such as phase, checkpoint and conditions, is written at once, and takes those along.
    """
    before, after = old.progress, new.progress
    if before is None or before.updated_at is None or after is None or before.phase != after.phase:
        return None
    figures_of_old = {"progress": before, "roles": old.roles, "placement": same_but_measured(old, new)}
    if new == old or new.model_copy(update=figures_of_old) != old:
        return None
    most = budget(followed)
    left = before.updated_at + most - now
    return left.total_seconds() if timedelta(0) < left <= most else None


def last_figures(
    known: Progress | None, ray: Ray | None, succeeded: bool, stop: StopSpec | None, now: datetime
) -> Progress | None:
    """Progress at the end of an attempt whose driver may have told its last to nobody, as no operator ran.

    What outlives a driver where an operator sees it is the RayJob: whether the job succeeded, and the last lines of the
    log of one that failed, among which are the last steps. A run that succeeds has done all of its steps, unless its spec
    lets it end otherwise, or does not say (`stop` is None); what it reached then is in its folder alone.
    """
    before = known or Progress()
    last: dict[str, Any] = {"updatedAt": now, "etaSeconds": None}
    if succeeded:
        if before.phase == "Succeeded" or stop is None:
            return known
        if stop.target_reward is not None or stop.max_duration is not None:
            return known
        steps = before.max_steps or stop.max_steps
        last |= {"phase": "Succeeded", "step": steps, "maxSteps": steps}
        return Progress.model_validate(before.to_document() | last)
    lines = _STEP_LINE.findall(ray.message) if ray is not None else []
    if not lines or int(lines[-1][0]) <= before.step:
        return known
    step, most, reward = lines[-1]
    last |= {"step": step, "maxSteps": most, "reward": reward or None}
    try:
        return Progress.model_validate(before.to_document() | last)
    except ValidationError:
        return known  # somebody else's lines look like those of steps, with figures that are none


def role_statuses(look: Look, ray: Ray, found: Sequence[Diagnosis]) -> dict[str, RoleStatus]:
    """Replicas of each role, and why some are missing. Samplers follow the spec, the others what the attempt began with.

    A sampler of several pods is ready when all of them are. Ray puts samplers on any pods, so that as many are ready as the
    pods that are ready make up. Samplers in learners' pods are counted with the others.
    """
    roles: dict[str, RoleStatus] = {}
    pods, effective, old = look.world.pods_of(ray.attempt), look.effective, look.status.roles
    placement = look.status.placement
    shared = placement.shared if placement is not None else 0
    known = (
        [role.name for role in effective.roles] if effective is not None else old or (HEAD, LEARNER, SAMPLER)
    )
    if placement is not None and shared:
        # The attempt keeps those it began with, whatever the spec says now; with how many have pods of their own.
        own = placement.samplers - shared
        old = {name: role for name, role in old.items() if name != SAMPLER}
        known = [name for name in known if name != SAMPLER]
        if own > 0:
            old[SAMPLER] = RoleStatus(desired=own)
            known.append(SAMPLER)
    for role in (HEAD, LEARNER, SAMPLER, *TASK_WORKERS):
        if role not in known or (role in TASK_WORKERS and not _has(ray, pods, role)):
            continue
        desired = old[role].desired if role in old else 1
        hosts = _hosts(ray, effective) if role == SAMPLER else 1
        follows = role == SAMPLER and effective is not None and effective.elastic and hosts == 1
        if effective is not None and (role not in old or follows):
            desired = effective.role(role).wholes
        ready = sum(pod.ready and pod.deleting is None for pod in pods if pod.role == role) // hosts
        why = next((diagnosis.message for diagnosis in found if diagnosis.role in (role, "")), None)
        reason = None
        if ready < desired:
            refused = look.world.scale_refusal if role == SAMPLER else ""
            reason = why or refused or "starting"
        elif role == SAMPLER:
            reason = _not_followed(look.plan, desired + shared, hosts, shared)
        roles[role] = RoleStatus(desired=desired, ready=ready, reason=reason)
    if placement is not None and shared:
        both = with_shared(roles.get(SAMPLER), placement, roles.get(LEARNER))
        late = _not_followed(look.plan, both.desired, 1, shared) if both.ready == both.desired else None
        roles[SAMPLER] = both.model_copy(update={"reason": both.reason or late})
    return roles


def _has(ray: Ray, pods: Sequence[Pod], role: str) -> bool:
    """Whether an attempt has pods of a role: one that an older operator made may have no task workers."""
    return ray.groups is None or role in ray.groups or any(pod.role == role for pod in pods)


def _hosts(ray: Ray, effective: Effective | None) -> int:
    """Pods of each of an attempt's samplers."""
    if ray.samplers is not None:
        return ray.samplers.hosts
    return effective.role(SAMPLER).hosts if effective is not None and effective.has(SAMPLER) else 1


def _not_followed(plan: Plan, desired: int, hosts: int, shared: int) -> str | None:
    """Why there are not as many samplers as the spec says now; None: there are."""
    if isinstance(plan, Refused):
        return plan.message if plan.reason == "LimitExceeded" else None
    wanted = plan.samplers
    if wanted == desired:
        return None
    stay = "samplers of several pods stay" if hosts > 1 else ""
    if plan.has(SAMPLER) and plan.role(SAMPLER).hosts > 1:
        stay = "samplers of several pods stay"
    if shared:
        stay = "where samplers share learners' devices all stay"
    if stay:
        return (
            f"spec.sampler.replicas is {wanted} now; this attempt began with {desired}, and keeps them, as {stay} as many "
            "as they are"
        )
    return f"spec.sampler.replicas is {wanted} now; a queue has admitted this attempt with {desired}, and it keeps them"


def cluster_condition(look: Look, ray: Ray, found: Sequence[Diagnosis]) -> Look:
    """With the condition ClusterReady."""
    roles, effective = look.status.roles, look.effective
    missing = [name for name, role in sorted(roles.items()) if role.ready < role.desired]
    if ray.answers:
        if not missing:
            return look.set("ClusterReady", "True", "Ready", "all pods are ready")
        samplers = roles[SAMPLER] if missing == [SAMPLER] else None
        if samplers and effective and samplers.ready >= _enough(effective):
            share = f"{samplers.ready} of {samplers.desired} samplers are ready, enough to train"
            return look.set("ClusterReady", "True", "SamplersMissing", f"{share}: {samplers.reason}")
    reason, message = "Starting", "the pods are starting"
    if found:
        reason, message = found[0].reason, found[0].message
    elif _ignored(look, ray):
        reason = "KubeRayNotReacting"
        message = (
            f"KubeRay has not taken up {ray.kind} {ray.name} for a minute: is the KubeRay operator running?"
        )
    elif ray.submitted:
        reason, message = "PodsMissing", f"not all pods are ready: {', '.join(missing)}"
    return look.set("ClusterReady", "False", reason, message)


def _enough(effective: Effective) -> int:
    """Samplers that an attempt begins with."""
    if not effective.has(SAMPLER):
        return effective.shared
    role = effective.role(SAMPLER)
    return effective.shared + role.at_start // role.hosts


def _ignored(look: Look, ray: Ray) -> bool:
    untouched = not ray.deployment_status and not ray.cluster_state and not look.world.pods_of(ray.attempt)
    return untouched and ray.created is not None and look.now - ray.created > IGNORED


def _reading(look: Look, ray: Ray) -> Reading | None:
    """What the driver said; nothing where none can run: that is from before its attempt was evicted by a queue."""
    return look.world.said(ray.attempt) if ray.kind == "RayCluster" or ray.submitted else None


def _idle(look: Look, ray: Ray) -> bool:
    """Whether this is a cluster to work on by hand whose pods are there, and nobody trains in it."""
    if ray.kind == "RayJob" or not ray.at_work:
        return False
    reading = _reading(look, ray)
    return reading is None or look.now - reading.time > SILENCE


def training_condition(look: Look, ray: Ray) -> Look:
    """With the condition Training, from what the driver says."""
    reading, error = _reading(look, ray), look.world.reading_error
    if _idle(look, ray):
        waits = "the cluster waits for somebody: rltrain exec works in it"
        return look.set("Training", "False", "Idle", waits)
    if look.world.unasked and ray.submitted:
        return look.set("Training", "Unknown", "DriverNotAsked", look.world.unasked)
    if reading is None:
        if ray.submitted and look.conditions.holds("Training") and not error:
            return look  # an operator that has just started has not asked yet
        why = f": {error}" if error else ""
        if ray.kind == "RayJob" and not ray.submitted and _late(look):
            return look.set("Training", "False", "NotSubmitted", _NOT_SUBMITTED.format(ray.head_service))
        silent = f"the driver has not answered yet{why}" if ray.submitted else "the pods are starting"
        return look.set("Training", "False", "Starting", silent)
    if look.now - reading.time > SILENCE:
        return look.set("Training", "Unknown", "DriverSilent", f"the driver does not answer: {error}")
    if reading.progress.phase in TRAINING:
        return look.set("Training", "True", "Running", "the driver reports progress")
    if reading.progress.phase == "Starting":
        return look.set("Training", "False", "Starting", "the driver loads model and task")
    return look.set("Training", "False", "Finishing", "the driver has finished")


def _late(look: Look) -> bool:
    """Whether all pods have been there for so long that KubeRay should have begun the job."""
    since = look.conditions.since("ClusterReady", "True")
    return since is not None and look.now - since > IGNORED


def shown_phase(look: Look, ray: Ray) -> str:
    """The one word for the print column."""
    if _idle(look, ray):
        return "Ready"
    reading = _reading(look, ray)
    if reading is not None:
        return reading.progress.phase if reading.progress.phase in TRAINING | {"Starting"} else "Stopping"
    if look.world.unasked and look.old.phase in TRAINING:
        return look.old.phase
    return "Training" if look.conditions.holds("Training") else "Starting"
