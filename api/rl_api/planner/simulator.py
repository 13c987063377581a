"""A run in virtual time: samplers decode, learners learn, devices change hands. Discrete events, pure.

Sequences of a sampler get a token each decode step, which takes base + perActive x active + perCachedToken x cached
seconds (`DecodeProfile`). Nothing happens between two ends of sequences, so an event is the end of one, a scored group, a
part learned, a version published, a sampler that dies or is back.

Who shares devices: shared samplers have them while they decode; learners take them when they have a part, and give them
back when the new weights are published - or, where nothing is handed over and a part is less than the step, as soon as
they have learned it. In a hybrid that interrupts, what shared samplers have not finished goes on with the others, with what
there is of its tokens, read again as prompts are; dialogues stay, and go on when learners are done.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from rl_api.planner.admission import LEARNERS, Admission, Leases, Queue, Turns
from rl_api.planner.cost import (
    Turn,
    decode_crowded,
    learn_seconds,
    next_part_seconds,
    turn,
    update_seconds,
)
from rl_api.planner.decoding import Member, VirtualSampler
from rl_api.planner.placement import Placement
from rl_api.planner.profile import RunProfile
from rl_api.planner.rollout import spread
from rl_api.planner.simulated import Outage, Simulated, Span


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
    return _Run(profile, placement, queue, leases, outages, seed, fewer).run(steps)


class _Run:
    def __init__(
        self,
        profile: RunProfile,
        placement: Placement,
        queue: Queue | None,
        leases: Leases | None,
        outages: Sequence[Outage],
        seed: int,
        fewer: int,
    ) -> None:
        self.learner_rows = max(1, placement.shared, round(placement.learners / fewer))
        self.profile, self.placement, self.seed = profile, placement, seed
        self.fewer = fewer
        self.groups, self.size = profile.prompts_per_step, profile.group_size
        self.queue: Queue = queue or Admission(self.groups, placement.samplers, profile.max_staleness)
        self.leases: Leases = leases or Turns()
        self.turn: Turn = turn(profile, placement.swap)
        self.samplers = [
            VirtualSampler(
                profile.decode,
                index,
                f"learner {index}" if index < placement.shared else f"sampler {index}",
                index < placement.shared,
            )
            for index in range(placement.samplers)
        ]
        self.line = [*self.samplers]  # who asks first for groups: who gets some comes last again
        self.events: list[tuple[float, int, str, int, int]] = []
        self.number = 0
        self.now = 0.0
        self.lengths: dict[int, list[int]] = {}
        self.begun: dict[int, list[Member]] = {}  # members of a group whose sampler has left it
        self.members: dict[int, int] = {}  # of a group, still to end
        self.scoring: dict[int, int] = {}  # groups whose answers have all ended, and who decoded them
        self.ready = 0  # groups scored and not taken
        self.taken = 0  # of the step
        self.hands_over = placement.movable and placement.interrupt and placement.mode == "hybrid"
        self.part: list[int] | None = None
        self.learned = 0
        self.learning = False
        self.holding = placement.shared == 0
        self.version = 0
        self.result = Simulated([], [], [], 0.0, 0.0)
        self.outages = outages

    # -- the clock -----------------------------------------------------------------------------------------------

    def run(self, steps: int) -> Simulated:
        for sampler in self.samplers:
            self.queue.register(sampler.index)
            self._claims(sampler)
        for number, outage in enumerate(self.outages):
            self._at(outage.at, "lost", number)
            self._at(outage.at + outage.seconds, "back", number)
        self._fill_all()
        self._crowd()
        handlers = {
            "scored_group": self._scored_group,
            "part_learned": self._part_learned,
            "published": self._published,
            "stops": self._stops_later,
            "lost": self._lost,
            "back": self._back,
        }
        while len(self.result.published) < steps and self.events:
            self.now, _, what, which, epoch = heapq.heappop(self.events)
            if what == "ended":
                sampler = self.samplers[which]
                if sampler.epoch == epoch:
                    self._ended(sampler)
            else:
                handlers[what](which)
            self._crowd()
        if len(self.result.published) < steps:
            raise AssertionError("nothing happens any more, and the steps are not done")
        for sampler in self.samplers:
            self._rests(sampler)
        count = max(1, len(self.result.published))
        spans = self.result.spans
        sampled = sum(span.end - span.start for span in spans if span.what == "sample")
        self.result.generating = sampled / len(self.samplers) / count
        self.result.learning = (
            sum(span.end - span.start for span in spans if (span.row, span.what) == ("learner 0", "learn"))
            / count
        )
        return self.result

    def _at(self, time: float, what: str, which: int, epoch: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, what, which, epoch))

    def _span(self, row: str, what: str, start: float, end: float) -> None:
        if end > start:
            self.result.spans.append(Span(row, what, start, end))

    # -- who computes at once ------------------------------------------------------------------------------------

    def _crowd(self) -> None:
        """Samplers decode slower, or faster again, where more or fewer compute at once than so far."""
        if not self.profile.decode.contention:
            return
        others = self._decoding * self.fewer - 1 + (self.placement.learners if self.learning else 0)
        slower = decode_crowded(self.profile, others)
        for sampler in self.samplers:
            if sampler.slower != slower:
                sampler.advance(self.now)
                sampler.slower = slower
                self._schedule(sampler)

    @property
    def _decoding(self) -> int:
        """Samplers that decode now."""
        return sum(bool(one.active) and one.has_devices and one.alive for one in self.samplers)

    # -- samplers ------------------------------------------------------------------------------------------------

    def _fill_all(self) -> None:
        for sampler in list(self.line):
            self._fill(sampler)

    def _fill(self, sampler: VirtualSampler) -> None:
        """Take what may be started, and go on."""
        claimed = self.holding or self.part is not None
        if not sampler.alive or sampler.handed_over or (claimed and not sampler.has_devices):
            return
        sampler.advance(self.now)
        slots = self.profile.decode.slots
        draining = sampler.shared and self.part is not None
        while not draining and (free := slots - len(sampler.active) - len(sampler.waiting)) > 0:
            tickets = self.queue.acquire(sampler.index, -(-free // self.size))
            if not tickets:
                break
            self.line.remove(sampler)
            self.line.append(sampler)
            for group in tickets:
                members = self.begun.pop(group, None)
                if members is None:
                    members = [
                        Member(group, length, self.profile.prompt_tokens) for length in self._lengths(group)
                    ]
                    self.members[group] = len(members)
                sampler.waiting.extend(members)
        if not sampler.active and not sampler.waiting:
            self._rests(sampler)
            return
        if not sampler.has_devices:
            self._gets_devices(sampler)
        sampler.at, sampler.owed = max(sampler.at, self.now) + sampler.owed, 0.0
        rate = self.profile.prefill_tokens_per_second
        while sampler.waiting and len(sampler.active) < slots:
            sampler.begin_next(self.now, rate)
        if sampler.busy_since is None:
            sampler.busy_since = self.now
        self._schedule(sampler)

    def _schedule(self, sampler: VirtualSampler) -> None:
        sampler.epoch += 1
        if sampler.active and sampler.has_devices:
            steps = max(0.0, sampler.active[0][0] - sampler.steps)
            self._at(
                max(self.now, sampler.at) + sampler.seconds(steps),
                "ended",
                sampler.index,
                sampler.epoch,
            )

    def _ended(self, sampler: VirtualSampler) -> None:
        sampler.advance(self.now)
        for member in sampler.end_next():
            # Scored where it was decoded, which goes on after that.
            sampler.at = max(sampler.at, self.now) + self.profile.score_seconds / self.size
            self.members[member.group] -= 1
            if self.members[member.group] == 0:
                del self.members[member.group]
                self.scoring[member.group] = sampler.index
                self._at(sampler.at + self.profile.tool_seconds, "scored_group", member.group)
        self._fill(sampler)
        if not sampler.active and not sampler.waiting:
            self._left(sampler)

    def _scored_group(self, group: int) -> None:
        sampler = self.scoring.pop(group, None)
        if sampler is None:
            return  # lost with its sampler
        self.queue.put(sampler, group, self.now)
        self.ready += 1
        if self._helped:
            self._hand_over()
        self._offer()

    def _lengths(self, group: int) -> list[int]:
        step, position = divmod(group, self.groups)
        if step not in self.lengths:
            count = self.groups * self.size
            drawn = spread(self.profile.lengths, count, 1 - 0.5 / count)
            random.Random(self.seed * 1_000_003 + step).shuffle(drawn)
            self.lengths[step] = drawn
        return self.lengths[step][position * self.size : (position + 1) * self.size]

    def _rests(self, sampler: VirtualSampler) -> None:
        if sampler.busy_since is not None:
            self._span(sampler.row, "sample", sampler.busy_since, self.now)
            sampler.busy_since = None

    @property
    def _helped(self) -> bool:
        """Whether so much of the batch is there that shared samplers leave the rest to the others, as in the buffer."""
        at, taken = self.placement.hand_over_at, self.taken % self.groups
        return self.hands_over and at is not None and taken + self.ready >= at * self.groups

    # -- devices -------------------------------------------------------------------------------------------------

    def _claims(self, sampler: VirtualSampler) -> None:
        """It decodes only while nobody else wants its device, so it has it at once."""
        if sampler.shared:
            self.leases.claim(f"sampler {sampler.index}", [sampler.row])
            if not self.leases.has(f"sampler {sampler.index}"):
                raise AssertionError(f"sampler {sampler.index} decodes on {sampler.row}, which another has")
        sampler.has_devices = True

    def _leaves(self, sampler: VirtualSampler) -> None:
        sampler.has_devices = False
        self.leases.give_back(f"sampler {sampler.index}")

    def _interrupted(self, sampler: VirtualSampler) -> list[Member]:
        members = sampler.interrupted(self.now)
        self._rests(sampler)
        return members

    def _hand_over(self) -> None:
        """Shared samplers leave their devices for this step; the others go on with what they have begun."""
        for sampler in self.samplers:
            if sampler.shared and sampler.alive and not sampler.handed_over:
                sampler.handed_over = True
                left: dict[int, list[Member]] = {}
                for member in self._interrupted(sampler):
                    left.setdefault(member.group, []).append(member)
                self.begun.update(left)
                self.queue.leave(sampler.index, sorted(left))
                self._leaves(sampler)
        self._fill_all()

    def _wanted(self) -> None:
        """Learners have a part, and wait for the devices: who drains gives them back when it has nothing left."""
        if self.hands_over:
            self._hand_over()
            return
        for sampler in self.samplers:
            idle = not sampler.active and not sampler.waiting
            if sampler.shared and sampler.has_devices and (self.placement.interrupt or idle):
                self._stops(sampler)

    def _stops(self, sampler: VirtualSampler) -> None:
        """Between two tokens, when what has ended is scored. It keeps its sequences; where tensors leave the device they are
        read again later."""
        if sampler.at > self.now:
            self._at(sampler.at, "stops", sampler.index)
            return
        sampler.advance(self.now)
        self._rests(sampler)
        self._leaves(sampler)
        sampler.epoch += 1

    def _stops_later(self, index: int) -> None:
        """Learners still wait for the device of one that is done with what kept it."""
        sampler = self.samplers[index]
        if self.part is not None and not self.learning and sampler.alive and sampler.has_devices:
            self._stops(sampler)
            self._begin()

    def _left(self, sampler: VirtualSampler) -> None:
        """One that is draining has nothing left."""
        if sampler.shared and self.part is not None and not self.learning and sampler.has_devices:
            self._rests(sampler)
            self._leaves(sampler)
            self._begin()

    def _gets_devices(self, sampler: VirtualSampler) -> None:
        seconds = self.turn.to_sampler
        rate = self.profile.prefill_tokens_per_second
        if self.placement.swap and self.profile.reads_again and rate is not None:
            seconds += sampler.cached / rate
        self._span(sampler.row, "switch", self.now, self.now + seconds)
        sampler.at = self.now + seconds
        self._claims(sampler)

    # -- learners ------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Learners that do nothing take the next part, where it is there."""
        if self.learning or self.part is not None:
            return
        self.part = self.queue.take(self.placement.part_groups, self.now)
        if self.part is None:
            return
        self.taken += len(self.part)
        self.ready -= len(self.part)
        if not self.holding:
            shared = [sampler.row for sampler in self.samplers if sampler.shared]
            self.leases.claim(LEARNERS, shared, priority=1)
        self._wanted()
        self._begin()

    def _begin(self) -> None:
        if self.part is None or self.learning:
            return
        if not self.holding and not self.leases.has(LEARNERS):
            return
        self.learning = True
        begin = self.now + (next_part_seconds(self.profile) if self.learned else 0.0)
        if not self.holding:
            self.holding = True
            for index in range(self.placement.shared):
                self._span(f"learner {index}", "switch", begin, begin + self.turn.to_learner)
            begin += self.turn.to_learner
        tokens = sum(
            sum(self._lengths(group)) + self.size * self.profile.prompt_tokens for group in self.part
        )
        decoding = self._decoding * self.fewer
        end = begin + learn_seconds(self.profile, tokens, self.placement.learners, decoding)
        self._learns("learn", begin, end)
        self._at(end, "part_learned", 0)

    def _learns(self, what: str, start: float, end: float) -> None:
        for index in range(self.learner_rows):
            self._span(f"learner {index}", what, start, end)

    def _part_learned(self, _: int) -> None:
        assert self.part is not None
        self.learned += len(self.part)
        self.result.trained += self.part
        self.part = None
        if self.learned >= self.groups:
            updated = self.now + update_seconds(self.profile, self.placement.learners)
            self._learns("learn", self.now, updated)
            there = updated + max(0.0, self.profile.between_seconds - self.profile.load_seconds)
            self._learns("publish", updated, there)
            self._at(there, "published", 0)
            return
        self.learning = False
        self._offer()
        if not self.learning and not self.hands_over:
            self._gives_back()
            self._fill_all()

    def _gives_back(self) -> None:
        self.holding = self.placement.shared == 0
        self.leases.give_back(LEARNERS)

    def _published(self, _: int) -> None:
        self.queue.commit()
        self.version += 1
        self.queue.publish(self.version)
        self.result.published.append(self.now)
        self.learned = self.taken = 0
        self.learning = False
        self.lengths.pop(self.version - 8, None)
        for sampler in self.samplers:
            sampler.owed = self.profile.load_seconds
            if sampler.handed_over:
                sampler.handed_over = False
                self.queue.register(sampler.index)
        self._gives_back()
        if self._helped:  # by what staleness left there
            self._hand_over()
        self._fill_all()
        self._offer()

    # -- failures ------------------------------------------------------------------------------------------------

    def _lost(self, number: int) -> None:
        sampler = self.samplers[self.outages[number].sampler]
        if not sampler.alive:
            return
        for member in self._interrupted(sampler):
            self.members.pop(member.group, None)
        for group in [group for group, holder in self.scoring.items() if holder == sampler.index]:
            del self.scoring[group]
        sampler.alive = False
        if sampler.shared:
            self._leaves(sampler)
        self.queue.release(sampler.index)
        self._fill_all()
        self._begin()

    def _back(self, number: int) -> None:
        sampler = self.samplers[self.outages[number].sampler]
        if sampler.alive:  # another outage, in the middle of which this one began, is over
            return
        sampler.alive, sampler.at = True, self.now
        if not sampler.handed_over:
            self.queue.register(sampler.index)
        self._fill(sampler)
