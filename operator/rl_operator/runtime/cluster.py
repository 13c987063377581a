"""Seeing and acting on one run: the store, a few reads of what is not watched, and the writes of a decision."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from rl_api.progress import Condition
from rl_operator.decide.queueing import STOPPED
from rl_operator.decide.status import known_status
from rl_operator.decide.unreadable import condition_patch
from rl_operator.kube.apply import bring
from rl_operator.kube.cache import Key, Store
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError, version_of
from rl_operator.model.decision import Decision, Scale
from rl_operator.model.names import API_VERSION, HASH_ANNOTATION, KIND, Manifest, secret_name
from rl_operator.model.parse import parse_event
from rl_operator.model.seen import Event, Live, Pod, Ray, SamplerGroup, World
from rl_operator.model.settings import FINALIZER, Settings
from rl_operator.model.times import parse_time
from rl_operator.plan.effective import Effective, Plan, plan
from rl_operator.render.config import TOKEN_KEY
from rl_operator.render.event import run_event
from rl_operator.runtime.memory import Memory

LOG = logging.getLogger("rl_operator")

_EVENTS_SECONDS: Final = 5.0
_CLAIM_SECONDS: Final = 4.0
_KUEUE_SECONDS: Final = 10.0
_SCALE_SECONDS: Final = 20.0


class NameTaken(Exception):
    """An object with a name that we need belongs to somebody else. The message is a sentence."""


class Cluster:
    """The cluster, as far as runs go."""

    def __init__(self, api: Api, store: Store, settings: Settings) -> None:
        self.api, self.store, self.settings = api, store, settings
        self._kueue: tuple[float, bool] | None = None
        self._known_events: dict[tuple[str, str], tuple[float, list[Event]]] = {}

    def plan(self, run: Manifest, memory: Memory) -> Plan:
        """The run with its profile; made anew only when one of them has changed."""
        # Not its generation: a null that is applied anew changes an annotation alone.
        key = (run["metadata"].get("uid"), run.get("spec"), self.store.profiles_version())
        if memory.plan is None or memory.plan_of != key:
            memory.plan, memory.plan_of = plan(run, self.store.profiles(), self.settings), key
        return memory.plan

    async def observe(self, key: Key, memory: Memory) -> World | None:
        """Everything that decides about a run; None: it is gone.

        Raises:
            ApiError: something could not be read.
        """
        run = self.store.run(key)
        if run is None:
            return None
        world = self._from_store(key, run, memory)
        status = known_status(run)
        open_attempt = next((one for one in status.attempts if one.end_time is None), None)
        if await self._unsure(world, open_attempt.number if open_attempt else 0):
            await self._look_again(key)
            world = self._from_store(key, run, memory)
        over = {condition.type for condition in status.conditions if condition.status == "True"}
        if over & {"Succeeded", "Failed"}:
            return world
        changes: dict[str, Any] = {"kuberay": self.store.serves("RayJob")}
        if memory.token is None and status.attempts:  # before the first one there is no Secret yet
            memory.token = await self._token(key, memory.uid)
        changes["token"], changes["new_token"] = memory.token, secrets.token_urlsafe(32)
        current = self.plan(run, memory)
        if open_attempt is None and isinstance(current, Effective) and current.claim is not None:
            changes["claim_exists"] = await self._claim_exists(key, current.claim, memory)
        if any(ray.held for ray in world.rays):
            changes["kueue"] = await self.kueue()
        ready = any(one.type == "ClusterReady" and one.reason == "Ready" for one in status.conditions)
        if world.rays and (not ready or any(ray.held for ray in world.rays)):
            changes["events"] = await self._said(key, world)
            changes["log_tail"] = await self._logs(key, world.pods, memory)
        return replace(world, **changes)

    def _from_store(self, key: Key, run: Manifest, memory: Memory) -> World:
        rays: list[Ray] = []
        pods: list[Pod] = list(self.store.ended_pods(key))
        live: dict[tuple[str, str], Live] = {}
        groups: dict[str, SamplerGroup] = {}
        for name, seen in self.store.of_run(key):
            if isinstance(seen.view, Pod):
                pods.append(seen.view)
            elif isinstance(seen.view, SamplerGroup):
                groups[seen.view.owner] = seen.view
            elif isinstance(seen.view, Ray) and seen.owner == memory.uid:
                rays.append(seen.view)
            elif isinstance(seen.view, Live) and seen.owner == memory.uid:
                live[seen.kind, name] = seen.view
        # Pods of an earlier run of this name belong to none of this one's attempts, and are waited for.
        born = parse_time(run["metadata"].get("creationTimestamp"))
        pods = [
            replace(pod, attempt=0) if born and pod.created and pod.created < born else pod for pod in pods
        ]
        return World(
            run=run,
            rays=tuple(replace(ray, samplers=groups.get(ray.uid, ray.samplers)) for ray in rays),
            pods=tuple(pods),
            live=live,
            reading=memory.reading,
            reading_error=memory.reading_error,
            ask=memory.ask,
            refusal=memory.refusal,
            scale_refusal=memory.scale_refusal,
        )

    async def _unsure(self, world: World, attempt: int) -> bool:
        """Whether what the watches say would end an attempt, so that it is worth another look: watches may lag."""
        if not attempt:
            return False
        ray = world.ray(attempt)
        return ray is None or (ray.submitted and world.head(attempt) is None)

    async def _look_again(self, key: Key) -> None:
        """Read RayJobs, RayClusters and pods of a run past the watches."""
        namespace, name = key
        labels = f"rltrain.dev/run={name}"
        for kind in ("RayJob", "RayCluster", "Pod"):
            try:
                for document in await self.api.list(kind, namespace, labels=labels):
                    self.store.put(document)
            except ApiError as error:
                if not error.missing:  # no KubeRay
                    raise

    async def _token(self, key: Key, uid: str) -> str | None:
        found = await self.api.find("Secret", key[0], secret_name(key[1]))
        if found is None or not _owned(found, uid):
            return None
        try:
            return (
                base64.b64decode((found.get("data") or {}).get(TOKEN_KEY, ""), validate=True).decode() or None
            )
        except (binascii.Error, UnicodeDecodeError):
            return None

    async def _claim_exists(self, key: Key, claim: str, memory: Memory) -> bool:
        now = time.monotonic()
        known = memory.claim
        if known is None or known[1] != claim or now - known[0] > _CLAIM_SECONDS:
            found = await self.api.find("PersistentVolumeClaim", key[0], claim)
            known = memory.claim = (now, claim, found is not None)
        return known[2]

    async def _said(self, key: Key, world: World) -> tuple[Event, ...]:
        """Events about the run's objects, newest first: warnings, and why a queue has stopped them."""
        found = await self._events(key[0], "type=Warning")
        if any(ray.held for ray in world.rays):
            found = [*found, *await self._events(key[0], f"reason={STOPPED}")]
        names = {ray.name for ray in world.rays} | {ray.cluster for ray in world.rays}
        names |= {pod.name for pod in world.pods}
        return tuple(event for event in found if event.name in names)

    async def _events(self, namespace: str, fields: str) -> list[Event]:
        """Events of a namespace, newest first. One request for all of its runs."""
        now, oldest = time.monotonic(), datetime.min.replace(tzinfo=UTC)
        known = self._known_events.get((namespace, fields))
        if known is None or now - known[0] > _EVENTS_SECONDS:
            found = await self.api.list("Event", namespace, fields=fields)
            events = sorted(map(parse_event, found), key=lambda event: event.time or oldest, reverse=True)
            fresh = {key: one for key, one in self._known_events.items() if now - one[0] <= _EVENTS_SECONDS}
            known = (now, events)
            self._known_events = fresh | {(namespace, fields): known}
        return known[1]

    async def _logs(self, key: Key, pods: Iterable[Pod], memory: Memory) -> dict[str, str]:
        """Last log lines of containers that crash again and again, read once per crash."""
        tails: dict[str, str] = {}
        for pod in pods:
            for container in pod.containers:
                if pod.gone or container.waiting != "CrashLoopBackOff":
                    continue
                crash = (pod.uid, container.restarts)
                if crash not in memory.logs:
                    memory.logs[crash] = await self.api.log_tail(key[0], pod.name, container.name)
                tails[pod.name] = memory.logs[crash]
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
            await _all([self._create(manifest, memory) for manifest in first])
            await self._create(last, memory)
        for manifest in decision.apply:
            live = world.live[manifest["kind"], manifest["metadata"]["name"]]
            self.store.put(await bring(self.api, manifest, live.uid))
        for target in decision.delete:
            await self.api.delete(target.kind, namespace, target.name, target.uid)
        if decision.scale is not None:
            await self._scale(namespace, decision.scale, memory)
        else:
            memory.scale_refusal = ""

    async def tell(self, world: World, decision: Decision) -> None:
        """Write the finalizer, the events and the status; raises ApiError as `make` does.

        The finalizer is there for a last checkpoint, which a RayJob that was just made has none to give: it need not wait
        for it, and a run that is deleted in between takes its RayJob along. Events come before the status: an operator that
        is killed between the two decides the same again, and what is there already is not written twice. The other way
        round it would be lost.
        """
        attempt = decision.status.attempts[-1].number if decision.status.attempts else 0
        events = [run_event(world.metadata, note, attempt, datetime.now(UTC)) for note in decision.notes]
        work: list[Any] = [self._note(event) for event in events]
        version = version_of(dict(world.run))
        if decision.finalizer:
            version, *_ = await _all([self._add_finalizer(world), *work])
        else:
            await _all(work)
        try:
            await self._write_status(world, decision, version)
            if decision.finalizer is False:
                await self._remove_finalizer(world)
        except ApiError as error:
            if not error.missing:  # it is gone: nobody needs to be told any more
                raise

    async def _create(self, manifest: Manifest, memory: Memory) -> None:
        """Create an object of the run; one that is there already is taken only if it is the run's own."""
        kind, metadata = manifest["kind"], manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        for _ in range(2):
            try:
                made = await self.api.apply(manifest, new=True)
            except ApiError as error:
                if not error.conflict:
                    raise
                made = await self.api.get(kind, namespace, name)
                if not _owned(made, memory.uid):
                    raise NameTaken(
                        f"the run needs the name {name} for a {kind}, and there is one in namespace {namespace} "
                        "that is not its own; delete that, or give the run another name"
                    ) from None
                stale = _hash(made) != _hash(manifest)
                if kind == "ConfigMap" and stale:  # of a begin that was cut short, and immutable
                    await self.api.delete(kind, namespace, name, made["metadata"]["uid"])
                    continue
                if kind not in ("ConfigMap", "Secret", "RayJob", "RayCluster"):
                    made = await bring(self.api, manifest, made["metadata"]["uid"])
            break
        if kind == "Secret":
            memory.token = base64.b64decode(made["data"][TOKEN_KEY]).decode()
        elif kind != "ConfigMap":
            self.store.put({**made, "kind": kind})

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
        namespace, name = _place(world)
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

    async def say(self, run: Manifest, condition: Condition) -> None:
        """Write one condition of a run whose status is otherwise left as it is.

        Raises:
            ApiError: it cannot be written, for now.
        """
        patch = condition_patch(run, condition)
        namespace, name = run["metadata"]["namespace"], run["metadata"]["name"]
        try:
            if patch:
                self.store.put(await self.api.patch(KIND, namespace, name, patch, "status"))
        except ApiError as error:
            if error.passing or error.conflict:
                raise
            LOG.warning("it cannot be shown: %s", error, extra={"namespace": namespace, "run": name})

    async def kueue(self) -> bool:
        """Whether the cluster has Kueue."""
        now = time.monotonic()
        if self._kueue is None or now - self._kueue[0] > _KUEUE_SECONDS:
            self._kueue = (now, await self.api.has_group("kueue.x-k8s.io"))
        return self._kueue[1]

    async def look_anew(self, key: Key, uid: str) -> bool:
        """After a conflict: see the run as it is now; whether it is still the one with this uid."""
        now = await self.api.find(KIND, *key)
        if now is None or now["metadata"].get("uid") != uid:
            return False  # the watch tells of its end, and of another one of its name
        self.store.put(now)
        return True

    async def _note(self, event: Manifest) -> None:
        """Write an event about a run."""
        try:
            await self.api.apply(event, new=True)
        except ApiError as error:
            # A namespace that is being deleted takes no events, and one that is there is enough.
            if error.passing:
                raise
            if error.status not in (403, 404, 409):
                about = {key: event["metadata"][key] for key in ("namespace", "name")}
                LOG.warning("an event cannot be written: %s", error, extra=about)


async def _all(work: list[Any]) -> list[Any]:
    """Wait for all, then raise the first error: none is left behind in the background."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _place(world: World) -> Key:
    return str(world.metadata["namespace"]), str(world.metadata["name"])


def _identity(world: World, version: int = 0) -> Manifest:
    """The run, as something to apply to: this very one, and as it was at `version` (that of the look)."""
    metadata = {key: world.metadata[key] for key in ("name", "namespace", "uid")}
    metadata["resourceVersion"] = str(version) if version else world.metadata["resourceVersion"]
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


def _owned(document: Mapping[str, Any], uid: str) -> bool:
    owners = document["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid for owner in owners)


def _hash(document: Mapping[str, Any]) -> str:
    return str((document["metadata"].get("annotations") or {}).get(HASH_ANNOTATION, ""))


__all__ = ["Cluster", "NameTaken"]
