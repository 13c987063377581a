"""One loop, several placements: the loop says what is done, and who has which device says when, where and in what pieces.

    python examples/tutorials/15_loop.py

Workers of two groups, samplers and learners, and three ways to seat them on two devices: apart, all on both, and mixed. The
loop calls both groups and waits for their handles. Answers go from one to the other through a channel, so learners begin
with a part while others are still sampled, if they have a device of their own. Where devices are shared, a worker claims
the right to compute (a lease), takes its tensors up, works, moves them out and gives the device back; nothing of that is
in the loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch
from show import Clock, Row, ray_here, table

from rl_trainer.flow.channel import Channel
from rl_trainer.flow.lease_desk import LeaseDesk
from rl_trainer.flow.worker import Worker
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.model.offload import Offloader

SAMPLE, LEARN, PART = 0.02, 0.01, 4
"""Seconds of one group of answers, sampled and learned; groups that a learner with a device of its own takes at a time."""
PLACEMENTS = {"disaggregated": ([0], [1]), "collocated": ([0, 1], [0, 1]), "hybrid": ([0, 1], [1])}
"""Devices of samplers, and of learners; on each device of a role there is one worker of it."""


class Stage(Worker):
    """A worker with tensors on a device that others may want as well."""

    def __init__(self, name: str, device: int, leases: Any, megabytes: int) -> None:
        super().__init__(name)
        self.device_name, self._leases, self._shared = f"device {device}", leases, False
        self.weights = torch.ones(megabytes * 250_000)
        self._offloader = Offloader(name)

    def place(self, shared: bool) -> None:
        """Whether somebody else computes on the device, too."""
        self._shared = shared
        if shared:
            self.offload()
        else:
            self.onload()

    def offload(self) -> int:
        """The tensors' memory is others'."""
        return self._moved("offload", lambda: self._offloader.offload([self.weights]))

    def onload(self) -> int:
        """The tensors are back, with the same bits."""
        return self._moved("onload", self._offloader.onload)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Within the block the device is this worker's: who holds it waits for nobody."""
        if not self._shared:
            with self.spans.span("work", device=self.device_name):
                yield
            return
        epoch = ray.get(self._leases.claim.remote(self.name, [self.device_name], 60.0), timeout=70)
        try:
            with self.spans.span("work", device=self.device_name):
                try:
                    self.onload()
                    yield
                finally:  # whoever has the device next finds its memory free, also after an error
                    self.offload()
        finally:
            ray.get(self._leases.give_back.remote(self.name, epoch), timeout=60)

    def drain(self) -> list[Any]:
        """What it did, and when."""
        return self.spans.drain()


@ray.remote(num_cpus=0)
class Sampler(Stage):
    """Answers prompts."""

    def generate(self, prompts: Sequence[int], weights: int, answers: Channel) -> None:
        """A group of answers for each prompt, put into the channel, which has room for all of them."""
        with self._turn():
            for prompt in prompts:
                time.sleep(SAMPLE)
                answers.put(prompt * weights % 97)
            answers.flush()


@ray.remote(num_cpus=0)
class Learner(Stage):
    """Learns from answers, a part at a time."""

    def learn(self, count: int, answers: Channel) -> int:
        """The gradient of `count` groups: a sum, so that it does not matter who learns from which of them, and when."""
        # Where it is shared all at once, or it would change hands for each part.
        gradient, most = 0, max(1, count) if self._shared else PART
        for begin in range(0, count, most):
            size = min(most, count - begin)
            part = answers.get_many(size, 60, least=size)  # who waits for data holds no device
            with self._turn():
                time.sleep(LEARN * size)
                gradient += sum(part)
        answers.leave()
        return gradient


def shares(items: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Dealt out evenly."""
    return [items[part::parts] for part in range(parts)]


def train(samplers: WorkerGroup, learners: WorkerGroup, answers: Channel, groups: int, steps: int) -> int:
    """The loop, which knows nothing of devices. Returns the weights, one number here."""
    weights = 1
    for step in range(steps):
        prompts = range(step * groups, (step + 1) * groups)
        generating = samplers.each(
            "generate", [(share, weights, answers) for share in shares(prompts, len(samplers.actors))]
        )
        learning = learners.each(
            "learn", [(len(share), answers) for share in shares(prompts, len(learners.actors))]
        )
        generating.wait("generating", 60)
        weights += sum(learning.wait("learning", 60))  # the step ends here: what is next is of new weights
    return weights


def together(spans: Sequence[Any]) -> float:
    """Seconds in which two workers had the same device."""
    work = sorted((span.start, span.end, span.args["device"]) for span in spans if span.name == "work")
    ends: dict[str, float] = {}
    found = 0.0
    for start, end, device in work:
        found += max(0.0, min(end, ends.get(device, 0.0)) - start)
        ends[device] = max(end, ends.get(device, 0.0))
    return found


def main(groups: int = 16, steps: int = 5, megabytes: int = 8) -> list[Row]:
    """Rows: the placement, seconds of a step, bytes moved in it, whether two had a device at once, and the weights."""
    leases = ray.remote(LeaseDesk).options(num_cpus=0).remote()
    answers = Channel.create("answers", capacity=groups)
    roles = {
        role: [kind.remote(f"{role} {device}", device, leases, megabytes) for device in (0, 1)]
        for role, kind in (("sampler", Sampler), ("learner", Learner))
    }
    rows = []
    for placement, (for_samplers, for_learners) in PLACEMENTS.items():
        samplers, learners = (
            WorkerGroup(role, {device: roles[role][device] for device in devices})
            for role, devices in (("sampler", for_samplers), ("learner", for_learners))
        )
        for group, others in ((samplers, for_learners), (learners, for_samplers)):
            group.each("place", [(device in others,) for device in group.actors]).wait("placing", 120)
            group.all("drain").wait("asking what was done", 60)
        with Clock() as clock:
            weights = train(samplers, learners, answers, groups, steps)
        spans = [
            span
            for group in (samplers, learners)
            for done in group.all("drain").wait("asking what was done", 60)
            for span in done
        ]
        moved = sum(span.args["bytes"] for span in spans if span.name in ("onload", "offload"))
        rows.append(
            {
                "placement": placement,
                "samplers on": ", ".join(map(str, for_samplers)),
                "learners on": ", ".join(map(str, for_learners)),
                "step, ms": f"{clock.seconds / steps * 1e3:.0f}",
                "moved, MB": f"{moved / steps / 1e6:.0f}",
                "two at once, ms": f"{together(spans) * 1e3:.0f}",
                "weights": weights,
            }
        )
    for actor in (*roles["sampler"], *roles["learner"], answers.actor, leases):
        ray.kill(actor)
    table(rows, f"{groups} groups a step, two devices")
    return rows


if __name__ == "__main__":
    with ray_here():
        main()
