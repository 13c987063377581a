"""Which way each weight version goes; and who meets for a broadcast, when samplers come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.exceptions import RayError

from rl_api import RunSpec
from rl_api.roles import WeightTransport
from rl_trainer.learner.group import Learners
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.weights.transports.choose import Topology, choose_transport
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

# Where so many versions in a row reach nobody by a broadcast, the next ones will not either: each costs a deadline.
MOST_FAILURES = 3


@dataclass
class Broadcasts:
    """Of one run. Each is begun and left to itself: whom it does not reach takes the version from the object store.

    One at a time: what is published while it is under way goes through the object store. A sampler that stands still would
    gather broadcasts otherwise, each of which keeps a whole version and a thread of every sampler.
    """

    spec: RunSpec
    learners: Learners
    samplers: Samplers
    warn: Callable[[str], None]
    _address: tuple[str, int] | None = None
    _group: int = 0
    _members: list[Any] = field(default_factory=list)
    _joining: list[ray.ObjectRef[str | None]] = field(default_factory=list)
    _failures: int = 0  # versions in a row

    def spread(self, published: Publication) -> Publication:
        """Begins to broadcast what was published, where that is its way; returns at once, with its way in it."""
        if published.way != "objectStore" or self._way() != "collective":
            return published
        workers = self.samplers.workers
        members = list(workers.actors.values())
        if not members:
            return published
        self._look()
        if self._joining or self._failures >= MOST_FAILURES:
            return published
        if self._address is None:
            self._address = self.learners.meeting_point()
        if not self._group or [*map(id, members)] != [*map(id, self._members)]:
            self._group, self._members = self._group + 1, members
        invitation = Invitation(
            published.version,
            str(self._group),
            self._address,
            len(members) + 1,
            self.spec.weight_sync.timeout.seconds,
            "nccl" if self.samplers.accelerated else "gloo",
        )
        self.learners.broadcast(published, invitation)
        joining = workers.each("join", [(invitation, 1 + index) for index in range(len(members))])
        self._joining = list(joining.calls.values())
        return replace(published, way="collective")

    def _way(self) -> WeightTransport:
        transport, samplers = self.spec.weight_sync.transport, self.samplers
        if transport == "auto" and self.spec.shared_samplers:
            return "objectStore"  # NCCL lets a device take part once
        if transport == "auto":
            size, count = self.learners.size, len(samplers.ready)
            encrypted = self.spec.scheduling.encryption
            return choose_transport(Topology(size, count, samplers.nodes, samplers.accelerated, encrypted))
        return transport

    def _look(self) -> None:
        """At what has become of the broadcast before, once it is over for every sampler. Where it has failed for somebody,
        the next has a new group."""
        if not self._joining or ray.wait(self._joining, num_returns=len(self._joining), timeout=0)[1]:
            return
        reasons = [reason for reason in map(_reason, self._joining) if reason is not None]
        self._joining = []
        reasons = reasons[:1]  # others fail as one does
        # Before it: where the learner fails, samplers say no more than that nothing came.
        if (ours := self.learners.broadcast_failure()) is not None:
            reasons.insert(0, ours)
        if not reasons:
            self._failures = 0
            return
        self._members, self._failures = [], self._failures + 1
        last = self._failures == MOST_FAILURES
        rest = f"; after {MOST_FAILURES} such versions all that follow do" if last else ""
        self.warn(f"{'; '.join(reasons)}; the version goes through the object store{rest}")


def _reason(join: ray.ObjectRef[str | None]) -> str | None:
    """Why a sampler has not got what was broadcast; None: it has."""
    try:
        found: str | None = ray.get(join, timeout=0)
    except RayError as error:
        return f"a sampler was lost while weights were broadcast to it ({type(error).__name__})"
    return found
