"""How samplers of a simulated run leave devices that learners want. Pure."""

from __future__ import annotations

from rl_api.planner.decoding import Member, VirtualSampler
from rl_api.planner.sampling import Sampling
from rl_api.planner.virtual_run import VirtualRun


class ChangingHands:
    """Shared samplers hand over what they have begun, stop between two tokens, or drain."""

    def __init__(self, run: VirtualRun, sampling: Sampling) -> None:
        """`sampling`: of the samplers that leave."""
        self.run, self.sampling = run, sampling
        placement = run.placement
        self.hands_over = placement.movable and placement.interrupt and placement.mode == "hybrid"

    @property
    def helped(self) -> bool:
        """Whether so much of the batch is there that shared samplers leave the rest to the others, as in the buffer."""
        run = self.run
        at, taken = run.placement.hand_over_at, run.taken % run.groups
        return self.hands_over and at is not None and taken + run.ready >= at * run.groups

    def hand_over(self) -> None:
        """Shared samplers leave their devices for this step; the others go on with what they have begun."""
        sampling = self.sampling
        for sampler in self.run.samplers:
            if sampler.shared and sampler.alive and not sampler.handed_over:
                sampler.handed_over = True
                left: dict[int, list[Member]] = {}
                for member in sampling.interrupted(sampler):
                    left.setdefault(member.group, []).append(member)
                sampling.begun.update(left)
                self.run.queue.leave(sampler.index, sorted(left))
                sampling.leaves(sampler)
        sampling.fill_all()

    def wanted(self) -> None:
        """Learners have a part, and wait for the devices: who drains gives them back when it has nothing left."""
        if self.hands_over:
            self.hand_over()
            return
        for sampler in self.run.samplers:
            idle = not sampler.active and not sampler.waiting
            if sampler.shared and sampler.has_devices and (self.run.placement.interrupt or idle):
                self.stops(sampler)

    def stops(self, sampler: VirtualSampler) -> None:
        """Between two tokens, when what has ended is scored. It keeps its sequences; where tensors leave the device they are
        read again later."""
        run = self.run
        if sampler.at > run.now:
            run.at(sampler.at, "stops", sampler.index)
            return
        sampler.advance(run.now)
        self.sampling.rests(sampler)
        self.sampling.leaves(sampler)
        sampler.epoch += 1

    def stops_later(self, sampler: VirtualSampler) -> bool:
        """It is done with what kept it; whether learners still wait for its device."""
        waits = self._waited_for(sampler) and sampler.alive
        if waits:
            self.stops(sampler)
        return waits

    def drained(self, sampler: VirtualSampler) -> bool:
        """It may have nothing left; whether learners get its device by that."""
        drained = not sampler.active and not sampler.waiting and sampler.shared and self._waited_for(sampler)
        if drained:
            self.sampling.rests(sampler)
            self.sampling.leaves(sampler)
        return drained

    def _waited_for(self, sampler: VirtualSampler) -> bool:
        return self.run.part is not None and not self.run.learning and sampler.has_devices
