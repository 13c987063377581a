"""Learners of a simulated run: parts, the devices for them, and new weights. Pure."""

from __future__ import annotations

from rl_api.planner.admission import LEARNERS
from rl_api.planner.changing_hands import ChangingHands
from rl_api.planner.cost import learn_crowded, next_part_seconds, pass_seconds, update_seconds
from rl_api.planner.sampling import Sampling
from rl_api.planner.virtual_run import VirtualRun


class Learning:
    """Parts from the queue, learned one after the other; after a step's last one its weights are published."""

    def __init__(self, run: VirtualRun, sampling: Sampling, hands: ChangingHands) -> None:
        """`hands`: how devices are left for learners."""
        self.run, self.sampling, self.hands = run, sampling, hands
        self.rows = max(1, run.placement.shared, round(run.placement.learners / run.fewer))
        self.learned = 0  # groups of the step
        self.begun = 0.0  # with the part
        self.since = 0.0  # passes go on as they do now
        self.left = 0.0  # seconds of passes since then, where nobody else computes
        self.slower = 1.0
        self.epoch = 0
        self.version = 0

    def offer(self) -> None:
        """Learners that do nothing take the next part, where it is there."""
        run = self.run
        if run.learning or run.part is not None:
            return
        run.part = run.queue.take(run.placement.part_groups, run.now)
        if run.part is None:
            return
        run.taken += len(run.part)
        run.ready -= len(run.part)
        if not run.holding:
            shared = [sampler.row for sampler in run.samplers if sampler.shared]
            run.leases.claim(LEARNERS, shared, priority=1)
        self.hands.wanted()
        self.begin()

    def begin(self) -> None:
        """With the part that they have, where the devices for it are there."""
        run = self.run
        if run.part is None or run.learning:
            return
        if not run.holding and not run.leases.has(LEARNERS):
            return
        run.learning = True
        begin = run.now + (next_part_seconds(run.profile) if self.learned else 0.0)
        if not run.holding:
            run.holding = True
            for index in range(run.placement.shared):
                run.span(f"learner {index}", "switch", begin, begin + run.turn.to_learner)
            begin += run.turn.to_learner
        self.begun, self.since = begin, begin + run.profile.learner.alpha
        tokens = run.lengths.tokens(run.part)
        self.left = pass_seconds(run.profile, tokens, run.placement.learners)
        self.slower = self._crowded()
        self._schedule()

    def _crowded(self) -> float:
        return learn_crowded(
            self.run.profile, self.run.placement.learners, self.run.decoding * self.run.fewer
        )

    def _schedule(self) -> None:
        self.epoch += 1
        self.run.at(self.since + self.left * self.slower, "part_learned", 0, self.epoch)

    def crowd(self) -> None:
        """Passes are slower, or faster again, where more or fewer samplers decode than so far."""
        run = self.run
        if run.part is None or not run.learning or (slower := self._crowded()) == self.slower:
            return
        self.left -= max(0.0, run.now - self.since) / self.slower
        self.since, self.slower = max(self.since, run.now), slower
        self._schedule()

    def _spans(self, what: str, start: float, end: float) -> None:
        for index in range(self.rows):
            self.run.span(f"learner {index}", what, start, end)

    def part_learned(self, epoch: int) -> None:
        """The next one follows; after the step's last one the optimizer, and publishing."""
        run = self.run
        if epoch != self.epoch:
            return  # it takes longer, or less long
        assert run.part is not None
        self._spans("learn", self.begun, run.now)
        self.learned += len(run.part)
        run.result.trained += run.part
        run.part = None
        if self.learned >= run.groups:
            updated = run.now + update_seconds(run.profile, run.placement.learners)
            self._spans("learn", run.now, updated)
            there = updated + max(0.0, run.profile.between_seconds - run.profile.load_seconds)
            self._spans("publish", updated, there)
            run.at(there, "published", 0)
            return
        run.learning = False
        self.offer()
        if not run.learning and not self.hands.hands_over:
            self._gives_back()
            self.sampling.fill_all()

    def _gives_back(self) -> None:
        self.run.holding = self.run.placement.shared == 0
        self.run.leases.give_back(LEARNERS)

    def published(self) -> None:
        """The next step begins, and samplers go on with its weights."""
        run = self.run
        run.queue.commit()
        self.version += 1
        run.queue.publish(self.version)
        run.result.published.append(run.now)
        self.learned = run.taken = 0
        run.learning = False
        run.lengths.forget(self.version - 8)
        for sampler in run.samplers:
            sampler.owed = run.profile.load_seconds
            if sampler.handed_over:
                sampler.handed_over = False
                run.queue.register(sampler.index)
        self._gives_back()
        if self.hands.helped:  # by what staleness left there
            self.hands.hand_over()
        self.sampling.fill_all()
        self.offer()
