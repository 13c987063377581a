"""One look at a run: what is known of it by now, as a value. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from rl_api.base import Duration
from rl_api.progress import Attempt, CheckpointRequest, CheckpointStatus, Progress, RoleStatus, RunStatus
from rl_api.run import SchedulingSpec
from rl_operator.decide.conditions import Conditions, State
from rl_operator.decide.status import known_status, started, unwritten
from rl_operator.model.decision import Decision, Note, Pull, Target
from rl_operator.model.seen import Ray, World
from rl_operator.model.settings import FINALIZER, Settings
from rl_operator.plan.effective import Effective, Plan

STUCK_POD: Final = timedelta(seconds=180)
"""How long a head pod may be overdue to go, as on a node that died, before the next attempt begins without it."""

QUICK, SOON, SLOW, IDLE = 2.0, 5.0, 20.0, 300.0
"""Seconds until the next look: when something is about to happen, may happen, is not expected, is over."""


@dataclass(frozen=True)
class Look:
    """What is known of a run: the world, and the status as far as it follows from it by now."""

    world: World
    now: datetime
    plan: Plan
    old: RunStatus
    """The status as it was last written."""
    conditions: Conditions
    attempts: tuple[Attempt, ...]
    roles: dict[str, RoleStatus]
    progress: Progress | None
    checkpoint: CheckpointStatus | None
    dashboard: str | None
    notes: tuple[Note, ...]
    request: CheckpointRequest | None = None
    """The checkpoint that the run is stopped with; None: it is not being stopped."""
    nulls: list[str] | None = None
    """Fields that were null when the run began; None: it has not, or by an older version."""

    @classmethod
    def first(cls, world: World, now: datetime, plan: Plan) -> Look:
        """What the status says, and attempts whose operator died before it could write them."""
        old = known_status(world.run)
        adopted = unwritten(old, world.rays, now)
        return cls(
            world=world,
            now=now,
            plan=plan,
            old=old,
            conditions=Conditions(old.conditions, world.generation, now),
            attempts=(*old.attempts, *adopted),
            roles=old.roles,
            progress=old.progress,
            checkpoint=old.checkpoint,
            dashboard=old.dashboard_url,
            notes=tuple(started(attempt) for attempt in adopted),
            nulls=world.nulls if adopted and not old.attempts else old.nulls,
        )

    @property
    def open(self) -> Attempt | None:
        """The attempt that goes on."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].end_time is None else None

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
            return Duration.parse(own.get("preemptionGracePeriod") if isinstance(own, dict) else None).seconds
        except ValueError:
            return SchedulingSpec().preemption_grace_period.seconds

    def set(self, kind: str, status: State, reason: str, message: str) -> Look:
        """With a condition."""
        return replace(self, conditions=self.conditions.set(kind, status, reason, message))

    def note(self, note: Note) -> Look:
        """With an event."""
        return replace(self, notes=(*self.notes, note))

    def at_rest(self) -> Look:
        """Without pods."""
        roles = {
            name: role.model_copy(update={"ready": 0, "reason": None}) for name, role in self.roles.items()
        }
        return replace(self, roles=roles, dashboard=None)

    def answering(self, ray: Ray) -> Look:
        """With the dashboard, once there may be one."""
        if not ray.answers:
            return self
        namespace = self.world.metadata.get("namespace")
        return replace(self, dashboard=f"http://{ray.head_service}.{namespace}.svc:8265")

    def pull(self, ray: Ray) -> Pull | None:
        """Where to ask the driver, once one may answer."""
        port = ray.status_port or (self.effective.status_port if self.effective else Settings.status_port)
        return Pull(ray.attempt, ray.head_service, port) if ray.answers else None

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
        """A decision by which the status is as known by now.

        Args:
            phase: the one word for the print column; None: the one before.
            requeue: seconds until the next look.
            delete: what is to go.
            finalizer: of `Decision`.
            ask: of `Decision`.
        """
        status = RunStatus(
            phase=phase or self.old.phase or "Pending",  # type: ignore[arg-type]
            conditions=self.conditions.all(),
            progress=self.progress,
            checkpoint=self.checkpoint,
            checkpoint_request=self.request,
            attempts=list(self.attempts),
            roles=self.roles,
            dashboardURL=self.dashboard,
            observed_generation=self.world.generation,
            effective_spec_hash=self.effective.digest if self.effective else self.old.effective_spec_hash,
            nulls=self.nulls,
        )
        notes = (*self.notes, *self.conditions.notes())
        return Decision(status, delete=delete, finalizer=finalizer, notes=notes, ask=ask, requeue=requeue)


def removal(*rays: Ray) -> tuple[Target, ...]:
    """What deletes RayJobs and RayClusters, but for those on their way out."""
    return tuple(Target(ray.kind, ray.name, ray.uid) for ray in rays if not ray.deleting)
