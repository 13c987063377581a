"""One look at a run, while it is decided what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from rl_api.progress import Attempt, CheckpointStatus, Progress, RoleStatus, RunStatus
from rl_operator.decide.conditions import Conditions
from rl_operator.model.decision import Decision, Note, Pull, Scale, Target
from rl_operator.model.names import Manifest
from rl_operator.model.seen import Ray, World
from rl_operator.model.settings import FINALIZER, Settings
from rl_operator.plan.effective import Effective, Plan

STUCK_POD: Final = timedelta(seconds=180)
"""How long a head pod may be overdue to go, as on a node that died, before the next attempt begins without it."""

QUICK, ACTIVE, SLOW, IDLE = 2.0, 5.0, 20.0, 300.0
"""Seconds until the next look: when something is about to happen, may happen, is not expected, is over."""


@dataclass
class Turn:
    """One look at a run: what is known, and what has been decided so far."""

    world: World
    now: datetime
    plan: Plan
    old: RunStatus
    conditions: Conditions
    attempts: list[Attempt]
    phase: str
    roles: dict[str, RoleStatus]
    progress: Progress | None
    checkpoint: CheckpointStatus | None
    dashboard: str | None = None
    finalizer: bool | None = None
    create: list[Manifest] = field(default_factory=list)
    apply: list[Manifest] = field(default_factory=list)
    delete: list[Target] = field(default_factory=list)
    scale: Scale | None = None
    notes: list[Note] = field(default_factory=list)
    pull: Pull | None = None
    ask: float | None = None
    requeue: float = ACTIVE

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
        return 120.0

    def keep_finalizer(self, wanted: bool) -> None:
        """Add or take away our finalizer where that is not so already."""
        there = FINALIZER in (self.world.metadata.get("finalizers") or ())
        self.finalizer = None if there == wanted else wanted

    def remove(self, ray: Ray) -> None:
        """Delete a RayJob or RayCluster that is not on its way out."""
        if not ray.deleting:
            self.delete.append(Target(ray.kind, ray.name, ray.uid))

    def pull_from(self, ray: Ray) -> None:
        """Keep asking the driver, as soon as one may answer."""
        if ray.submitted or ray.cluster_state == "ready":
            namespace = self.world.metadata.get("namespace")
            self.dashboard = f"http://{ray.head_service}.{namespace}.svc:8265"
            port = self.effective.status_port if self.effective else Settings.status_port
            self.pull = Pull(ray.attempt, ray.head_service, port)

    def decision(self) -> Decision:
        """What was decided."""
        status = RunStatus(
            phase=self.phase,  # type: ignore[arg-type]
            conditions=self.conditions.all(),
            progress=self.progress,
            checkpoint=self.checkpoint,
            attempts=self.attempts,
            roles=self.roles,
            dashboardURL=self.dashboard,
            observed_generation=self.world.generation,
            effective_spec_hash=self.effective.digest if self.effective else self.old.effective_spec_hash,
        )
        return Decision(
            status=status,
            finalizer=self.finalizer,
            create=tuple(self.create),
            apply=tuple(self.apply),
            delete=tuple(self.delete),
            scale=self.scale,
            notes=(*self.notes, *self.conditions.notes()),
            pull=self.pull,
            ask=self.ask,
            requeue=self.requeue,
        )
