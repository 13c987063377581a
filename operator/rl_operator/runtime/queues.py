"""What is asked of the cluster about a run's queue: who goes first, who waits before it, what flavors are."""

from __future__ import annotations

import logging
from typing import Any, Final

from rl_operator.kube.boost import boost_manager, levels, minds_boosts
from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import Key
from rl_operator.model.seen import QueuePriority, World
from rl_operator.model.workload import PREEMPTOR, Boosts, Flavor, Line, Workload, line_of, parse_flavor
from rl_operator.plan.effective import Effective
from rl_operator.runtime.known import Known

LOG = logging.getLogger("rl_operator")

_SECONDS: Final = 30.0
"""How long a flavor or a priority class is taken to be what it was."""

_BOOSTS_SECONDS: Final = 600.0
"""How long Kueue is taken to mind boosts, or not to, as it did; it is started anew to change that."""


class Queues:
    """Kueue, as far as runs go."""

    def __init__(self, api: Api, store: Store, known: Known, namespace: str) -> None:
        """`namespace`: the operator's own."""
        self._api, self._store, self._known = api, store, known
        self._manager = boost_manager(namespace)

    async def of_run(self, key: Key, effective: Effective, world: World) -> dict[str, Any]:
        """What a world has of the run's queue; raises ApiError where something could not be read."""
        if not self._store.serves("Workload"):
            return {"kueue": False}
        main = world.workload
        found: dict[str, Any] = {"kueue": True, "priority": await self._priority(effective)}
        if main is None:
            return found
        if main.pending:
            found["line"] = await self._line(key[0], main)
        if main.reserved:
            found["flavors"] = {name: one for name in main.flavors if (one := await self._flavor(name))}
        if main.evicted is not None:
            found["preemptor"] = self._whom(key[0], main)
        if main.runs:
            found["boosts"] = await self._boosts(key[0])
        else:
            found["boosts"] = Boosts(manager=self._manager)
        return found

    async def _boosts(self, namespace: str) -> Boosts:
        async def ask() -> Boosts:
            gate = await minds_boosts(self._api, namespace)
            try:
                return Boosts(gate, await levels(self._api) if gate else (), self._manager)
            except ApiError as error:
                if error.passing:
                    raise
                LOG.warning(
                    "no priority boosts are written: the classes of priority cannot be read: %s", error
                )
                return Boosts(manager=self._manager)

        return await self._known.lately(("boosts",), _BOOSTS_SECONDS, ask)

    async def _line(self, namespace: str, main: Workload) -> Line | None:
        """Looked up now and then: where a thousand wait, one that goes moves all that are behind it."""

        async def ask() -> Line | None:
            return line_of(main.name, self._store.waiting(namespace, main.queue))

        what = ("line", namespace, main.name, main.uid, main.queue)
        return await self._known.lately(what, _SECONDS, ask)

    async def _priority(self, effective: Effective) -> QueuePriority:
        """As Kueue has it for a job: the class of its own kind, else that of the pods, else 0."""
        scheduling = effective.spec.scheduling
        if scheduling.workload_priority_class is not None:
            field, kind = "workloadPriorityClass", "WorkloadPriorityClass"
            name, group = scheduling.workload_priority_class, "kueue.x-k8s.io"
        elif scheduling.priority_class is not None:
            field, kind = "priorityClass", "PriorityClass"
            name, group = scheduling.priority_class, "scheduling.k8s.io"
        else:
            return QueuePriority()

        async def ask() -> QueuePriority:
            found = await self._api.find(kind, None, name)
            if found is None:
                return QueuePriority(missing=f"spec.scheduling.{field}: there is no {kind} {name!r}")
            value = found.get("value")
            reference = {"group": group, "kind": kind, "name": name}
            return QueuePriority(value if isinstance(value, int) else 0, reference)

        return await self._known.lately((kind, name), _SECONDS, ask)

    async def _flavor(self, name: str) -> Flavor | None:
        async def ask() -> Flavor | None:
            found = await self._api.find("ResourceFlavor", None, name)
            return parse_flavor(found) if found is not None else None

        return await self._known.lately(("ResourceFlavor", name), _SECONDS, ask)

    def _whom(self, namespace: str, main: Workload) -> str:
        """For whom the quota was taken: by name in the run's own namespace, else by namespace."""
        said = PREEMPTOR.search(main.evicted.message) if main.evicted is not None else None
        place = self._store.workload_of(said["uid"]) if said is not None else None
        if place is None:
            return ""
        return f"Workload {place[1]}" if place[0] == namespace else f"a workload of namespace {place[0]}"
