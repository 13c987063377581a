"""A run in virtual time: samplers decode, learners learn, devices change hands. Discrete events, pure.

Sequences of a sampler get a token each decode step, which takes base + perActive x active + perCachedToken x cached
seconds (`DecodeProfile`). Nothing happens between two ends of sequences, so an event is the end of one, a scored group, a
part learned, a version published, a sampler that dies or is back.

Who shares devices: shared samplers have them while they decode; learners take them when they have a part, and give them
back when the new weights are published - or, where nothing is handed over and a part is less than the step, as soon as
they have learned it. In a hybrid that interrupts, what shared samplers have not finished goes on with the others, with what
there is of its tokens, read again as prompts are; dialogues stay, and go on when learners are done.

Here is what happens when; what samplers do is `sampling`, how they leave devices `changing_hands`, and what learners do
`learning`, all with one `VirtualRun`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rl_api.planner.admission import Leases, Queue
from rl_api.planner.changing_hands import ChangingHands
from rl_api.planner.learning import Learning
from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile
from rl_api.planner.sampling import Sampling
from rl_api.planner.simulated import Outage, Simulated
from rl_api.planner.virtual_run import VirtualRun


def simulate(
    profile: RunProfile,
    placement: Placement,
    *,
    steps: int = 3,
    queue: Queue | None = None,
    leases: Leases | None = None,
    outages: Sequence[Outage] = (),
    seed: int = 0,
    fewer: int = 1,
) -> Simulated:
    """`steps` training steps of a run; `queue`, `leases`: the buffer, and who has a device, None: the planner's own;
    `fewer`: how much larger is the run that this one stands for (`in_proportion`).

    The same arguments give the same result.
    """
    return _Simulation(VirtualRun(profile, placement, queue, leases, seed, fewer), outages).until(steps)


class _Simulation:
    def __init__(self, run: VirtualRun, outages: Sequence[Outage]) -> None:
        self.run, self.outages = run, outages
        self.sampling = Sampling(run)
        self.hands = ChangingHands(run, self.sampling)
        self.learning = Learning(run, self.sampling, self.hands)

    def until(self, steps: int) -> Simulated:
        run = self.run
        for sampler in run.samplers:
            run.queue.register(sampler.index)
            self.sampling.claims(sampler)
        for number, outage in enumerate(self.outages):
            run.at(outage.at, "lost", number)
            run.at(outage.at + outage.seconds, "back", number)
        self.sampling.fill_all()
        self._crowd()
        while len(run.result.published) < steps and run.events:
            self._happens(*run.next())
            self._crowd()
        if len(run.result.published) < steps:
            raise AssertionError("nothing happens any more, and the steps are not done")
        for sampler in run.samplers:
            self.sampling.rests(sampler)
        return self._sums()

    def _crowd(self) -> None:
        self.run.crowd()
        self.learning.crowd()

    def _happens(self, what: str, which: int, epoch: int) -> None:
        match what:
            case "ended":
                self._ended(which, epoch)
            case "scored_group":
                self._scored_group(which)
            case "part_learned":
                self.learning.part_learned(epoch)
            case "published":
                self.learning.published()
            case "stops":
                if self.hands.stops_later(self.run.samplers[which]):
                    self.learning.begin()
            case "lost":
                self._lost(self.outages[which].sampler)
            case "back":
                self._back(self.outages[which].sampler)

    def _ended(self, which: int, epoch: int) -> None:
        sampler = self.run.samplers[which]
        if sampler.epoch != epoch:
            return  # it has been scheduled anew since
        self.sampling.ended(sampler)
        if self.hands.drained(sampler):
            self.learning.begin()

    def _scored_group(self, group: int) -> None:
        if not self.sampling.scored(group):
            return
        if self.hands.helped:
            self.hands.hand_over()
        self.learning.offer()

    def _lost(self, which: int) -> None:
        sampler = self.run.samplers[which]
        if sampler.alive:
            self.sampling.lost(sampler)
            self.learning.begin()

    def _back(self, which: int) -> None:
        sampler = self.run.samplers[which]
        if not sampler.alive:  # else another outage, in the middle of which this one began, is over
            self.sampling.back(sampler)

    def _sums(self) -> Simulated:
        run, result = self.run, self.run.result
        count = max(1, len(result.published))
        sampled = sum(span.end - span.start for span in result.spans if span.what == "sample")
        result.generating = sampled / len(run.samplers) / count
        result.learning = (
            sum(
                span.end - span.start
                for span in result.spans
                if (span.row, span.what) == ("learner 0", "learn")
            )
            / count
        )
        return result
