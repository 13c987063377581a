"""What one node holds for others, and what becomes of it with the node; see `two_nodes`."""

from __future__ import annotations

import sys

import numpy as np
import ray
from two_nodes import FIRST, SECOND, in_a_process, two_nodes

from rl_trainer.buffer.actor import Buffer, fetch_payloads
from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.trajectory import Group, Trajectory

LARGE = 20_000  # tokens of a payload that travels by reference


class Sampler:
    """Hands in a group for every ticket."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer
        buffer.register(0)

    def sample(self, count: int) -> list[int]:
        """Group ids."""
        tickets = self.buffer.acquire(0, count, 10.0).tickets
        for ticket in tickets:
            tokens = np.full(LARGE, ticket.group_id, np.int32)
            logprobs, versions = np.zeros(LARGE - 1, np.float32), np.zeros(LARGE - 1, np.int32)
            made = Trajectory(tokens, np.arange(LARGE) > 0, logprobs, versions)
            assert self.buffer.put(0, Group.of(ticket.group_id, [made])).accepted
        return [ticket.group_id for ticket in tickets]


def lose_the_samplers_node() -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with two_nodes() as end_the_second:
        buffer = Buffer.create(BufferConfig(groups_per_step=4, max_staleness=1), **FIRST)
        buffer.publish(0, None)
        sampler = ray.remote(Sampler).options(**SECOND).remote(buffer)
        assert ray.get(sampler.sample.remote(4), timeout=120) == [0, 1, 2, 3]
        end_the_second()
        assert buffer.release(0) == []
        batch = buffer.take(10.0)
        for taken, payload in zip(
            batch.groups, fetch_payloads([one.payload for one in batch.groups]), strict=True
        ):
            assert isinstance(taken.payload, ray.ObjectRef)
            (made,) = taken.trajectories(payload)
            assert made.tokens.tolist() == [taken.group_id] * LARGE


def test_ready_groups_outlive_the_node_of_their_sampler():
    in_a_process(lose_the_samplers_node)
