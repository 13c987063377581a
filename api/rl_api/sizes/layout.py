"""Who sits with whom: which ranks are on which device, node and pod. Pure.

Pods of one pool fill its nodes in order, as a scheduler that packs does; which node a real one takes is not known before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Group:
    """Pods of one role.

    Attributes:
        accelerators: of each pod, 0: it computes on CPUs.
        per_node: devices of a node of the pool; None: not known, and then each pod is a node.
        share: ranks of a learner that share one copy.
        tensor: tensor-parallel devices of a stage of a sampler.
        hosts: pods of one sampler.
        guests: samplers on the devices of a learner's first ranks, one beside each.
        first: number of the first of these samplers; those before it are guests of a learner.
    """

    role: str
    pods: int
    accelerators: int
    pool: str
    per_node: int | None = None
    share: int = 1
    tensor: int = 1
    hosts: int = 1
    guests: int = 0
    first: int = 0

    @property
    def ranks_per_pod(self) -> int:
        """Processes of a pod that compute."""
        return max(1, self.accelerators)


@dataclass(frozen=True)
class Seat:
    """One device: its pod, and what it does there, such as `copy 0 shard 3`. `part`: its pod is one of several. `guest`: who
    else computes there, in turn; empty: nobody."""

    role: str
    pod: int
    label: str
    part: bool = False
    guest: str = ""


@dataclass
class Node:
    """One node of a pool, and who is on its devices."""

    pool: str
    index: int
    devices: int | None
    seats: list[Seat] = field(default_factory=list)

    @property
    def free(self) -> int:
        """Accelerators that nobody of this run has."""
        return 0 if self.devices is None else self.devices - len(self.seats)

    @property
    def who(self) -> tuple[tuple[str, int], ...]:
        """Roles on it, with how many of their devices, in order."""
        roles = dict.fromkeys(seat.role for seat in self.seats)
        return tuple((role, sum(seat.role == role for seat in self.seats)) for role in roles)


def nodes_of(groups: Sequence[Group]) -> list[Node]:
    """The nodes that the pods of all groups fill, pool by pool."""
    nodes: list[Node] = []
    for group in groups:
        for pod in range(group.pods):
            seats = list(_seats(group, pod))
            of_pool = [node for node in nodes if node.pool == group.pool]
            whole = group.per_node
            node = next((one for one in of_pool if whole and one.devices and one.free >= len(seats)), None)
            if node is None:
                size = None if whole is None else max(whole, len(seats))
                node = Node(group.pool, len(of_pool), size)
                nodes.append(node)
            node.seats += seats
    return nodes


def _seats(group: Group, pod: int) -> Iterator[Seat]:
    for place in range(group.ranks_per_pod):
        rank = pod * group.ranks_per_pod + place
        label = f"{group.role} {group.first + pod // group.hosts}"
        if group.role == "learner":
            label = f"copy {rank // group.share}" + (
                f" shard {rank % group.share}" if group.share > 1 else ""
            )
        elif group.hosts > 1 and not group.accelerators:
            label += f" pod {pod % group.hosts}"
        elif group.accelerators * group.hosts > 1:
            stage, part = divmod(pod % group.hosts * group.accelerators + place, group.tensor)
            stages = group.accelerators * group.hosts // group.tensor
            label += (f" stage {stage}" if stages > 1 else "") + (f" part {part}" if group.tensor > 1 else "")
        guest = f"sampler {rank}" if rank < group.guests else ""
        yield Seat(group.role, pod, label, part=group.hosts > 1, guest=guest)


def as_text(nodes: Sequence[Node]) -> list[str]:
    """A line for each run of nodes that are alike: `h100 nodes 0-3 each: 1 learner of 8 devices (copy 0 to copy 31)`."""
    lines = []
    start = 0
    while start < len(nodes):
        end = start
        while end + 1 < len(nodes) and _alike(nodes[start], nodes[end + 1]):
            end += 1
        first, last = nodes[start], nodes[end]
        which = f"node {first.index}" if start == end else f"nodes {first.index}-{last.index}"
        each = "" if start == end else " each"
        who = ", ".join(_with_pods(first, role) for role, _ in first.who)
        free = f", {first.free} free" if first.free else ""
        lines.append(f"{first.pool} {which}{each}: {who}{free}{_span(nodes[start : end + 1])}")
        start = end + 1
    return lines


def _span(nodes: Sequence[Node]) -> str:
    """From which to which copy and shard of the learner the nodes go; nothing where that says nothing."""
    labels = [seat.label for node in nodes for seat in node.seats if seat.role == "learner"]
    return f" ({labels[0]} to {labels[-1]})" if len(labels) > 1 else ""


def _alike(one: Node, other: Node) -> bool:
    return (one.pool, one.devices, one.who, _pods(one)) == (
        other.pool,
        other.devices,
        other.who,
        _pods(other),
    )


def _pods(node: Node) -> list[tuple[int, int]]:
    """Pods of each role, and samplers on its devices."""
    seats = [[seat for seat in node.seats if seat.role == role] for role, _ in node.who]
    return [(len({seat.pod for seat in its}), sum(bool(seat.guest) for seat in its)) for its in seats]


def _with_pods(node: Node, role: str) -> str:
    seats = [seat for seat in node.seats if seat.role == role]
    pods = len({seat.pod for seat in seats})
    noun = f"{role} pod" if seats[0].part else role
    count = f"{pods} {noun}{'' if pods == 1 else 's'}"
    count += f" of {len(seats) // pods} devices" if len(seats) > pods else ""
    guests = sum(bool(seat.guest) for seat in seats)
    return count + (f" with {guests} sampler{'' if guests == 1 else 's'} on their devices" if guests else "")
