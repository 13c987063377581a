"""Gang scheduling: all pods with which an attempt begins are placed together, or none. `gang` of a profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from rl_api.base import Allowed, Model, ObjectName
from rl_api.paths import Path
from rl_api.problems import Problem

GangScheduler = Literal["volcano", "kai", "yunikorn", "schedulerPlugins", "kubernetes"]
"""Who places a gang."""

WITH_QUEUES: Final = ("volcano", "kai", "yunikorn")
"""Those that have queues, and quotas, of their own."""

NO_KUEUE: Final = (
    "null with gang.scheduler {scheduler}, which has queues and quotas of its own (gang.queue) and would take back what "
    "Kueue has given"
)
"""Why no queue of Kueue's is allowed beside such a scheduler."""

GangQueue = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63),
    Allowed("1 to 63 letters, digits, '-', '_' and '.', the first and the last a letter or digit"),
]
"""Name of a queue of such a scheduler: a label's value, such as root.research."""


class GangSpec(Model):
    """Who places all pods with which an attempt begins together, or none of them."""

    scheduler: GangScheduler
    """volcano; kai: KAI Scheduler; yunikorn: Apache YuniKorn; schedulerPlugins: the coscheduling of Kubernetes'
    scheduler-plugins; kubernetes: its own scheduler, from 1.36 on."""
    queue: GangQueue | None = None
    """Queue of volcano, kai (which needs one) or yunikorn, not of Kueue; null: the scheduler's default."""


def gang_problems(gang: GangSpec | None, queue: ObjectName | None, where: Path) -> Iterator[Problem]:
    """What is wrong with the `gang` of a profile at `where`, which gives runs this `queue` of Kueue's."""
    if gang is None:
        return
    path = (*where, "gang", "queue")
    if gang.queue is not None and gang.scheduler not in WITH_QUEUES:
        yield Problem(
            path, f"found {gang.queue!r}, allowed: null with scheduler {gang.scheduler}, which has no queues"
        )
    if gang.queue is None and gang.scheduler == "kai":
        yield Problem(path, "missing, required with scheduler kai: one of its queues", ((*where, "gang"),))
    if queue is not None and gang.scheduler in WITH_QUEUES:
        yield Problem(
            (*where, "queue"), f"found {queue!r}, allowed: {NO_KUEUE.format(scheduler=gang.scheduler)}"
        )
