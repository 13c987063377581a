"""Weights by broadcast over gloo, the members as threads: all have the same bits, and nobody waits for one that fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from kept_blocks import KeptBlocks

from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports import group as group_module
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.collective import Broadcaster, CollectiveReceiver
from rl_trainer.weights.transports.group import WeightGroup
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.object_store import StorePublisher
from rl_trainer.weights.transports.publication import Publication

HOST = "127.0.0.1"


def tensors(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "large": torch.randn(9, 500, generator=generator),
        "half": torch.randn(30, generator=generator).bfloat16(),
        "none": torch.zeros(0, 3),
        "whole": torch.tensor(version),
    }


class World:
    """A learner and some samplers; their stores are apart, so that who takes a version from its own is found out."""

    def __init__(self, samplers: int):
        self.stores = [KeptBlocks() for _ in range(samplers)]
        self.learner_store = KeptBlocks()
        self.learner = Broadcaster(self.learner_store, HOST)
        self.samplers = [CollectiveReceiver(store, f"sampler {i}") for i, store in enumerate(self.stores)]
        self.threads = ThreadPoolExecutor(samplers)

    def publish(self, version: int) -> Publication:
        made = {name: LazyTensor.of(value) for name, value in tensors(version).items()}
        published = StorePublisher(self.learner_store, 0, limit=1024).publish(
            Offer(lambda: source_of(made)), version
        )
        assert published is not None
        return replace(published, way="collective")

    def invitation(self, version: int, group: str, size: int, seconds: float = 200.0) -> Invitation:
        return Invitation(version, group, self.learner.point.address, size, seconds)

    def join(self, invitation: Invitation, samplers: Sequence[int]) -> list[Future[str | None]]:
        return [
            self.threads.submit(self.samplers[one].join, invitation, 1 + index)
            for index, one in enumerate(samplers)
        ]

    def received(self, sampler: int, published: Publication) -> None:
        found = self.samplers[sampler].receive(published, 200.0)
        expected = tensors(published.version)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value), name


@pytest.fixture
def world() -> World:
    return World(3)


def test_every_sampler_has_the_same_bits_version_after_version_and_groups_change(world: World):
    for version, group, samplers in (
        (0, "a", [0, 1, 2]),
        (1, "a", [0, 1, 2]),
        (2, "b", [2, 0]),
        (3, "c", [1]),
    ):
        published = world.publish(version)
        invitation = world.invitation(version, group, len(samplers) + 1)
        sent = world.learner.send(published, invitation)
        joined = world.join(invitation, samplers)
        assert [one.result() for one in joined] == [None] * len(samplers)
        assert sent.result() is None
        for sampler in samplers:
            world.received(sampler, published)
    assert not any(store.blocks for store in world.stores), "none has come another way"
    whole = sum(value.nbytes for value in tensors(0).values())
    assert all(
        whole <= found / 3 < 1.1 * whole for found in (world.samplers[one].broadcast_bytes for one in (0, 2))
    )


def test_versions_are_sent_one_after_the_other(world: World):
    """The second is published while the first is on its way; a sampler that has not taken the first has the second."""
    first, second = world.publish(1), world.publish(2)
    invitations = [world.invitation(version, "a", 3) for version in (1, 2)]
    sent = [world.learner.send(one, to) for one, to in zip((first, second), invitations, strict=True)]
    for invitation in invitations:
        assert [one.result() for one in world.join(invitation, [0, 1])] == [None, None]
    assert [one.result() for one in sent] == [None, None]
    world.received(0, second)
    world.received(1, second)


def test_who_was_not_invited_takes_the_version_from_the_store(world: World):
    published = world.publish(5)
    world.stores[2].blocks = world.learner_store.blocks
    world.received(2, published)


def failing(which: str, when: int, how: Callable[[], None]) -> Callable[..., None]:
    """`WeightGroup.broadcast` whose call number `when` fails in the member of that name."""
    real, calls = WeightGroup.broadcast, [0]

    def broadcast(self: WeightGroup, data: torch.Tensor, deadline: float) -> None:
        if threading.current_thread().name == which:
            calls[0] += 1
            if calls[0] == when:
                how()
        real(self, data, deadline)

    return broadcast


@pytest.mark.parametrize("when", [1, 2, 5], ids=["the header", "the description", "a block"])
def test_a_sampler_that_fails_half_way_blocks_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, when: int
):
    def fail() -> None:
        raise OSError("no memory is left")

    monkeypatch.setattr(WeightGroup, "broadcast", failing("falls", when, fail))
    published = world.publish(7)
    invitation = world.invitation(7, "a", 4)
    sent = world.learner.send(published, invitation)
    others = world.join(invitation, [0, 1])
    said: list[str | None] = []
    falls = threading.Thread(target=lambda: said.append(world.samplers[2].join(invitation, 3)), name="falls")
    falls.start()
    falls.join()
    assert said == ["sampler 2: weights of version 7 were not broadcast to it (no memory is left)"]
    # Its connections close: nobody waits for the deadline of 200 s.
    reason = sent.result(timeout=150)
    found = [one.result(timeout=150) for one in others]
    assert reason is not None or any(found)
    for sampler in range(3):
        world.stores[sampler].blocks = world.learner_store.blocks
        world.received(sampler, published)
    # A version that was to go by the same group is given up at once.
    assert (
        world.learner.send(published, invitation).result(timeout=150)
        == "RuntimeError: its group was given up"
    )
    (joined,) = world.join(invitation, [2])
    assert str(joined.result(timeout=150)).endswith("(its group was given up)")
    # The next version has another group, and reaches those that are left.
    later = world.publish(8)
    again = world.invitation(8, "b", 3)
    sent = world.learner.send(later, again)
    assert [one.result() for one in world.join(again, [0, 1])] == [None, None]
    assert sent.result() is None
    for store in world.stores:
        store.blocks = {}
    world.received(0, later)
    world.received(1, later)


def test_a_sampler_that_does_not_come_is_waited_for_until_the_deadline(world: World):
    published = world.publish(1)
    invitation = world.invitation(1, "a", 3, seconds=1.0)
    sent = world.learner.send(published, invitation)
    (joined,) = world.join(invitation, [0])
    assert sent.result(timeout=120) is not None
    failure = world.learner.failure()
    assert failure is not None
    assert failure.startswith("learner 0: weights of version 1 could not be broadcast by it (")
    assert world.learner.failure() is None, "it is told once"
    reason = joined.result(timeout=120)
    assert reason is not None
    assert reason.startswith("sampler 0: weights of version 1 were not broadcast to it (")


def test_another_version_or_damaged_bytes_are_not_taken(world: World, monkeypatch: pytest.MonkeyPatch):
    published = world.publish(1)
    invitation = world.invitation(1, "a", 2)
    world.learner.send(published, invitation)
    (joined,) = world.join(replace(invitation, version=2), [0])
    assert "version 1 came, 2 was to come" in str(joined.result(timeout=120))
    block = world.learner_store.blocks[2]
    world.learner_store.blocks[2] = replace(block, checksum=block.checksum ^ 1)
    again = world.invitation(1, "b", 2)
    world.learner.send(published, again)
    (joined,) = world.join(again, [0])
    assert "block 3 of" in str(joined.result(timeout=120))
    assert "checksum" in str(joined.result())


class Nccl:
    """In place of the group on devices: the learner's bytes are sevens."""

    def __init__(self) -> None:
        self.given: list[torch.Tensor] = []

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Nccl:
        self.given += tensors
        tensors[0].fill_(7)
        return self

    def is_completed(self) -> bool:
        return True


@pytest.mark.parametrize("rank", [0, 2])
def test_on_devices_receivers_upload_nothing_and_the_sender_takes_nothing_back(
    rank: int, monkeypatch: pytest.MonkeyPatch
):
    """The device is the host here: what the learner uploads is its own tensor."""
    nccl = Nccl()
    monkeypatch.setattr(group_module, "_nccl_group", lambda *_: nccl)
    monkeypatch.setattr(group_module, "_DEVICE", "cpu")
    point: Any = type("Point", (), {"store": dist.HashStore()})  # type: ignore[attr-defined]
    group = WeightGroup(Invitation(1, "a", (HOST, 1), 3, 5.0, "nccl"), rank, point)
    data, copied = torch.ones(5, dtype=torch.uint8), []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda into, other: copied.append((into, other)))
    group.broadcast(data, time.monotonic() + 5)
    (there,) = nccl.given
    assert (there is data) == (rank == 0)
    assert there.tolist() == [7] * 5
    assert [into is data and other is there for into, other in copied] == [True] * (rank != 0)
