"""Where samplers and learners of a run are, and how they take turns: what is chosen, costed and simulated. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rl_api.placement_status import Mode


@dataclass(frozen=True)
class Placement:
    """Who shares which device, and in what pieces a step passes.

    Attributes:
        learners: learner ranks, each on a device.
        samplers: in all.
        shared: of them those that live on learners' devices, one beside each of the first ranks.
        part_groups: groups that learners take at once, at most a step's.
        hand_over_at: share of a step's groups that are there when shared samplers hand over what they have begun to
            the others; None: when learners have their first part.
        interrupt: whether samplers leave devices between two tokens, else when all they have begun is finished.
        swap: whether tensors of who does not have a shared device leave it.
        movable: whether others can go on with what a shared sampler has begun; dialogues stay where they are.
    """

    learners: int
    samplers: int
    shared: int
    part_groups: int
    hand_over_at: float | None = None
    interrupt: bool = True
    swap: bool = False
    movable: bool = True

    @property
    def mode(self) -> Mode:
        """In one word."""
        if self.shared == 0:
            return "disaggregated"
        return "collocated" if self.shared == self.samplers else "hybrid"

    def devices(self, per_sampler: int = 1) -> int:
        """In all, `per_sampler` for each sampler on devices of its own."""
        return self.learners + (self.samplers - self.shared) * per_sampler

    def words(self, groups: int) -> str:
        """For people; `groups`: of a step."""
        found = f"{self.mode}: learners {self.learners}, samplers {self.samplers}"
        if self.mode == "hybrid":
            found += f", of which {self.shared} on learners' devices"
            found += (
                f" until {self.hand_over_at:.0%} of the groups are there"
                if self.hand_over_at is not None
                else " until learners have a part"
            )
        if self.part_groups < groups:
            found += f", parts of {self.part_groups} of {groups} groups"
        return found
