"""What a run asks for, against the gang of its profile. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rl_api.gang import NO_KUEUE, WITH_QUEUES
from rl_api.problems import Problem
from rl_api.profile import ProfileSpec
from rl_api.run import RunSpec


def queue_beside_gang(title: str, profile: ProfileSpec, spec: RunSpec) -> Iterator[Problem]:
    """A queue of Kueue's for a run whose pods are placed by a scheduler with queues of its own.

    With coscheduling and with Kubernetes' gangs it goes together: Kueue says when pods may be there, and how many, and the
    scheduler places those that are there all at once.
    """
    gang, queue = profile.gang, spec.scheduling.queue
    if gang is not None and queue is not None and gang.scheduler in WITH_QUEUES:
        allowed = NO_KUEUE.format(scheduler=gang.scheduler)
        yield Problem(("spec", "scheduling", "queue"), f"found {queue!r}, allowed by {title}: {allowed}")
