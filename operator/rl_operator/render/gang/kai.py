"""KAI Scheduler: its pod grouper makes a PodGroup of every RayJob and RayCluster, by the fewest of each worker group."""

from __future__ import annotations

from typing import Final

from rl_operator.render.gang.parts import Gang, Placement, PodParts

QUEUE_LABEL: Final = "kai.scheduler/queue"


def kai(gang: Gang) -> Placement:
    """Scheduler and queue. KubeRay would refuse a job with a submitter's pod, which ours has not."""
    labels = {QUEUE_LABEL: gang.queue} if gang.queue else {}
    pod = PodParts(labels, {}, {"schedulerName": "kai-scheduler"})
    return Placement(pods={member.group: pod for member in gang.members}, labels=labels)
