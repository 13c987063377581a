"""Which way `weightSync.transport: auto` takes, and whom memory of a device reaches. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rl_api.roles import WeightTransport

# Fewer bytes than these are sent in less time than a group of processes takes to meet.
LEAST_COLLECTIVE_BYTES = 256 << 20


@dataclass(frozen=True)
class Topology:
    """Where weights go.

    Attributes:
        size: bytes of one version.
        samplers: that are to have it.
        nodes: on which these are.
        accelerated: whether learners and samplers have CUDA devices, so that NCCL carries a broadcast.
        encrypted: whether what passes between nodes has to be, which a broadcast is not.
    """

    size: int
    samplers: int
    nodes: int
    accelerated: bool
    encrypted: bool = False


def choose_transport(topology: Topology) -> WeightTransport:
    """The object store, but for large models that go to several samplers with accelerators on several nodes.

    On one node all samplers read the same memory, and no other way moves fewer bytes. To several nodes the object store
    sends every byte once to each of them, over TCP and from the learner's node; a broadcast is shared by the receivers, and
    where there are accelerators NCCL uses their links. Without them gloo goes over the same TCP.
    """
    several = topology.samplers > 1 and topology.nodes > 1
    large = topology.size >= LEAST_COLLECTIVE_BYTES
    fit = topology.accelerated and not topology.encrypted
    return "collective" if several and large and fit else "objectStore"


def all_beside(samplers: int, *, accelerated: bool, nodes: int) -> bool:
    """Whether all samplers of a run in which some share learners' devices can map what the first learner has on its own.

    Sampler s is beside learner process s: one alone is where the first is. The host's memory is that of all on one node.

    Args:
        samplers: of the run.
        accelerated: whether learners have CUDA devices.
        nodes: of the Ray cluster.
    """
    return samplers == 1 or (not accelerated and nodes == 1)
