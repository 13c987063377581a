"""The loop: a run's key from the queue, look, decide, act. One run's trouble is never another's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from rl_operator.decide.diagnose import one_line
from rl_operator.decide.look import IDLE, known_status
from rl_operator.decide.reconcile import reconcile
from rl_operator.decide.room import held, waits
from rl_operator.decide.status import news
from rl_operator.decide.unreadable import hands_off
from rl_operator.drivers.client import Drivers
from rl_operator.drivers.talks import Talks
from rl_operator.kube.cache import UNLABELLED, WATCHED, Store, figures_of_run, place_of
from rl_operator.kube.client import Api
from rl_operator.kube.own import NameTaken, refusal_of
from rl_operator.kube.services import SERVICE_KINDS, concerns_services
from rl_operator.kube.watch import Watch
from rl_operator.kube.wire import KINDS, ApiError
from rl_operator.model.decision import Decision
from rl_operator.model.names import KIND, MANAGED_SELECTOR, Key, Manifest
from rl_operator.model.seen import World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Plan
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.failing import back_off, say_failed
from rl_operator.runtime.ledger import Holder, Ledger, made_at
from rl_operator.runtime.memory import Memory
from rl_operator.runtime.metrics import Metrics
from rl_operator.runtime.services import Services
from rl_operator.runtime.work_queue import WorkQueue

LOG = logging.getLogger("rl_operator")

_OURS: Final = ("RLTrainingRun", "RLTrainingProfile", "RLPolicyService")
_RECONCILE_SECONDS: Final = 60.0
_PRIME_SECONDS: Final = 60.0
_SERVICE_WORKERS: Final = 8
"""Services that are looked at together."""
_AT_ONCE: Final = 3
"""So many conflicts in a row are each answered with a new look at once."""


class Controller:
    """Keeps all runs going."""

    def __init__(
        self, api: Api, settings: Settings, metrics: Metrics, namespaces: Iterable[str] = ()
    ) -> None:
        """Prepare; `run` begins. Only runs of these namespaces are kept going; none: of all."""
        self.api, self.settings, self.metrics = api, settings, metrics
        self.namespaces = tuple(namespaces)
        self.store = Store()
        self.cluster = Cluster(api, self.store, settings)
        self.drivers = Drivers(settings.driver_url, metrics.driver_called)
        self.queue = WorkQueue(metrics.queue_depth.set)
        self.watches = [
            Watch(
                api,
                self,
                kind,
                scope,
                "" if kind in UNLABELLED or kind in _OURS else MANAGED_SELECTOR,
                optional=kind == "Node",
            )
            for kind in (*WATCHED, *SERVICE_KINDS)
            for scope in (self.namespaces if KINDS[kind].namespaced else ()) or (None,)
        ]
        self.finished_at = time.monotonic()
        self.ledger = Ledger()
        self._memory: dict[Key, Memory] = {}
        self._unprimed: set[Key] | None = None
        """While everything is read for the first time: what was seen of it."""
        self._talks = Talks(self.drivers, self._heard, news)
        self.services = Services(self.cluster, self.drivers, settings, metrics, self.ledger, self._begins)

    async def prime(self) -> None:
        """Read everything once, so that no decision is made on half a picture; an API server that is starting itself is
        waited for.

        Raises:
            ApiError: something could not be read in time.
        """
        deadline, self._unprimed = time.monotonic() + _PRIME_SECONDS, set()
        for watch in self.watches:
            while True:
                try:
                    await watch.list()
                    break
                except ApiError as error:
                    if watch.optional and error.forbidden:
                        LOG.warning("runs are not moved away from nodes that are drained: %s", error)
                        break
                    if not error.passing or time.monotonic() > deadline:
                        raise
                    LOG.info("the cluster cannot be read yet: %s", error)
                await asyncio.sleep(1.0)
        for key in self.store.runs():
            self._take_down(key)
        self.services.take_down()
        # Only now is it known who goes first.
        keys, self._unprimed = self._unprimed, None
        self._wake(keys or ())

    def _take_down(self, key: Key) -> None:
        """What a run holds and whether it waits, as the API server has it, before anything is decided."""
        run = self.store.run(key)
        if run is None:
            return
        memory = self._memory_of(key, str(run["metadata"].get("uid", "")))
        world, status = self.cluster.known(key, run, memory), known_status(run)
        memory.made = bool(world.workloads)
        waiting = waits(status.conditions)
        if waiting or world.rays:
            plan = self.cluster.plan(run, memory)
            needs = held(world, status.attempts, plan)
            self.ledger.note(Holder(*key), _profile(world, plan), needs, made_at(run) if waiting else None)

    def seen(self, kind: str, change: str, document: Manifest) -> None:
        """A watch saw an object: it is there, or was DELETED."""
        document = document | {"kind": kind}
        try:
            if concerns_services(document):
                self.services.seen(change, document)
                return
            keys = self.store.drop(document) if change == "DELETED" else self.store.put(document)
        except Exception as error:  # an object that nobody thought of: the watch goes on with all others
            self.metrics.errors.labels("Unexpected").inc()
            LOG.error("a %s is disregarded: %s", kind, place_of(document), exc_info=error)
            return
        self._wake(keys)
        if kind == KIND:
            if change == "DELETED":
                self.metrics.run_deleted(place_of(document), figures_of_run(document))
            self.services.run_changed(place_of(document))
        elif kind == "RLTrainingProfile":
            self.services.profiles_changed()

    def listed(self, kind: str, namespace: str | None, there: set[str] | None, version: int) -> None:
        """A watch has listed everything of a kind."""
        if kind in SERVICE_KINDS or kind not in _OURS:
            self.services.listed(kind, namespace, there, version)
        if kind in WATCHED:
            self._wake(self.store.listed(kind, namespace, there, version))

    @property
    def watches_problem(self) -> str:
        """What is wrong with the watches, for the liveness probe."""
        return "; ".join(problem for watch in self.watches if (problem := watch.problem))

    def _wake(self, keys: Iterable[Key]) -> None:
        if self._unprimed is not None:
            self._unprimed.update(keys)
            return
        for key in keys:
            self.queue.add(key, urgent=self._is_urgent(key))

    def _heard(self, key: Key, seconds: float) -> None:
        """A driver has said something that wants to be seen in so many seconds."""
        if seconds > 0:
            self.queue.add_after(key, seconds)
        else:
            self._wake([key])

    def _begins(self, holders: Iterable[Holder]) -> None:
        """It may be their turn."""
        for holder in holders:
            if holder.kind == KIND:
                self._wake([holder.key])
            else:
                self.services.wake([holder.key])

    def _is_urgent(self, key: Key) -> bool:
        """Whether nothing was made for a run yet, it has quota and does not use it, or others wait for what it has."""
        memory = self._memory.get(key)
        is_new = self.store.begun(key) is False and not (memory is not None and memory.made)
        return is_new or self.store.may_begin(key) or self.store.gives_way(key)

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        self.queue.turns.places = workers
        self.services.queue.turns.places = _SERVICE_WORKERS
        work = [*(self._work() for _ in range(workers)), *(watch.run() for watch in self.watches)]
        work += [self.services.work() for _ in range(_SERVICE_WORKERS)]
        tasks = [asyncio.create_task(one) for one in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            self._talks.close()
            await self.drivers.close()

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            started = time.monotonic()
            try:
                await self.attend(key)
            finally:
                self.finished_at = time.monotonic()
                self.metrics.reconcile_seconds.observe(self.finished_at - started)
                self.queue.done(key)

    async def attend(self, key: Key) -> None:
        """Reconcile one run; what goes wrong is counted and said, and it is tried again later."""
        try:
            async with asyncio.timeout(_RECONCILE_SECONDS):
                await self.reconcile(key)
            if (memory := self._memory.get(key)) is not None:
                memory.failures = 0
        except (ApiError, NameTaken, TimeoutError) as error:
            reason = error.reason if isinstance(error, ApiError) else type(error).__name__
            anew = isinstance(error, ApiError) and error.conflict and await self._look_anew(key)
            self._failed(key, reason, str(error) or f"no end after {_RECONCILE_SECONDS:g} s", anew)
        except Exception as error:
            await self._unexpected(key, error)

    async def _unexpected(self, key: Key, error: Exception) -> None:
        """A fault of ours, or an object that nobody thought of: the run is left alone, and the log has it once."""
        memory, run = self._memory_of(key), self.store.run(key)
        why = one_line(f"unexpected {type(error).__name__}: {error}", 300)
        if memory.unreadable != why:
            LOG.error("a reconcile failed", exc_info=error, extra=_about(key))
        if run is not None:
            now = datetime.now(UTC).replace(microsecond=0)
            try:
                await self._leave_alone(key, run, hands_off(run, now, "Unexpected", why), memory)
            except ApiError as second:
                LOG.warning("the error cannot be shown: %s", second, extra=_about(key))
        self._failed(key, "Unexpected", why)

    async def _leave_alone(
        self, key: Key, run: Mapping[str, Any], decision: Decision, memory: Memory
    ) -> None:
        """Nothing can be decided about a run: say so, and do nothing with it."""
        if memory.unreadable != decision.unreadable:
            LOG.error("nothing is done with this run: %s", decision.unreadable, extra=_about(key))
        memory.unreadable = decision.unreadable
        self._talks.follow(key, None, memory)
        self.queue.add_after(key, decision.requeue)
        await self.cluster.say(run, decision.status.conditions[0])

    async def _look_anew(self, key: Key) -> bool:
        """After a conflict: see the run as it is, so that it is decided upon anew and at once; whether it is still there."""
        try:
            now = await self.api.find(KIND, *key)
        except ApiError:
            return False
        if now is None or now["metadata"].get("uid") != self._memory_of(key).uid:
            return False  # the watch tells of its end, and of another one of its name
        self.store.put(now)
        return True

    def _failed(self, key: Key, reason: str, sentence: str, anew: bool = False) -> None:
        self.metrics.errors.labels(reason).inc()
        memory = self._memory_of(key)
        memory.failures += 1
        wait = 0.0 if anew and memory.failures <= _AT_ONCE else back_off(memory.failures)
        say_failed(reason, sentence, wait, _about(key))
        self.queue.add_after(key, wait)

    async def reconcile(self, key: Key) -> None:
        """Look at one run, decide, act.

        Raises:
            ApiError: the API server did not do its part.
        """
        run = self.store.run(key)
        if run is None:
            self._forget(key)
            return
        memory = self._memory_of(key, str(run["metadata"].get("uid", "")))
        if memory.untold is not None:
            (told, decision), memory.untold = memory.untold, None
            # That it waits in a queue is not said of one that has its quota meanwhile: it is decided upon anew.
            if told.rays or not self.store.may_begin(key):
                await self._tell(key, told, decision, memory)
                return
        world = await self.cluster.observe(key, run, memory)
        try:
            await self._decide(key, world, memory)
        except (ApiError, NameTaken) as error:
            if refusal := refusal_of(error):
                await self._refused(key, memory, refusal)
            raise

    async def _decide(self, key: Key, world: World, memory: Memory) -> None:
        now = datetime.now(UTC).replace(microsecond=0)
        plan = self.cluster.plan(world.run, memory)
        # Nothing is waited for from here to where the ledger has what was decided.
        others = self.ledger.others(Holder(*key), plan.profile_name, made_at(world.run))
        decision = reconcile(replace(world, others=others, followed=self._talks.followed(key[0])), now, plan)
        if not decision.unreadable:
            needs = held(world, decision.status.attempts, plan, decision)
            waiting = made_at(world.run) if waits(decision.status.conditions) else None
            self._begins(self.ledger.note(Holder(*key), _profile(world, plan), needs, waiting))
        if decision.requeue >= IDLE:  # of thousands that are over or suspended
            memory.plan = memory.plan_of = None
        if decision.unreadable:
            await self._leave_alone(key, world.run, decision, memory)
            return
        memory.unreadable = ""
        memory.made = memory.made or bool(decision.create or world.workloads)
        wish = decision.status.checkpoint_request
        if decision.pull is not None and decision.ask is not None and wish is not None:
            # Before anything is written: others may wait for what the run has, and a checkpoint too many costs little.
            self._talks.ask(key, decision.pull, wish.id, decision.ask, memory)
        await self.cluster.make(world, decision, memory)
        if decision.create and self.queue.pressed:
            # Another run waits for its first pods: they are worth more than what is said of this one.
            memory.untold = (world, decision)
            self.queue.add(key)
            return
        await self._tell(key, world, decision, memory)

    async def _tell(self, key: Key, world: World, decision: Decision, memory: Memory) -> None:
        await self.cluster.tell(world, decision)
        known = known_status(world.run).attempts
        attempt = decision.status.attempts[-1] if decision.status.attempts else None
        about = _about(key) | {"attempt": attempt.number if attempt else 0}
        for note in decision.notes:
            LOG.info("%s: %s", note.reason, note.message, extra=about)
        if attempt is not None and (not known or attempt.number != known[-1].number):
            memory.reading, memory.reading_error, memory.ask = None, "", None
        self._talks.follow(key, decision.pull, memory)
        self.queue.add_after(key, decision.requeue)

    async def _refused(self, key: Key, memory: Memory, refusal: str) -> None:
        """The API server does not take an object: say so in the status, which is what people look at."""
        memory.refusal = refusal
        try:
            run = self.store.run(key)
            if run is not None:
                await self._decide(key, await self.cluster.observe(key, run, memory), memory)
        except (ApiError, NameTaken) as second:
            LOG.warning("the refusal cannot be shown: %s", second, extra=_about(key))
        finally:
            memory.refusal = ""

    def _memory_of(self, key: Key, uid: str | None = None) -> Memory:
        memory = self._memory.get(key)
        if memory is None or (uid is not None and memory.uid != uid):
            if memory is not None:
                self._forget(key)
            memory = self._memory[key] = Memory(uid or "")
        return memory

    def _forget(self, key: Key) -> None:
        self._memory.pop(key, None)
        self._begins(self.ledger.forget(Holder(*key)))
        self.queue.forget(key)
        self._talks.leave(key)

    async def show_metrics(self) -> None:
        """Keep the gauges that are not set where things happen."""
        while True:
            self.metrics.show_runs(self.store.phases(), self.store.figures())
            self.metrics.show_services(self.services.shown())
            self.metrics.unreadable.set(sum(bool(memory.unreadable) for memory in self._memory.values()))
            await asyncio.sleep(5.0)


def _profile(world: World, plan: Plan) -> str | None:
    """The profile that what a run holds counts for: the one that it has begun with."""
    return next((ray.profile for ray in world.rays if ray.profile), plan.profile_name)


def _about(key: Key) -> dict[str, Any]:
    return {"namespace": key[0], "run": key[1]}
