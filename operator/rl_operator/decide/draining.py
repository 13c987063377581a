"""Nodes that are to be emptied under a run: cordoned for maintenance, or about to be removed. Pure.

Who drains a node asks for each pod to go, and the budget of the run keeps head and learners (`render.budget`): so they are
moved by the operator, with a checkpoint first (`attempt.evicting`). Samplers may go at any time, and give back what they
have begun: they are replaced, as many at once as leaves the fewest that the run needs. Those of several pods are not: with
one pod KubeRay takes the others of its replica, which may be parts of several samplers.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from rl_operator.decide.look import Look
from rl_operator.model.names import HEAD, LEARNER, SAMPLER
from rl_operator.model.record import NODE_DRAINED
from rl_operator.model.seen import CORDONED, Pod, Ray
from rl_operator.model.workload import Fact

PAUSE: Final = timedelta(seconds=120)
"""From a run's new pods after one drain to the next drain of it: nodes that are cordoned again and again cost it no more."""


def drained(look: Look, ray: Ray) -> Fact | None:
    """Why head or learners must go elsewhere; None: they need not, or were moved a moment ago."""
    last = next((one for one in reversed(look.status.evictions) if one.reason == NODE_DRAINED), None)
    if last is not None and last.resumed_time is not None and look.now - last.resumed_time < PAUSE:
        return None
    return leaving(look, ray)


def leaving(look: Look, ray: Ray) -> Fact | None:
    """The same, however long ago they were moved."""
    moved = [pod for pod in _on_their_way_out(look, ray) if pod.role in (HEAD, LEARNER)]
    removed = any(look.world.cordoned[pod.node] != CORDONED for pod in moved)
    if ray.deleting or not moved or (not removed and _is_left_alone(look, ray)):
        return None
    nodes = {pod.node: look.world.cordoned[pod.node] for pod in moved}
    where = " and ".join(f"node {node} {why}" for node, why in sorted(nodes.items()))
    roles = " and ".join(sorted({pod.role for pod in moved}))
    return Fact(NODE_DRAINED, f"{where}: {roles} must go elsewhere")


def _is_left_alone(look: Look, ray: Ray) -> bool:
    """Whether a cordon alone stops nothing: what runs could not be made again, or is a cluster in which somebody works by
    hand, whose work no checkpoint keeps."""
    by_hand = ray.kind == "RayCluster" and look.world.said(ray.attempt) is None
    return look.effective is None or by_hand


def samplers_to_move(look: Look, ray: Ray, fewest: int) -> tuple[str, ...]:
    """Samplers to replace now, by name."""
    going = {pod.name for pod in _on_their_way_out(look, ray) if pod.role == SAMPLER}
    samplers = [
        pod for pod in look.world.pods_of(ray.attempt) if pod.role == SAMPLER and pod.deleting is None
    ]
    staying = sum(pod.ready and pod.name not in going for pod in samplers)
    # Those that do no work cost nothing.
    ready = sorted(pod.name for pod in samplers if pod.ready and pod.name in going)
    idle = sorted(going - set(ready))
    return (*idle, *ready[max(0, fewest - staying) :])


def _on_their_way_out(look: Look, ray: Ray) -> Iterable[Pod]:
    """The pods on such nodes. One that tolerates the cordon may have been put there after it, and would be again: it leaves
    no node but one that is removed."""
    for pod in look.world.pods_of(ray.attempt):
        if (
            pod.deleting is None
            and pod.node in look.world.cordoned
            and not (pod.stays and look.world.cordoned[pod.node] == CORDONED)
        ):
            yield pod
