"""Samplers and learners that only sleep, around rltrain's channel: what tutorials 8 to 11 are made of."""

from __future__ import annotations

import random
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import ray

from rl_trainer.flow.channel import Channel


@dataclass(frozen=True)
class Times:
    """Seconds, all of them slept.

    Attributes:
        answers: of a sampler for one group of answers, from the least to the most.
        group: answers of a group.
        tool: that a group's tool takes, in the mean; exponential: most calls are quick, a few are very slow.
        step: of a learner for a batch.
        pause: that a learner stands still besides (a checkpoint, an evaluation), every `every` steps.
    """

    answers: tuple[float, float] = (0.005, 0.015)
    group: int = 16
    tool: float = 0.0
    step: float = 0.019
    pause: float = 0.0
    every: int = 50


@dataclass
class Seen:
    """What a learner has seen: items, seconds, and after every step how many items were left in the queue."""

    items: list[tuple[int, int]] = field(default_factory=list)
    """Sampler and number of each."""
    seconds: float = 0.0
    fill: list[int] = field(default_factory=list)


CPUS = 0.25
"""Of each actor: little, as they sleep. One that asked for nothing could come to a node that has no CPUs for work."""


@ray.remote(num_cpus=CPUS)
class Sampler:
    """Puts answers into the channel: where it is full, `put` waits, and so does the sampler. That is back-pressure."""

    def run(self, channel: Channel, times: Times, seed: int) -> None:
        """Goes on until it is killed."""
        draw, made = random.Random(seed), 0
        while True:
            time.sleep(draw.uniform(*times.answers))
            if times.tool:
                time.sleep(draw.expovariate(1 / times.tool))
            answers = [
                {"sampler": seed, "number": made + at, "logProb": draw.random()} for at in range(times.group)
            ]
            channel.put_many(answers, timeout=600)
            made += times.group


@ray.remote(num_cpus=CPUS)
class Learner:
    """Takes whole batches."""

    def run(self, channel: Channel, times: Times, batch: int, steps: int, tell: bool = False) -> Seen:
        """`steps` steps of `batch` answers. `tell`: says every ten steps how many samples a second it has got."""
        seen, started = Seen(), time.perf_counter()
        since = started
        for step in range(1, steps + 1):
            items = channel.get_many(batch, timeout=120, least=batch)
            time.sleep(times.step)  # here a learner would compute
            if times.pause and step % times.every == 0:
                time.sleep(times.pause)
            seen.items += [(item["sampler"], item["number"]) for item in items]
            seen.fill.append(channel.size())
            if tell and step % 10 == 0:
                now = time.perf_counter()
                print(
                    f"step {step}: {10 * batch / (now - since):.0f} samples/s, {seen.fill[-1]} wait",
                    flush=True,
                )
                since = now
        seen.seconds = time.perf_counter() - started
        return seen


def _host(_: Any) -> str:
    """Of the actor that is asked."""
    return socket.gethostname()


def run(
    capacity: int,
    times: Times,
    *,
    samplers: int = 2,
    learners: int = 1,
    batch: int = 64,
    steps: int = 20,
    tell: bool = False,
) -> tuple[list[Seen], dict[str, Any], dict[str, str]]:
    """Samplers and learners around a channel, until each learner has made its steps.

    Returns:
        What each learner has seen, the channel's own figures, and the host of each actor.
    """
    channel = Channel.create("answers", capacity=capacity, num_cpus=CPUS)
    sampling, learning = (
        [Sampler.remote() for _ in range(samplers)],
        [Learner.remote() for _ in range(learners)],
    )
    actors = {"channel": channel.actor}
    for role, some in (("sampler", sampling), ("learner", learning)):
        actors |= {f"{role} {number}": actor for number, actor in enumerate(some)}
    try:
        # Of an actor that is being made, this is answered once it is there. On a cluster a host is a pod, and has its name.
        hosts = ray.get([actor.__ray_call__.remote(_host) for actor in actors.values()], timeout=120)
        for seed, sampler in enumerate(sampling):
            sampler.run.remote(channel, times, seed)
        calls = [learner.run.remote(channel, times, batch, steps, tell) for learner in learning]
        seen: list[Seen] = ray.get(calls, timeout=600)
        return seen, channel.metrics(), dict(zip(actors, hosts, strict=True))
    finally:  # also after Ctrl-C
        for actor in actors.values():
            ray.kill(actor)
