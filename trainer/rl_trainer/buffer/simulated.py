"""The real buffer and leases in virtual time: `BufferState` and `LeaseTable` as `rl_api.planner.simulator` asks them. Pure.

A simulation with them shows what the trainer's own admission, order, parts and leases do to a step, not what the planner
takes them to do.
"""

from __future__ import annotations

from collections.abc import Iterable

from rl_api.planner.profile import RunProfile
from rl_trainer.buffer.groups import BufferConfig, Handed
from rl_trainer.buffer.state import BufferState
from rl_trainer.flow.leases import LeaseTable
from rl_trainer.trajectory import Group


class SimulatedBuffer:
    """A `rl_api.planner.admission.Queue`. Groups have no tokens: nothing looks at them here."""

    def __init__(
        self, profile: RunProfile, samplers: int, shared: int = 0, capacity: int | None = None
    ) -> None:
        """`shared`: samplers on learners' devices. `capacity`: groups at most; None: as many as staleness lets be there."""
        steps = profile.max_staleness + 2
        self.state = BufferState(
            BufferConfig(
                groups_per_step=profile.prompts_per_step,
                capacity=capacity or steps * profile.prompts_per_step,
                max_staleness=profile.max_staleness,
                samplers=samplers,
                shared_samplers=shared,
            )
        )
        self.size = profile.group_size
        self.now = 0.0
        self.taken = 0

    def register(self, sampler: int) -> None:
        """It is there, or back; one that has only left its devices never was away."""
        if sampler not in self.state.roster.registered:
            self.state.register(sampler)

    def release(self, sampler: int) -> None:
        """It is gone: others get its unfinished groups."""
        self.state.release(sampler)

    def leave(self, sampler: int, groups: list[int]) -> None:
        """It has left its devices until the next weights: others go on with these groups."""
        self.state.learning = True
        self.state.hand_over(sampler, [Handed(group, self.state.running[group][1]) for group in groups])

    def acquire(self, sampler: int, most: int) -> list[int]:
        """Groups that it may start."""
        if sampler not in self.state.roster.registered:
            return []
        return [ticket.group_id for ticket in self.state.acquire(sampler, most)]

    def put(self, sampler: int, group: int, now: float) -> None:
        """A group is scored."""
        _, version = self.state.running.get(group, (sampler, self.state.version))
        size = self.size
        found = Group(
            group_id=group,
            rewards=[float(index) for index in range(size)],
            lengths=[1] * size,
            total_lengths=[1] * size,
            truncated=[False] * size,
            min_version=version,
        )
        self.state.put(sampler, found, now)

    def take(self, groups: int, now: float) -> list[int] | None:
        """The next part of the step."""
        whole = min(self.taken + groups, self.state.config.groups_per_step)
        batch = self.state.take(now, whole)
        if batch is None or whole == self.taken:
            return None
        part = [group.group_id for group in batch[self.taken :]]
        self.taken = whole
        return part

    def commit(self) -> None:
        """The step is over."""
        self.state.commit()
        self.taken = 0

    def publish(self, version: int) -> None:
        """Samplers have these weights, and devices again."""
        self.state.learning = False
        self.state.publish(version)


class SimulatedLeases:
    """A `rl_api.planner.admission.Leases`."""

    def __init__(self) -> None:
        self.table = LeaseTable()
        self.granted = 0

    def claim(self, holder: str, devices: Iterable[str], priority: int = 0) -> None:
        """`holder` wants all of `devices` together."""
        self.granted += len(self.table.claim(holder, devices, priority))

    def has(self, holder: str) -> bool:
        """Whether it has what it claimed."""
        return any(lease.holder == holder for lease in self.table.leases)

    def give_back(self, holder: str) -> None:
        """It has nothing any more, and claims nothing."""
        epoch = next((lease.epoch for lease in self.table.leases if lease.holder == holder), None)
        self.granted += len(
            self.table.withdraw(holder) if epoch is None else self.table.release(holder, epoch)
        )
