"""One look at a run: what is known of it by now, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from rl_api.base import Duration
from rl_api.progress import Attempt, RunStatus
from rl_api.run import SchedulingSpec
from rl_operator.decide.attempt.listed import listed
from rl_operator.decide.conditions import Conditions, State
from rl_operator.model.decision import Decision, Note, Pull, Target
from rl_operator.model.seen import Pod, Ray, World
from rl_operator.model.settings import FINALIZER, Settings
from rl_operator.model.workload import Workload
from rl_operator.plan.effective import Effective, Plan

STUCK_POD: Final = timedelta(seconds=180)
"""How long a head pod may be overdue to go, as on a node that died, before the next attempt begins without it."""

QUICK, SOON, SLOW, TURN, IDLE = 2.0, 5.0, 20.0, 60.0, 300.0
"""Seconds until the next look: when something is about to happen, may happen, is not expected, is told of (others' end, by
which it is a run's turn), is over."""


@dataclass(frozen=True)
class Look:
    """What is known of a run: the world, and the status as far as it follows from it by now."""

    world: World
    now: datetime
    plan: Plan
    old: RunStatus
    """The status as it was last written."""
    status: RunStatus
    """As it is known by now, but for its phase and conditions."""
    conditions: Conditions
    notes: tuple[Note, ...]

    @classmethod
    def first(cls, world: World, now: datetime, plan: Plan) -> Look:
        """What the status says, and attempts whose operator died before it could write them."""
        old = known_status(world.run)
        adopted = unwritten(old, world.rays, now)
        nulls = world.nulls if adopted and not old.attempts else old.nulls
        # A wish for a checkpoint counts only while the run is being stopped.
        known = {"attempts": [*old.attempts, *adopted], "nulls": nulls, "checkpoint_request": None}
        if adopted and isinstance(plan, Effective):  # which knows what was planned
            known["placement"] = None
        before = {condition.type: condition for condition in old.conditions}
        return cls(
            world=world,
            now=now,
            plan=plan,
            old=old,
            status=old.model_copy(update=known),
            conditions=Conditions(before, world.generation, now),
            notes=tuple(started(attempt) for attempt in adopted),
        )

    @property
    def open(self) -> Attempt | None:
        """The attempt that goes on."""
        newest = self.status.attempts[-1:]
        return newest[0] if newest and newest[0].end_time is None else None

    @property
    def effective(self) -> Effective | None:
        """The run as it is carried out, if it can be."""
        return self.plan if isinstance(self.plan, Effective) else None

    @property
    def grace(self) -> float:
        """Seconds that a driver has for its last checkpoint."""
        if self.effective is not None:
            return self.effective.spec.scheduling.preemption_grace_period.seconds
        own = self.world.spec.get("scheduling")
        try:
            grace = Duration.parse(own.get("preemptionGracePeriod") if isinstance(own, dict) else None)
        except ValueError:
            grace = SchedulingSpec().preemption_grace_period
        # The profile's limit holds whatever has become of the run's spec.
        longest = self.plan.limits.max_preemption_grace_period
        return (grace if longest is None else min(grace, longest)).seconds

    @property
    def empty(self) -> bool:
        """Whether nothing of the run has room on a node: no RayJob, and no pod but what a node that died has not let go."""
        return not self.world.rays and not self.holding()

    def holding(self, role: str = "") -> list[Pod]:
        """Pods, of all roles or of one, that have room on a node, on their way out or not; without those that a node that
        died has not let go."""
        overdue = self.now - STUCK_POD
        pods = [pod for pod in self.world.pods if not pod.gone and role in ("", pod.role)]
        return [pod for pod in pods if pod.deleting is None or pod.deleting > overdue]

    def set(self, kind: str, status: State, reason: str, message: str) -> Look:
        """With a condition."""
        return replace(self, conditions=self.conditions.set(kind, status, reason, message))

    def showing(self, **fields: Any) -> Look:
        """With these fields of the status."""
        return replace(self, status=self.status.model_copy(update=fields))

    def with_attempt(self, **fields: Any) -> Look:
        """With these fields of the newest attempt."""
        *before, newest = self.status.attempts
        return self.showing(attempts=[*before, newest.model_copy(update=fields)])

    def without_pods(self, since: datetime) -> Look:
        """With the time for which the newest attempt had its pods, that are taken away `since` then, put down."""
        newest = self.status.attempts[-1]
        if newest.ready_time is None:
            return self
        begun, admitted = newest.ready_time, self.conditions.since("Admitted", "True")
        if admitted is not None and admitted < since:  # else it is of what comes next
            begun = max(begun, admitted)
        seconds = max((since - begun).total_seconds(), 0.0)
        return self.with_attempt(held_seconds=newest.held_seconds + seconds, ready_time=None)

    def note(self, note: Note) -> Look:
        """With an event."""
        return replace(self, notes=(*self.notes, note))

    def at_rest(self) -> Look:
        """Without pods."""
        none = {"ready": 0, "reason": None}
        roles = {name: role.model_copy(update=none) for name, role in self.status.roles.items()}
        return self.showing(roles=roles, dashboard_url=None)

    def answering(self, ray: Ray) -> Look:
        """With the dashboard, once there may be one."""
        if not ray.answers:
            return self
        namespace = self.world.metadata.get("namespace")
        return self.showing(dashboard_url=f"http://{ray.head_service}.{namespace}.svc:8265")

    def pull(self, ray: Ray) -> Pull | None:
        """Where to ask the driver, once one may answer: the head pod that the attempt's own RayCluster controls."""
        port = ray.status_port or (self.effective.status_port if self.effective else Settings.status_port)
        head = self.world.head(ray.attempt)
        if head is None or not head.ip or not ray.cluster_uid or head.owner != ray.cluster_uid:
            return None
        return Pull(ray.attempt, head.ip, port) if ray.answers and not self.world.unasked else None

    def finalizer(self, wanted: bool) -> bool | None:
        """Whether to add our finalizer or to take it away; None: it is as wanted."""
        there = FINALIZER in (self.world.metadata.get("finalizers") or ())
        return None if there == wanted else wanted

    def decide(
        self,
        phase: str | None = None,
        requeue: float = SOON,
        *,
        delete: tuple[Target, ...] = (),
        finalizer: bool | None = None,
        ask: float | None = None,
    ) -> Decision:
        """A decision by which the status is as known by now; no phase: the one before. The rest as in `Decision`."""
        status = self.showing(
            phase=phase or self.old.phase or "Pending",
            conditions=self.conditions.all(),
            observed_generation=self.world.generation,
            effective_spec_hash=self.effective.digest if self.effective else self.old.effective_spec_hash,
        ).status
        notes = (*self.notes, *self.conditions.notes())
        return Decision(
            listed(status), delete=delete, finalizer=finalizer, notes=notes, ask=ask, requeue=requeue
        )


def removal(*rays: Ray) -> tuple[Target, ...]:
    """What deletes RayJobs and RayClusters, and the RayCluster of a RayJob that is on its way out.

    KubeRay lets go of a RayJob only with the token of its cluster, as long as that is there: without the Secret, which any
    user may delete, neither would ever go.
    """
    return tuple(
        Target("RayCluster", ray.cluster, ray.cluster_uid)
        if ray.deleting
        else Target(ray.kind, ray.name, ray.uid)
        for ray in rays
        if not ray.deleting or ray.needs_token
    )


def withdrawal(*workloads: Workload) -> tuple[Target, ...]:
    """What deletes Workloads, and gives their quota back with that."""
    return tuple(Target("Workload", one.name, one.uid) for one in workloads)


def known_status(run: Mapping[str, Any]) -> RunStatus:
    """The run's status as it was last written; an empty one where it cannot be read (`decide.unreadable`)."""
    try:
        return RunStatus.model_validate(run.get("status") or {})
    except ValidationError:
        return RunStatus()


def unwritten(status: RunStatus, rays: Sequence[Ray], now: datetime) -> list[Attempt]:
    """Attempts that are not in the status, oldest first: their operator died before it could write them."""
    newest = max((attempt.number for attempt in status.attempts), default=0)
    step = status.checkpoint.step if status.checkpoint is not None else 0
    return [
        Attempt(
            number=ray.attempt, ray_job=ray.name, start_time=ray.created or now, from_step=step, **ray.began
        )
        for ray in sorted(rays, key=lambda ray: ray.attempt)
        if ray.attempt > newest
    ]


def started(attempt: Attempt, before: Attempt | None = None) -> Note:
    """The event about the beginning of an attempt; `before`: the one before it, of which it says what is another."""
    text = f"attempt {attempt.number} begins at step {attempt.from_step or 0} as {attempt.ray_job}"
    changed = changes(before, attempt) if before is not None else ""
    return Note("Normal", "AttemptStarted", f"{text}, with {changed}" if changed else text)


def changes(before: Attempt, after: Attempt) -> str:
    """What an attempt begins with that is not what one before it began with; empty: nothing that is known."""
    return " and ".join(
        words
        for old, new, words in (
            (before.image, after.image, f"image {after.image} instead of {before.image}"),
            (before.profile_hash, after.profile_hash, "a changed profile"),
            (before.spec_hash, after.spec_hash, "a changed effective spec"),
        )
        if old is not None and new is not None and old != new
    )


def attributed(pods: Sequence[Pod], rays: Sequence[Ray], born: datetime | None) -> tuple[Pod, ...]:
    """Pods as they belong to the attempts of a run that was `born` then: by who controls them, as labels are anybody's.

    One that no RayCluster controls is left out. Those of another cluster than the attempt's, and of an earlier run of this
    name, belong to none; they are waited for. Where the attempt's cluster is not known, or gone, its label says what is its.
    """
    clusters = {ray.attempt: ray.cluster_uid for ray in rays if ray.cluster_uid}
    found = []
    for pod in pods:
        if not pod.owner:
            continue
        earlier = born is not None and pod.created is not None and pod.created < born
        foreign = clusters.get(pod.attempt, pod.owner) != pod.owner
        found.append(replace(pod, attempt=0) if earlier or foreign else pod)
    return tuple(found)
