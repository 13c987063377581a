"""The loop of policy services: look, decide, act. It shares the watches of runs and their ledger, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from rl_api.base import API_VERSION
from rl_api.service_status import ReplicasStatus
from rl_operator.decide.diagnose import one_line
from rl_operator.decide.room import held_by_service, waits
from rl_operator.decide.service import known_service_status, reconcile_service
from rl_operator.drivers.client import Drivers
from rl_operator.kube.apply import bring, change
from rl_operator.kube.cache import place_of
from rl_operator.kube.own import NameTaken, create_owned, every, refusal_of, write_event
from rl_operator.kube.services import ServiceStore
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import SERVICE_KIND, Key, Manifest
from rl_operator.model.parse import parse_gateway
from rl_operator.model.service import Gateway, ServiceDecision, ServiceWorld
from rl_operator.model.settings import Settings
from rl_operator.plan.service import EffectiveService, ServicePlan, follow, plan_service
from rl_operator.render.event import event_of
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.controls import Controls, Heard, about_service
from rl_operator.runtime.failing import back_off, say_failed
from rl_operator.runtime.ledger import Holder, Ledger, made_at
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.metrics import Metrics, Service
from rl_operator.runtime.work_queue import WorkQueue

LOG = logging.getLogger("rl_operator")

_RECONCILE_SECONDS: Final = 60.0


@dataclass
class _Memory:
    """What is known of a service besides what the API server holds. Losing it costs a few requests, nothing else."""

    uid: str
    heard: Heard = field(default_factory=Heard)
    failures: int = 0
    fault: str = ""
    logs: dict[tuple[str, int], str] = field(default_factory=dict)
    run: Memory = field(default_factory=lambda: Memory(""))
    """The plan of the followed run, which is made anew only when it has changed."""


class Services:
    """Keeps all policy services going."""

    def __init__(
        self,
        cluster: Cluster,
        drivers: Drivers,
        settings: Settings,
        metrics: Metrics,
        ledger: Ledger,
        begins: Callable[[Iterable[Holder]], None],
    ) -> None:
        """Prepare; `run` begins.

        Args:
            cluster: where runs and profiles are, and the API server.
            drivers: carries requests to the services' controls.
            settings: of the operator.
            metrics: what is counted.
            ledger: who holds what, runs and services.
            begins: has those looked at whose turn it may be.
        """
        self.cluster, self.settings, self.metrics = cluster, settings, metrics
        self._controls = Controls(drivers, lambda: cluster.key)
        self.api, self.store = cluster.api, ServiceStore()
        self.ledger, self._begins = ledger, begins
        self.queue = WorkQueue()
        self._memory: dict[Key, _Memory] = {}

    # -- what is seen --------------------------------------------------------------------------------------------

    def seen(self, change: str, document: Manifest) -> None:
        """A watch saw an object of services: it is there, or was DELETED."""
        if change == "DELETED":
            uid = str(document["metadata"].get("uid", ""))
            self.wake(self.store.drop(document["kind"], place_of(document), uid))
        else:
            self.wake(self.store.put(document))

    def listed(self, kind: str, namespace: str | None, there: Collection[str] | None, version: int) -> None:
        """A watch has listed everything of a kind."""
        self.wake(self.store.listed(kind, namespace, there, version))

    def run_changed(self, key: Key) -> None:
        """A run has changed, or is gone."""
        self.wake(self.store.following(key))

    def profiles_changed(self) -> None:
        """A profile has changed."""
        self.wake(self.store.services())

    def take_down(self) -> None:
        """What services hold and which of them wait, as the API server has it, before anything is decided."""
        for key in self.store.services():
            service = self.store.service(key)
            if service is None:
                continue
            world = self._there(key, service)
            if world.ray is not None or waits(known_service_status(service).conditions):
                planned = plan_service(service, self.cluster.store.profiles(), self.settings)
                self._note(key, world, planned)

    def shown(self) -> dict[Key, Service]:
        """What metrics say of each service."""
        found = {}
        for key in self.store.services():
            status = known_service_status(self.store.service(key) or {})
            copies = status.replicas or ReplicasStatus()
            found[key] = Service(status.phase or "Pending", copies.ready, copies.desired)
        return found

    def wake(self, keys: Iterable[Key]) -> None:
        """Have these looked at."""
        for key in keys:
            self.queue.add(key)

    # -- the loop ------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Work on one service after the other, until cancelled."""
        while True:
            key = await self.queue.get()
            try:
                await self.attend(key)
            finally:
                self.queue.done(key)

    async def attend(self, key: Key) -> None:
        """Reconcile one service; what goes wrong is counted and said, and it is tried again later."""
        try:
            async with asyncio.timeout(_RECONCILE_SECONDS):
                await self.reconcile(key)
            if (memory := self._memory.get(key)) is not None:
                memory.failures, memory.fault = 0, ""
        except (ApiError, NameTaken, TimeoutError) as error:
            reason = error.reason if isinstance(error, ApiError) else type(error).__name__
            self._failed(key, reason, str(error) or f"no end after {_RECONCILE_SECONDS:g} s")
        except Exception as error:  # a fault of ours, or an object that nobody thought of: others go on
            memory = self._memory.setdefault(key, _Memory(""))
            why = one_line(f"unexpected {type(error).__name__}: {error}", 300)
            if memory.fault != why:
                LOG.error("a reconcile of a service failed", exc_info=error, extra=about_service(key))
            memory.fault = why
            self._failed(key, "Unexpected", why)

    def _failed(self, key: Key, reason: str, sentence: str) -> None:
        self.metrics.errors.labels(reason).inc()
        memory = self._memory.setdefault(key, _Memory(""))
        memory.failures += 1
        wait = back_off(memory.failures)
        say_failed(reason, sentence, wait, about_service(key))
        self.queue.add_after(key, wait)

    async def reconcile(self, key: Key) -> None:
        """Look at one service, decide, act.

        Raises:
            ApiError: the API server did not do its part.
            NameTaken: an object's name is used by somebody else.
        """
        service = self.store.service(key)
        if service is None:
            self._memory.pop(key, None)
            self._begins(self.ledger.forget(_holder(key)))
            self.queue.forget(key)
            return
        uid = str(service["metadata"].get("uid", ""))
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            memory = self._memory[key] = _Memory(uid)
        labels = await self.cluster.labels(key[0])
        planned = plan_service(service, self.cluster.store.profiles(), self.settings, labels)
        world = await self._observe(key, service, planned, labels, memory)
        try:
            await self._act(key, world, planned, memory)
        except (ApiError, NameTaken) as error:
            # The API server does not take an object: the status says so, which is what people look at.
            if why := refusal_of(error):
                there = self._there(key, service)  # some of it may have been made
                world = replace(world, ray=there.ray, asked=there.asked, refusal=why)
                await self._tell(world, self._decide(key, world, planned))
            raise

    def _decide(self, key: Key, world: ServiceWorld, planned: ServicePlan) -> ServiceDecision:
        """What is to be done: nothing is waited for until the ledger has it."""
        others = self.ledger.others(_holder(key), planned.profile_name, made_at(world.service))
        decision = reconcile_service(replace(world, others=others), _now(), planned)
        self._note(key, world, planned, decision)
        return decision

    def _note(
        self, key: Key, world: ServiceWorld, planned: ServicePlan, decision: ServiceDecision | None = None
    ) -> None:
        profile, needs = held_by_service(world, planned, decision)
        status = decision.status if decision is not None else known_service_status(world.service)
        # One that is being deleted waits for nothing, whoever holds it there.
        waiting = made_at(world.service) if waits(status.conditions) and world.deleted is None else None
        self._begins(self.ledger.note(_holder(key), profile, needs, waiting))

    async def _act(self, key: Key, world: ServiceWorld, planned: ServicePlan, memory: _Memory) -> None:
        decision = self._decide(key, world, planned)
        if decision.wish is not None and world.ray is not None:
            await self._controls.bring(key, memory.uid, world, decision.wish)
        for manifest in decision.create:
            made = await create_owned(self.api, manifest, memory.uid, "service")
            if made is not None and manifest["kind"] != "Secret":
                self.store.put({**made, "kind": manifest["kind"]})
        for manifest in decision.apply:
            live = world.live[manifest["kind"], manifest["metadata"]["name"]]
            self.store.put({**await bring(self.api, manifest, live.uid), "kind": manifest["kind"]})
        if decision.change:
            made = await change(self.api, "RayService", *key, list(decision.change))
            self.store.put({**made, "kind": "RayService"})
        if decision.scale is not None:
            cluster = decision.scale.group.cluster
            made = await self.api.patch("RayCluster", key[0], cluster, decision.scale.patch)
            self.store.put({**made, "kind": "RayCluster"})
        await self._tell(world, decision)
        self.queue.add_after(key, decision.requeue)

    async def _tell(self, world: ServiceWorld, decision: ServiceDecision) -> None:
        """Write events and status. Events come first: what is there already is not written twice."""
        metadata, now = world.metadata, datetime.now(UTC)
        notes = decision.notes
        await every([write_event(self.api, event_of(metadata, note, 0, now, SERVICE_KIND)) for note in notes])
        old = known_service_status(world.service)
        if old == decision.status and world.service.get("status"):
            return
        manifest: Manifest = {
            "apiVersion": API_VERSION,
            "kind": SERVICE_KIND,
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid", "resourceVersion")},
            "status": decision.status.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
        try:
            made = await self.api.apply(manifest, "status")
        except ApiError as error:
            if error.missing:  # it is gone: nobody needs to be told any more
                return
            raise
        self.store.put({**made, "kind": SERVICE_KIND})
        for note in notes:
            LOG.info("%s: %s", note.reason, note.message, extra=about_service(place_of(world.service)))
        for one in decision.status.promotions:
            if one not in old.promotions:
                name = {"rolledBack": "rolled_back"}.get(one.result, one.result)
                self.metrics.promotions.labels(metadata["namespace"], metadata["name"], name).inc()

    # -- what there is -------------------------------------------------------------------------------------------

    def _there(self, key: Key, service: Manifest) -> ServiceWorld:
        """What the watches have seen."""
        uid = str(service["metadata"].get("uid", ""))
        ray = self.store.ray(key, uid)
        pods = list(self.store.pods(key, ray.uid)) if ray is not None else []
        return ServiceWorld(
            service=service,
            ray=ray,
            pods=tuple(pod for pod, _ in pods),
            clusters={pod.name: cluster for pod, cluster in pods},
            groups=self.store.groups(key, ray.uid) if ray is not None else {},
            live=dict(self.store.live(key, uid)),
            key=self.cluster.key,
            dra=self.store.serves("ResourceClaimTemplate"),
            kuberay=self.store.serves("RayService"),
            followed=known_service_status(service).followed,
            asked=self.store.asked(key, ray.uid) if ray is not None else (),
        )

    async def _observe(
        self,
        key: Key,
        service: Manifest,
        planned: ServicePlan,
        labels: dict[str, str] | None,
        memory: _Memory,
    ) -> ServiceWorld:
        world = self._there(key, service)
        ray = world.ray
        if not isinstance(planned, EffectiveService):
            return world
        name = planned.spec.source.run
        if name is not None:
            run = self.cluster.store.run((key[0], name))
            memory.run.labels = labels
            carried = self.cluster.plan(run, memory.run) if run is not None else None
            followed, lost = follow(name, run, carried, world.followed)
            why = (lost.reason, lost.message) if lost is not None else None
            world = replace(world, followed=followed, lost=why)
        if ray is None:
            return world
        await self._controls.ask(key, memory.uid, ray, world, name, memory.heard)
        if not ray.ready or any(not pod.ready for pod in world.pods):
            names = {pod.name for pod in world.pods} | {ray.name, ray.active, ray.pending}
            events = await self.cluster.events(key[0], "type=Warning")
            tails = await self.cluster.crash_logs(key[0], world.pods, memory.logs)
            world = replace(world, events=tuple(one for one in events if one.name in names), log_tail=tails)
        if planned.spec.promotion.incremental is not None:
            await self._controls.ask_coming(key, memory.uid, ray, world, name, memory.heard)
            world = replace(world, gateway=await self._gateway(key))
        heard = memory.heard
        return replace(world, control=heard.control, control_error=heard.error, coming=heard.coming)

    async def _gateway(self, key: Key) -> Gateway | None:
        """What KubeRay has made to bring requests to both clusters of a service."""
        try:
            found = await self.api.find("Gateway", key[0], f"{key[1]}-gateway")
        except ApiError as error:
            if error.passing:
                raise
            return Gateway(problem=str(error))  # the service goes on without it
        return parse_gateway(found) if found is not None else None


def _holder(key: Key) -> Holder:
    return Holder(*key, SERVICE_KIND)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
