"""Apache YuniKorn: every pod carries all groups of its application, for which YuniKorn reserves room with placeholders."""

from __future__ import annotations

import json
from typing import Any, Final

from rl_operator.model.names import shorten
from rl_operator.render.gang.parts import Gang, Member, Placement, PodParts, written

QUEUE_LABEL: Final = "yunikorn.apache.org/queue"
_APPLICATION_LABEL: Final = "yunikorn.apache.org/app-id"
_GANG_LABEL: Final = "ray.io/gang-scheduling-enabled"
_GROUP: Final = "yunikorn.apache.org/task-group-name"
_GROUPS: Final = "yunikorn.apache.org/task-groups"
_PARAMETERS: Final = "yunikorn.apache.org/schedulingPolicyParameters"

_LONGEST_LABEL: Final = 63

RESERVED_SECONDS: Final = 300
"""How long placeholders hold room while others find none. Style Soft would then place pods on their own; Hard gives all
back and ends the pods, upon which the attempt is made anew (`rl_operator.decide.attempt.outcome`)."""


def yunikorn(gang: Gang) -> Placement:
    """Labels as KubeRay reads them, and what it would do by them: so it may, but need not, be installed with
    `batchScheduler.name: yunikorn`."""
    # The cluster has it once, for ever: that of pods that found no room, or went, is ended, and never takes pods again.
    again = f"-{gang.preemptions}" if gang.preemptions else ""
    application = shorten(f"{gang.metadata['namespace']}.{gang.name}-{gang.uid[:8]}{again}", _LONGEST_LABEL)
    labels = {"applicationId": application} | ({"queue": gang.queue} if gang.queue else {})
    groups = json.dumps([_group(member) for member in gang.members], separators=(",", ":"))
    style = f"placeholderTimeoutInSeconds={RESERVED_SECONDS} gangSchedulingStyle=Hard"
    annotations = {_GROUPS: groups, _PARAMETERS: style}
    return Placement(
        pods={
            member.group: PodParts(
                labels, {**annotations, _GROUP: member.group}, {"schedulerName": "yunikorn"}
            )
            for member in gang.members
        },
        labels={
            _GANG_LABEL: "true",
            _APPLICATION_LABEL: application,
            **({QUEUE_LABEL: gang.queue} if gang.queue else {}),
        },
    )


def _group(member: Member) -> dict[str, Any]:
    spec = member.template["spec"]
    where = {name: spec[name] for name in ("nodeSelector", "tolerations", "affinity") if spec.get(name)}
    resources = {name: written(one) for name, one in sorted(member.resources.items())}
    return {"name": member.group, "minMember": member.count, "minResource": resources, **where}
