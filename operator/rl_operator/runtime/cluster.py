"""Seeing and acting on one run: the store, a few reads of what is not watched, and the writes of a decision."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from rl_api.base import API_VERSION
from rl_api.progress import Condition
from rl_operator.decide.look import attributed, known_status
from rl_operator.decide.queueing import STOPPED
from rl_operator.decide.unreadable import condition_patch
from rl_operator.kube.apply import bring
from rl_operator.kube.boost import boost_manager, write_boost
from rl_operator.kube.cache import WATCHED, Store, place_of
from rl_operator.kube.client import Api
from rl_operator.kube.own import create_owned, delete_owned, every, write_event
from rl_operator.kube.wire import KINDS, ApiError, version_of
from rl_operator.kube.workloads import tell_queue
from rl_operator.model.decision import Boost, Decision, Scale
from rl_operator.model.gangs import POD_GROUPS, pod_group_name, version_of_kind
from rl_operator.model.names import KIND, Key, Manifest, earlier_secret_name
from rl_operator.model.parse import parse_event
from rl_operator.model.seen import Claim, Event, Live, Pod, Ray, WorkerGroup, World
from rl_operator.model.settings import FINALIZER, Settings
from rl_operator.model.times import parse_time
from rl_operator.model.tokens import STATUS_SERVER, derive_token
from rl_operator.model.workload import Workload
from rl_operator.plan.effective import Effective, Plan, plan
from rl_operator.plan.planned import planned_of
from rl_operator.plan.prior import has_begun
from rl_operator.plan.profile import goes_by_labels
from rl_operator.render.event import event_of
from rl_operator.runtime.earlier import earlier_token
from rl_operator.runtime.known import Known
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.queues import Queues

LOG = logging.getLogger("rl_operator")

T = TypeVar("T")

_PLANS_KEPT: Final = 1 << 13
"""Bytes of a spec whose plan, which is many times as large, is remembered until the next look."""
_EVENTS_SECONDS: Final = 5.0
_CLAIM_SECONDS: Final = 4.0
_KUEUE_SECONDS: Final = 10.0
_GANG_SECONDS: Final = 10.0
_LABELS_SECONDS: Final = 30.0
_SECRET_SECONDS: Final = 60.0
_SCALE_SECONDS: Final = 20.0


class Cluster:
    """The cluster, as far as runs go."""

    def __init__(self, api: Api, store: Store, settings: Settings) -> None:
        self.api, self.store, self.settings = api, store, settings
        self.key = b""
        """The operator's, from which tokens of attempts are derived (`rl_operator.runtime.key`)."""
        self._known = Known()
        self._queues = Queues(api, store, self._known, settings.namespace)

    def plan(self, run: Mapping[str, Any], memory: Memory) -> Plan:
        """The run with its profile; made anew only when one of them has changed, or when it would be much to keep."""
        key, size = self._plan_key(run, memory)
        if memory.plan is not None and memory.plan_of == key:
            return memory.plan
        made = plan(run, self.store.profiles(), self.settings, memory.labels)
        _keep(memory, made, key, size)
        return made

    async def thought_out(self, run: Mapping[str, Any], memory: Memory) -> Plan:
        """The same. Of a run that has not begun its placement may have to be simulated, in seconds of a processor: other
        runs do not wait for that."""
        key, size = self._plan_key(run, memory)
        if has_begun(run) or memory.plan_of == key:
            return self.plan(run, memory)
        made = await asyncio.to_thread(plan, run, self.store.profiles(), self.settings, memory.labels)
        _keep(memory, made, key, size)
        return made

    def _plan_key(self, run: Mapping[str, Any], memory: Memory) -> tuple[tuple[Any, ...], int]:
        """What a plan follows from, and bytes of its spec."""
        # Not its generation: a null that is applied anew changes an annotation alone.
        planned = planned_of(run)
        given = planned.to_document() if planned is not None else None
        spec = json.dumps([run.get("spec"), run.get("wrong"), given, has_begun(run)]).encode()
        digest = hashlib.sha256(spec).digest()
        return (run["metadata"].get("uid"), digest, self.store.profiles_version(), memory.labels), len(spec)

    async def observe(self, key: Key, run: Manifest, memory: Memory) -> World:
        """Everything that decides about a run; raises ApiError where something could not be read."""
        memory.labels = await self.labels(key[0])
        world = self.known(key, run, memory)
        status = known_status(run)
        open_attempt = next((one for one in status.attempts if one.end_time is None), None)
        if open_attempt is not None and world.unsure(open_attempt.number, status):
            await self._look_again(key)
            world = self.known(key, run, memory)
        over = {condition.type for condition in status.conditions if condition.status == "True"}
        if over & {"Succeeded", "Failed"}:
            return world
        changes: dict[str, Any] = {
            "kuberay": self.store.serves("RayJob"),
            "dra": self.store.serves("ResourceClaimTemplate"),
        }
        memory.token, changes["unasked"] = await self._token(key, world, memory.uid)
        current = await self.thought_out(run, memory)
        begins = open_attempt is None or not world.rays
        if begins and isinstance(current, Effective):
            names = set(current.claims.values())
            changes["claims"] = {name: await self._claim(key[0], name) for name in sorted(names)}
        if begins and isinstance(current, Effective) and current.profile.gang is not None:
            changes["pod_group"] = await self._pod_group(POD_GROUPS.get(current.profile.gang.scheduler, ()))
        if isinstance(current, Effective) and current.queued:
            changes |= await self._queues.of_run(key, current, world)
        if any(ray.held and ray.labelled for ray in world.rays):
            changes["kueue"] = await self._known.lately(
                ("kueue",), _KUEUE_SECONDS, lambda: self.api.has_group("kueue.x-k8s.io")
            )
        ready = any(one.type == "ClusterReady" and one.reason == "Ready" for one in status.conditions)
        if world.rays and (not ready or any(ray.held for ray in world.rays)):
            changes["events"] = await self._said(key, world)
            changes["log_tail"] = await self.crash_logs(key[0], world.pods, memory.logs)
        return replace(world, **changes)

    def known(self, key: Key, run: Manifest, memory: Memory) -> World:
        """What the store holds of a run."""
        rays: list[Ray] = []
        pods: list[Pod] = list(self.store.ended_pods(key))
        live: dict[tuple[str, str], Live] = {}
        workloads: list[Workload] = []
        groups: dict[tuple[str, str], WorkerGroup] = {}
        for name, seen in self.store.of_run(key):
            if isinstance(seen.view, Pod):
                pods.append(seen.view)
            elif isinstance(seen.view, WorkerGroup):
                groups[seen.view.owner, seen.view.cluster] = seen.view
            elif isinstance(seen.view, Ray) and seen.owner == memory.uid:
                rays.append(seen.view)
            elif isinstance(seen.view, Live) and seen.owner == memory.uid:
                live[seen.kind, name] = seen.view
            elif isinstance(seen.view, Workload) and seen.owner == memory.uid:
                workloads.append(seen.view)
                live[seen.kind, name] = Live(seen.view.uid, seen.view.hash, {})
        rays = [
            replace(
                ray,
                samplers=groups.get((ray.uid, ray.cluster), ray.samplers),
                cluster_uid=ray.cluster_uid
                or self.store.uid_of("RayCluster", (key[0], ray.cluster), ray.uid),
            )
            for ray in rays
        ]
        born = parse_time(run["metadata"].get("creationTimestamp"))
        cordoned = {pod.node: why for pod in pods if (why := self.store.cordoned(pod.node))}
        return World(
            run=run,
            rays=tuple(rays),
            pods=attributed(pods, rays, born),
            live=live,
            workloads=tuple(workloads),
            cordoned=cordoned,
            reading=memory.reading,
            reading_error=memory.reading_error,
            key=self.key,
            ask=memory.ask,
            refusal=memory.refusal,
            scale_refusal=memory.scale_refusal,
        )

    async def _look_again(self, key: Key) -> None:
        """Read RayJobs, RayClusters, pods and Workloads of a run past the watches."""
        namespace, name = key
        labels = f"rltrain.dev/run={name}"
        for kind in ("RayJob", "RayCluster", "Pod", "Workload"):
            try:
                for document in await self.api.list(kind, namespace, labels=labels):
                    self.store.put(document)
            except ApiError as error:
                if not error.missing:  # no KubeRay, or no Kueue
                    raise

    async def _token(self, key: Key, world: World, uid: str) -> tuple[str | None, str]:
        """The token that the driver of the newest attempt wants, and why there is none, if that should be said."""
        ray = max(world.rays, key=lambda ray: ray.attempt, default=None)
        if ray is None:
            return None, ""
        if ray.secret != earlier_secret_name(key[1]):
            return derive_token(self.key, uid, ray.attempt, STATUS_SERVER), ""
        what = ("token", *key, uid)
        return await self._known.lately(what, _SECRET_SECONDS, lambda: earlier_token(self.api, key, uid))

    async def _claim(self, namespace: str, claim: str) -> Claim:
        """Whether a claim is there, its storage class, and whether several nodes can write to it."""

        async def ask() -> Claim:
            found = await self.api.find("PersistentVolumeClaim", namespace, claim)
            spec = (found or {}).get("spec") or {}
            shared = "ReadWriteMany" in (spec.get("accessModes") or ())
            return Claim(found is not None, spec.get("storageClassName"), shared)

        return await self._known.lately(("claim", namespace, claim), _CLAIM_SECONDS, ask)

    async def _pod_group(self, kinds: tuple[str, ...]) -> str:
        """The first of these kinds of PodGroup that the cluster knows; empty: none."""
        for kind in kinds:
            group, version = version_of_kind(kind)
            ask = partial(self.api.has_group, group, version, KINDS[kind].plural)
            if await self._known.lately(("gang", kind), _GANG_SECONDS, ask):
                return kind
        return ""

    async def labels(self, namespace: str) -> dict[str, str] | None:
        """Labels of a namespace, which are asked for where a profile goes by them."""
        if not goes_by_labels(self.store.profiles()):
            return None

        async def ask() -> dict[str, str]:
            found = await self.api.find("Namespace", "", namespace)
            return dict(((found or {}).get("metadata") or {}).get("labels") or {})

        return await self._known.lately(("labels", namespace), _LABELS_SECONDS, ask)

    async def _said(self, key: Key, world: World) -> tuple[Event, ...]:
        """Events about the run's objects, newest first: warnings, and why a queue has stopped them."""
        found = await self.events(key[0], "type=Warning")
        if any(ray.held for ray in world.rays):
            found = [*found, *await self.events(key[0], f"reason={STOPPED}")]
        names = {ray.name for ray in world.rays} | {ray.cluster for ray in world.rays}
        names |= {pod.name for pod in world.pods}
        names |= {pod_group_name(ray.pod_group, ray.name) for ray in world.rays if ray.pod_group}
        return tuple(event for event in found if event.name in names)

    async def events(self, namespace: str, fields: str) -> list[Event]:
        """Events of a namespace, newest first. One request for all of its runs."""

        async def ask() -> list[Event]:
            pages = self.api.pages("Event", namespace, fields=fields)
            found = [parse_event(item) async for items, _ in pages for item in items]
            oldest = datetime.min.replace(tzinfo=UTC)
            return sorted(found, key=lambda event: event.time or oldest, reverse=True)

        return await self._known.lately(("events", namespace, fields), _EVENTS_SECONDS, ask)

    async def crash_logs(
        self, namespace: str, pods: Iterable[Pod], known: dict[tuple[str, int], str]
    ) -> dict[str, str]:
        """Last log lines of containers that crash again and again by pod, read once per crash, as is `known`."""
        tails: dict[str, str] = {}
        for pod in pods:
            for container in pod.containers:
                if pod.gone or container.waiting != "CrashLoopBackOff":
                    continue
                crash = (pod.uid, container.restarts)
                if crash not in known:
                    known[crash] = await self.api.log_tail(namespace, pod.name, container.name)
                tails[pod.name] = known[crash]
        return tails

    async def make(self, world: World, decision: Decision, memory: Memory) -> None:
        """Bring the run's objects to what was decided. It comes before `tell`: the status says only what is so.

        Raises:
            ApiError: a write failed; everything is tried again with the next reconcile.
            NameTaken: an object's name is used by somebody else.
        """
        namespace = str(world.metadata["namespace"])
        if decision.create:
            first, last = decision.create[:-1], decision.create[-1]
            await every([self._create(manifest, memory) for manifest in first])
            await self._create(last, memory)
        for manifest in decision.apply:
            live = world.live[manifest["kind"], manifest["metadata"]["name"]]
            self.store.put(await bring(self.api, manifest, live.uid))
        for target in decision.delete:
            await delete_owned(self.api, target, namespace, memory.uid)
        if decision.boost is not None and not decision.boost.value:
            await self._boost(namespace, decision.boost)  # it does not stand in its queue with one
        for change in decision.tell_queue:
            self.store.put(await tell_queue(self.api, namespace, change))
        if decision.scale is not None:
            await self._scale(namespace, decision.scale, memory)
        else:
            memory.scale_refusal = ""

    async def tell(self, world: World, decision: Decision) -> None:
        """Write the finalizer, the events, what an eviction would cost and the status; raises ApiError as `make` does.

        The finalizer is there for a last checkpoint, which a RayJob that was just made has none to give: it need not wait
        for it, and a run that is deleted in between takes its RayJob along. Events come before the status: an operator that
        is killed between the two decides the same again, and what is there already is not written twice. The other way
        round it would be lost.
        """
        if decision.boost is not None and decision.boost.value:
            await self._boost(str(world.metadata["namespace"]), decision.boost)
        attempt = decision.status.attempts[-1].number if decision.status.attempts else 0
        events = [event_of(world.metadata, note, attempt, datetime.now(UTC)) for note in decision.notes]
        work: list[Any] = [write_event(self.api, event) for event in events]
        version = version_of(world.run)
        if decision.finalizer:
            version, *_ = await every([self._add_finalizer(world), *work])
        else:
            await every(work)
        try:
            await self._write_status(world, decision, version)
            if decision.finalizer is False:
                await self._remove_finalizer(world)
        except ApiError as error:
            if not error.missing:  # it is gone: nobody needs to be told any more
                raise

    async def _create(self, manifest: Manifest, memory: Memory) -> None:
        made = await create_owned(self.api, manifest, memory.uid)
        if made is not None and manifest["kind"] in WATCHED:
            self.store.put({**made, "kind": manifest["kind"]})

    async def _boost(self, namespace: str, boost: Boost) -> None:
        """Say what an eviction would cost. Nothing else depends on it: a refusal is logged, no more."""
        try:
            manager = boost_manager(self.settings.namespace)
            self.store.put(await write_boost(self.api, namespace, boost, manager))
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            LOG.warning("a priority boost is refused: %s", error, extra={"namespace": namespace})

    async def _scale(self, namespace: str, wanted: Scale, memory: Memory) -> None:
        """Ask KubeRay for another number of samplers. Training does not depend on it: a refusal is shown, no more."""
        now = time.monotonic()
        if now < memory.scale_again:
            return
        try:
            made = await self.api.patch("RayCluster", namespace, wanted.group.cluster, wanted.patch)
        except ApiError as error:
            memory.scale_again = now + _SCALE_SECONDS
            if error.status not in (400, 403, 404, 409, 422):
                raise
            memory.scale_refusal = f"KubeRay cannot be asked for {wanted.replicas}: {error}"
        else:
            memory.scale_refusal = ""
            self.store.put({**made, "kind": "RayCluster"})

    async def _add_finalizer(self, world: World) -> int:
        """Our finalizer by server-side apply: others are left as they are. Returns the run's version after it."""
        manifest = _identity(world)
        manifest["metadata"]["finalizers"] = [FINALIZER]
        made = await self.api.apply(manifest)
        self.store.put(made)
        return version_of(made)

    async def _remove_finalizer(self, world: World) -> None:
        """Whoever put it there: that of a run made from the YAML of another belongs to who made it."""
        namespace, name = place_of(world.run)
        known = self.store.run((namespace, name)) or world.run
        finalizers: list[str] = known["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        where = f"/metadata/finalizers/{finalizers.index(FINALIZER)}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": world.metadata["uid"]},
            {"op": "test", "path": where, "value": FINALIZER},
            {"op": "remove", "path": where},
        ]
        self.store.put(await self.api.patch(KIND, namespace, name, operations))

    async def _write_status(self, world: World, decision: Decision, version: int) -> None:
        """Write the status of the run as it was looked at: of one that has changed since, another decision is made."""
        if known_status(world.run) == decision.status and world.run.get("status"):
            return
        manifest = _identity(world, version)
        manifest["status"] = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.store.put(await self.api.apply(manifest, "status"))

    async def say(self, run: Mapping[str, Any], condition: Condition) -> None:
        """Write one condition of a run whose status is otherwise left as it is.

        Raises:
            ApiError: it cannot be written, for now.
        """
        patch = condition_patch(run, condition)
        namespace, name = place_of(run)
        try:
            if patch:
                self.store.put(await self.api.patch(KIND, namespace, name, patch, "status"))
        except ApiError as error:
            if error.passing or error.conflict:
                raise
            LOG.warning("it cannot be shown: %s", error, extra={"namespace": namespace, "run": name})


def _identity(world: World, version: int = 0) -> Manifest:
    """The run, as something to apply to: this very one, and as it was at `version` (that of the look)."""
    metadata = {key: world.metadata[key] for key in ("name", "namespace", "uid")}
    metadata["resourceVersion"] = str(version) if version else world.metadata["resourceVersion"]
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


def _keep(memory: Memory, made: Plan, key: tuple[Any, ...], size: int) -> None:
    """Where it is not too much; `size`: bytes of its spec."""
    memory.plan, memory.plan_of = (made, key) if size <= _PLANS_KEPT else (None, None)
