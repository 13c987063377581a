"""The rules of a profile's `gang` in CEL, see `rl_api.gang`."""

from __future__ import annotations

from typing import Final

from rl_api.crd_places import cel_rule
from rl_api.crd_schema import Rule
from rl_api.gang import NO_KUEUE, WITH_QUEUES

GANG_CEL_RULES: Final[dict[str, list[Rule]]] = {
    "spec": [
        cel_rule(
            f"!has(self.gang) || !has(self.queue) || !(self.gang.scheduler in {list(WITH_QUEUES)})",
            ".queue",
            f"found '{{self.queue}}', allowed: {NO_KUEUE.format(scheduler='{self.gang.scheduler}')}",
        ),
    ],
    "spec.gang": [
        cel_rule(
            f"!has(self.queue) || self.scheduler in {list(WITH_QUEUES)}",
            ".queue",
            "found '{self.queue}', allowed: null with scheduler {self.scheduler}, which has no queues",
        ),
        cel_rule(
            "has(self.queue) || self.scheduler != 'kai'",
            ".queue",
            "missing, required with scheduler kai: one of its queues",
        ),
    ],
}
"""Rules of an RLTrainingProfile by the path of the object they look at."""
