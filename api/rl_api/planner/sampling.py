"""Samplers of a simulated run: what they begin with, decode and score, and what is lost with one. Pure."""

from __future__ import annotations

from rl_api.planner.decoding import Member, VirtualSampler
from rl_api.planner.virtual_run import VirtualRun


class Sampling:
    """Groups from the queue to samplers, and back when they are scored."""

    def __init__(self, run: VirtualRun) -> None:
        """`run`: whose samplers these are."""
        self.run = run
        self.line = [*run.samplers]  # who asks first for groups: who gets some comes last again
        self.begun: dict[int, list[Member]] = {}  # members of a group whose sampler has left it
        self.members: dict[int, int] = {}  # of a group, still to end
        self.last: dict[int, float] = {}  # of a group, when those that have ended are all scored
        self.scoring: dict[int, int] = {}  # groups whose answers have all ended, and who decoded them

    def fill_all(self) -> None:
        """Each takes what it may start."""
        for sampler in list(self.line):
            self.fill(sampler)

    def fill(self, sampler: VirtualSampler) -> None:
        """Take what may be started, and go on."""
        run = self.run
        claimed = run.holding or run.part is not None
        if not sampler.alive or sampler.handed_over or (claimed and not sampler.has_devices):
            return
        sampler.advance(run.now)
        self._take(sampler)
        if not sampler.active and not sampler.waiting:
            self.rests(sampler)
            return
        if not sampler.has_devices:
            self._gets_devices(sampler)
        sampler.at, sampler.owed = max(sampler.at, run.now) + sampler.owed, 0.0
        rate = run.profile.prefill_tokens_per_second
        while sampler.waiting and len(sampler.active) < run.profile.decode.slots:
            sampler.begin_next(run.now, rate)
        if sampler.busy_since is None:
            sampler.busy_since = run.now
        run.schedule(sampler)

    def _take(self, sampler: VirtualSampler) -> None:
        run, slots = self.run, self.run.profile.decode.slots
        draining = sampler.shared and run.part is not None
        while not draining and (free := slots - len(sampler.active) - len(sampler.waiting)) > 0:
            tickets = run.queue.acquire(sampler.index, -(-free // run.size))
            if not tickets:
                break
            self.line.remove(sampler)
            self.line.append(sampler)
            for group in tickets:
                members = self.begun.pop(group, None)
                if members is None:
                    prompt = run.profile.prompt_tokens
                    members = [Member(group, length, prompt) for length in run.lengths.of(group)]
                    self.members[group] = len(members)
                sampler.waiting.extend(members)

    def _gets_devices(self, sampler: VirtualSampler) -> None:
        run = self.run
        seconds = run.turn.to_sampler
        rate = run.profile.prefill_tokens_per_second
        if run.placement.swap and run.profile.reads_again and rate is not None:
            seconds += sampler.cached / rate
        run.span(sampler.row, "switch", run.now, run.now + seconds)
        sampler.at = run.now + seconds
        self.claims(sampler)

    def claims(self, sampler: VirtualSampler) -> None:
        """It decodes only while nobody else wants its device, so it has it at once."""
        if sampler.shared:
            holder = f"sampler {sampler.index}"
            self.run.leases.claim(holder, [sampler.row])
            if not self.run.leases.has(holder):
                raise AssertionError(f"{holder} decodes on {sampler.row}, which another has")
        sampler.has_devices = True

    def leaves(self, sampler: VirtualSampler) -> None:
        """It gives its device back."""
        sampler.has_devices = False
        self.run.leases.give_back(f"sampler {sampler.index}")

    def ended(self, sampler: VirtualSampler) -> None:
        """The next of its sequences have got their last token."""
        run = self.run
        sampler.advance(run.now)
        for member in sampler.end_next():
            # Scored where it was decoded, which goes on after that, or by workers meanwhile.
            sampler.at = max(sampler.at, run.now) + run.profile.score_seconds / run.size
            self.last[member.group] = max(self.last.get(member.group, 0.0), self._scored(sampler.at))
            self.members[member.group] -= 1
            if self.members[member.group] == 0:
                del self.members[member.group]
                self.scoring[member.group] = sampler.index
                run.at(self.last.pop(member.group), "scored_group", member.group)
        self.fill(sampler)

    def _scored(self, ended: float) -> float:
        judged = self.run.stations.judged(ended)
        self.run.span(f"reward model {judged.worker}", "judge", judged.start, judged.end)
        return judged.end

    def scored(self, group: int) -> bool:
        """A group goes to the queue; whether it is still there, and not lost with its sampler."""
        sampler = self.scoring.pop(group, None)
        if sampler is None:
            return False
        self.run.queue.put(sampler, group, self.run.now)
        self.run.ready += 1
        return True

    def rests(self, sampler: VirtualSampler) -> None:
        """It decodes nothing from now on."""
        if sampler.busy_since is not None:
            self.run.span(sampler.row, "sample", sampler.busy_since, self.run.now)
            sampler.busy_since = None

    def interrupted(self, sampler: VirtualSampler) -> list[Member]:
        """What it has begun, of which it has nothing any more."""
        members = sampler.interrupted(self.run.now)
        self.rests(sampler)
        return members

    def lost(self, sampler: VirtualSampler) -> None:
        """It is gone with all that it has begun, which others begin anew."""
        for member in self.interrupted(sampler):
            self.members.pop(member.group, None)
            self.last.pop(member.group, None)
        for group in [group for group, holder in self.scoring.items() if holder == sampler.index]:
            del self.scoring[group]
        sampler.alive = False
        if sampler.shared:
            self.leaves(sampler)
        self.run.queue.release(sampler.index)
        self.fill_all()

    def back(self, sampler: VirtualSampler) -> None:
        """It is there again, with nothing."""
        sampler.alive, sampler.at = True, self.run.now
        if not sampler.handed_over:
            self.run.queue.register(sampler.index)
        self.fill(sampler)
