"""What the parts of a simulated run have in common: time, what comes next, who is there and who has what. Pure."""

from __future__ import annotations

import heapq

from rl_api.planner.admission import Admission, Leases, Queue, Turns
from rl_api.planner.answer_lengths import AnswerLengths
from rl_api.planner.cost import Turn, decode_crowded, turn
from rl_api.planner.decoding import VirtualSampler
from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile
from rl_api.planner.simulated import Simulated, Span
from rl_api.planner.stations import Stations


class VirtualRun:
    """A run at one moment, and the events that are still to come."""

    def __init__(
        self,
        profile: RunProfile,
        placement: Placement,
        queue: Queue | None,
        leases: Leases | None,
        seed: int,
        fewer: int,
    ) -> None:
        """See `rl_api.planner.simulator.simulate`."""
        self.profile, self.placement, self.fewer = profile, placement, fewer
        self.groups, self.size = profile.prompts_per_step, profile.group_size
        self.queue: Queue = queue or Admission(self.groups, placement.samplers, profile.max_staleness)
        self.leases: Leases = leases or Turns()
        self.turn: Turn = turn(profile, placement.swap)
        self.stations = Stations(profile, fewer)
        self.lengths = AnswerLengths(profile, seed, profile.answers * fewer)
        self.samplers = [
            VirtualSampler(
                profile.decode,
                index,
                f"learner {index}" if index < placement.shared else f"sampler {index}",
                index < placement.shared,
            )
            for index in range(placement.samplers)
        ]
        self.result = Simulated([], [], [], 0.0, 0.0)
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number = 0
        self.now = 0.0
        self.ready = 0  # groups scored and not taken
        self.taken = 0  # of the step
        self.part: list[int] | None = None  # that learners have, or wait for devices with
        self.learning = False
        self.holding = placement.shared == 0  # whether learners have their devices

    def at(self, time: float, what: str, which: int, epoch: int = 0) -> None:
        """Something happens at `time`: `which` says to whom, `epoch` by which state of it."""
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what, which, epoch))

    def next(self) -> tuple[str, int, int]:
        """What happens next, now: what, to whom, and by which state."""
        self.now, _, what, which, epoch = heapq.heappop(self.events)
        return what, which, epoch

    def span(self, row: str, what: str, start: float, end: float) -> None:
        """Something that a row of the picture does."""
        if end > start:
            self.result.spans.append(Span(row, what, start, end))

    @property
    def decoding(self) -> int:
        """Samplers that decode now."""
        return sum(bool(one.active) and one.has_devices and one.alive for one in self.samplers)

    def schedule(self, sampler: VirtualSampler) -> None:
        """When the next of its sequences ends, as things are now; what was said before does not count."""
        sampler.epoch += 1
        if sampler.active and sampler.has_devices:
            steps = max(0.0, sampler.active[0][0] - sampler.steps)
            self.at(max(self.now, sampler.at) + sampler.seconds(steps), "ended", sampler.index, sampler.epoch)

    def crowd(self) -> None:
        """Samplers decode slower, or faster again, where more or fewer compute at once than so far."""
        if not self.profile.decode.contention:
            return
        others = self.decoding * self.fewer - 1 + (self.placement.learners if self.learning else 0)
        slower = decode_crowded(self.profile, others)
        for sampler in self.samplers:
            if sampler.slower != slower:
                sampler.advance(self.now)
                sampler.slower = slower
                self.schedule(sampler)
