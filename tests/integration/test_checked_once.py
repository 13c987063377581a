"""A version's blocks are checked by one sampler of a node; its file of marks is there as long as Ray is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from select import select
from typing import Any

import pytest
import ray
import torch
from two_nodes import FIRST, SECOND, in_a_process, two_nodes

from rl_api.errors import ModelError
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.shared_marks import marks_file, remove_marks
from rl_trainer.run.ray_session import ray_session
from rl_trainer.weights import payload
from rl_trainer.weights.source import LazyTensor, source_of
from rl_trainer.weights.transports.base import Offer
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver
from rl_trainer.weights.transports.publication import Publication

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module

VALUES = torch.arange(1_000_000, dtype=torch.int32)
BLOCKS = 4


@ray.remote
class Sampler:
    """Holds what it has received last."""

    def __init__(self) -> None:
        self.receiver = StoreReceiver(RayStore(), "a sampler")
        self.found: Any = None

    def receive(self, publication: Publication) -> int:
        """How many checksums it made."""
        made, checksum_of = list[int](), payload.checksum_of

        def counted(block: Any) -> int:
            made.append(block.nbytes)
            return checksum_of(block)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(payload, "checksum_of", counted)
            found = self.receiver.receive(publication, 60.0)
        self.found = {name: found[name] for name in found}
        assert torch.equal(torch.cat(list(self.found.values())), VALUES)
        return len(made)

    def drop(self) -> None:
        self.found = None

    def pid(self) -> int:
        return os.getpid()


def published(version: int) -> Publication:
    parts = {str(number): LazyTensor.of(part) for number, part in enumerate(VALUES.chunk(BLOCKS))}
    made = StorePublisher(RayStore(), 0, limit=1 << 20).publish(Offer(lambda: source_of(parts)), version)
    assert made is not None
    assert len(made.blocks) == BLOCKS
    return made


@pytest.fixture
def samplers(local_ray: None) -> Iterator[list[Any]]:
    made = [Sampler.options(num_cpus=0).remote() for _ in range(3)]
    yield made
    for one in made:
        ray.kill(one)


def received(sampler: Any, publication: Publication) -> int:
    return ray.get(sampler.receive.remote(publication), timeout=120)


def test_one_of_a_nodes_samplers_checks(samplers: list[Any]):
    first, second, third = samplers
    for version in range(3):
        publication = published(version)
        assert [received(one, publication) for one in (first, second, first)] == [BLOCKS, 0, 0]
    ray.get([one.drop.remote() for one in (first, second)], timeout=60)
    assert received(third, publication) == BLOCKS, "nobody held it, so that it may be another copy"
    process = os.pidfd_open(ray.get(third.pid.remote(), timeout=60))
    signal.pidfd_send_signal(process, signal.SIGKILL)
    assert select([process], [], [], 60)[0], "it is dead"
    os.close(process)
    assert received(first, publication) == BLOCKS
    assert received(second, publication) == 0


def test_a_damaged_block_is_found_by_all_of_them(samplers: list[Any]):
    publication, store = published(0), RayStore()
    (block,) = store.get(publication.blocks[2:3], 60.0)
    damaged = replace(publication, blocks=list(publication.blocks))
    damaged.blocks[2] = store.put(replace(block, checksum=block.checksum ^ 1))
    for one in samplers:
        for _ in range(2):
            with pytest.raises(ModelError, match="weights of version 0, block 3 of 4: checksum"):
                received(one, damaged)


def check_on_each_of_two_nodes() -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with two_nodes():
        publication = published(0)
        try:
            made = [Sampler.options(**where).remote() for where in (FIRST, SECOND, FIRST, SECOND)]
            assert [received(one, publication) for one in made] == [BLOCKS, BLOCKS, 0, 0]
            assert all(marks_file(node["NodeID"]).exists() for node in ray.nodes())
        finally:
            for node in ray.nodes():
                remove_marks(node["NodeID"])


def leave_nothing_behind() -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with ray_session(1):
        file = marks_file(ray.get_runtime_context().get_node_id())
        sampler = Sampler.options(num_cpus=0).remote()
        assert received(sampler, published(0)) == BLOCKS
        assert file.exists()
    assert not file.exists()


def test_each_node_checks_its_own_copy():
    in_a_process(check_on_each_of_two_nodes)


def test_the_marks_end_with_the_ray_that_is_started_here():
    in_a_process(leave_nothing_behind)
