"""What a run asks for, against the gang of its profile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rl_api.gang import NO_KUEUE, WITH_QUEUES
from rl_api.problems import Problem
from rl_api.profile import ProfileSpec
from rl_api.run import RunSpec
from rl_operator.model.names import field_of
from rl_operator.plan.roles import Role

_COUNT_RESOURCES: Final = ("volcano", "yunikorn", "schedulerPlugins")
"""Those that reckon whether a gang fits by a sum of resources, in which devices that pods claim by class do not appear."""


def queue_beside_gang(title: str, profile: ProfileSpec, spec: RunSpec) -> Iterator[Problem]:
    """A queue of Kueue's for a run whose pods are placed by a scheduler with queues of its own.

    With coscheduling and with Kubernetes' gangs it goes together: Kueue says when pods may be there, and how many, and the
    scheduler places those that are there all at once.
    """
    gang, queue = profile.gang, spec.scheduling.queue
    if gang is not None and queue is not None and gang.scheduler in WITH_QUEUES:
        allowed = NO_KUEUE.format(scheduler=gang.scheduler)
        yield Problem(("spec", "scheduling", "queue"), f"found {queue!r}, allowed by {title}: {allowed}")


def claims_in_gang(title: str, profile: ProfileSpec, roles: Sequence[Role]) -> Iterator[Problem]:
    """Devices claimed by class in a gang whose scheduler knows nothing of them: it would promise room that there is not."""
    gang = profile.gang
    if gang is None or gang.scheduler not in _COUNT_RESOURCES:
        return
    for role in roles:
        if role.accelerators and role.pool.device_class is not None:
            yield Problem(
                (*field_of(role.name), "pools"),
                f"found pool {role.pool.name} with deviceClass {role.pool.device_class.name}, allowed by {title}: pools "
                f"with an acceleratorResource, as gang.scheduler {gang.scheduler} finds room for a gang by what its pods "
                "ask for, and sees no devices that they claim",
            )
