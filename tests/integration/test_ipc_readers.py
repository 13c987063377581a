"""Samplers that read a learner's memory, as processes: some stop, some are killed, and the learner is killed at last."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select
from typing import Any

import pytest
import ray
import torch

from rl_api.errors import ModelError
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.create import create_publisher, create_receiver
from rl_trainer.weights.transports.ipc import IpcPublisher
from rl_trainer.weights.transports.publication import Publication

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module

SIZE = 3_000_000  # numbers of a version
SECONDS = 60.0
MEMORY = "memfd:rltrain-weights"  # as the system lists what is mapped


def weights(version: int) -> torch.Tensor:
    return torch.arange(SIZE, dtype=torch.int32) * (version + 1)


class Process:
    def pid(self) -> int:
        return os.getpid()


@ray.remote
class Learner(Process):
    def __init__(self) -> None:
        self.publisher = create_publisher("ipc", RayStore(), rank=0)

    def publish(self, version: int) -> Publication:
        parts = {"all": LazyTensor.of(weights(version))}
        found = self.publisher.publish(Offer(lambda: source_of(parts)), version)
        assert found is not None
        return found

    def there(self) -> int:
        """Versions in its memory."""
        assert isinstance(self.publisher, IpcPublisher)
        assert self.publisher._desk is not None
        return len(self.publisher._desk._versions)


@ray.remote
class Sampler(Process):
    """Holds what it has received last."""

    def __init__(self) -> None:
        self.receiver = create_receiver("ipc", RayStore(), place="a sampler")
        self.held: Any = None

    def receive(self, publication: Publication) -> bool:
        self.held = None
        self.held = self.receiver.receive(publication, SECONDS)["all"]
        return self.holds(publication.version)

    def holds(self, version: int) -> bool:
        return torch.equal(self.held, weights(version))

    def let_go(self) -> None:
        self.held = None


def answer(call: Any) -> Any:
    return ray.get(call, timeout=120)


def signalled(actor: Any, number: signal.Signals, pid: int | None = None) -> int:
    """Its process, which is waited for if it is killed."""
    process = answer(actor.pid.remote()) if pid is None else pid
    handle = os.pidfd_open(process)
    signal.pidfd_send_signal(handle, number)
    if number == signal.SIGKILL:
        assert select([handle], [], [], SECONDS)[0]
    os.close(handle)
    return process


def until(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + SECONDS
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def maps(process: int) -> bool:
    """Whether it has a learner's memory mapped."""
    return MEMORY in Path(f"/proc/{process}/maps").read_text()


@pytest.fixture
def run(local_ray: None) -> Iterator[tuple[Any, list[Any]]]:
    """A learner and three samplers."""
    learner = Learner.options(num_cpus=0).remote()
    samplers = [Sampler.options(num_cpus=0).remote() for _ in range(3)]
    yield learner, samplers
    for one in (learner, *samplers):
        ray.kill(one)


def test_versions_go_by_memory_and_their_memory_ends_with_who_wants_them(run: tuple[Any, list[Any]]) -> None:
    learner, (first, second, third) = run
    published = None
    for version in range(5):
        published = answer(learner.publish.remote(version))
        assert (published.way, len(published.blocks), published.whole) == ("ipc", 1, None)
        assert all(answer([one.receive.remote(published) for one in (first, second)]))
    assert answer(third.receive.remote(published)), "who joins has the current one"
    assert until(lambda: answer(learner.there.remote()) == 1), "nobody has an earlier one any more"


def test_one_that_stands_still_keeps_its_version_and_one_that_is_killed_none(
    run: tuple[Any, list[Any]],
) -> None:
    learner, (still, killed, other) = run
    old = answer(learner.publish.remote(0))
    assert all(answer([one.receive.remote(old) for one in (still, killed, other)]))
    stopped = signalled(still, signal.SIGSTOP)
    signalled(killed, signal.SIGKILL)
    del old
    ways = []
    for version in (1, 2, 3):
        published = answer(learner.publish.remote(version))
        ways.append(published.way)
        assert answer(other.receive.remote(published))
        # Versions 0 and 1 are there, or one of them and what is published: the device has two.
        assert answer(learner.there.remote()) == 2
    assert ways[0] == "ipc"
    signalled(still, signal.SIGCONT, stopped)
    assert answer(still.holds.remote(0))
    answer(still.let_go.remote())
    assert until(lambda: answer(learner.there.remote()) == 1)
    published = answer(learner.publish.remote(4))
    assert published.way == "ipc"
    assert answer(still.receive.remote(published))


def test_a_learner_that_is_killed_leaves_nothing_and_nobody_waits_for_it(run: tuple[Any, list[Any]]) -> None:
    learner, (first, second, _) = run
    files = set(os.listdir("/dev/shm"))
    published = answer(learner.publish.remote(0))
    assert answer(first.receive.remote(published))
    process = signalled(learner, signal.SIGKILL)
    reader, late = answer([first.pid.remote(), second.pid.remote()])
    assert answer(first.holds.remote(0)), "what it has is its own to read"
    assert maps(reader)
    started = time.monotonic()
    with pytest.raises((ModelError, ray.exceptions.OwnerDiedError)):
        answer(second.receive.remote(published))
    assert time.monotonic() - started < SECONDS
    answer(first.let_go.remote())
    assert until(lambda: not maps(reader))
    assert not maps(late)

    def left() -> set[str]:
        there = set(os.listdir("/dev/shm")) - files
        return {name for name in there if str(process) in name or "torch" in name}

    # Tests beside this one have such files for moments.
    assert until(lambda: not left()), left()
