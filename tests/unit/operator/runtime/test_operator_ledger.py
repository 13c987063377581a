"""Who holds what and who waits, runs and services: no two get what only one may have, and the oldest comes first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from operator_worlds import GPU_POOLS, make_profile, make_run, merge
from service_worlds import make_service

from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.names import SERVICE_KIND
from rl_operator.model.needs import Needs, Others
from rl_operator.model.settings import Settings
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.ledger import Holder, Ledger
from rl_operator.runtime.metrics import Metrics

ONE = Needs(runs=1)
A, B, C = (Holder("team-a", name) for name in "abc")
SERVICE = Holder("team-a", "a", SERVICE_KIND)


class TestLedger:
    def test_others_are_those_of_the_namespace_and_the_profile(self) -> None:
        ledger = Ledger()
        for key, profile in ((A, "p"), (B, "p"), (C, "q"), (Holder("team-b", "d"), "p")):
            ledger.note(key, profile, ONE, None)
        assert ledger.others(A, "p", "1") == Others(ONE)
        assert ledger.others(C, "p", "1") == Others(ONE.times(2))
        assert ledger.others(A, None, "1") == Others()

    def test_the_oldest_that_waits_comes_first(self) -> None:
        ledger = Ledger()
        ledger.note(B, "p", Needs(), "2")
        ledger.note(C, "p", Needs(), "2")
        assert ledger.others(A, "p", "1").first == ""
        assert ledger.others(A, "p", "3").first == "run b"
        assert ledger.others(B, "p", "2").first == ""
        assert ledger.others(C, "p", "2").first == "run b", "made in the same second: by name"

    def test_who_gives_something_back_wakes_the_oldest(self) -> None:
        ledger = Ledger()
        assert ledger.note(A, "p", ONE.times(2), None) == []
        assert ledger.note(C, "p", Needs(), "3") == []
        assert ledger.note(B, "p", Needs(), "2") == []
        assert ledger.note(A, "p", ONE.times(2), None) == []
        assert ledger.note(A, "p", ONE, None) == [B]
        assert ledger.note(B, "p", ONE, None) == [C], "it has begun, and there may be room for one more"
        assert ledger.note(A, "q", ONE, None) == [C], "it counts for another profile now"
        assert ledger.forget(B) == [C]
        assert ledger.forget(B) == []
        assert ledger.forget(C) == []
        assert ledger.forget(A) == []

    def test_a_run_and_a_service_of_one_name_are_two(self) -> None:
        ledger = Ledger()
        ledger.note(A, "p", ONE, None)
        ledger.note(SERVICE, "p", Needs(accelerators=1), "2")
        assert ledger.others(A, "p", "1").held == Needs(accelerators=1)
        assert ledger.others(B, "p", "3") == Others(Needs(runs=1, accelerators=1), "service a")
        assert ledger.forget(A) == [SERVICE]
        assert ledger.others(B, "p", "3").held == Needs(accelerators=1)

    def test_who_goes_while_it_waits_lets_the_next_one_try(self) -> None:
        ledger = Ledger()
        ledger.note(A, "p", Needs(), "1")
        ledger.note(B, "p", Needs(), "2")
        assert ledger.forget(A) == [B]
        ledger.note(C, "p", Needs(), None)
        assert ledger.forget(C) == []


class Server:
    """An API server that takes its time, so that others are looked at meanwhile."""

    def __init__(self) -> None:
        self.version = 100
        self.made: list[str] = []
        self.labels: dict[str, str] = {"tenant": "b"}
        self.ours: dict[tuple[str, str], dict[str, Any]] = {}
        self.found: list[tuple[str, str, str]] = []
        self.refuses = ""

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.found.append((kind, namespace, name))
        await asyncio.sleep(0)
        if kind == "Namespace":
            return {"metadata": {"name": name, "labels": self.labels}}
        return {"metadata": {"name": name}, "spec": {"storageClassName": "disk"}}

    async def list(self, kind: str, namespace: str, **_: Any) -> list[dict[str, Any]]:
        return []

    async def pages(
        self, kind: str, namespace: str, **_: Any
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        yield [], "1"

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.apply(manifest)

    async def apply(
        self, manifest: dict[str, Any], subresource: str = "", *, new: bool = False
    ) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        if manifest["kind"] == self.refuses:
            raise ApiError(403, "Forbidden", "exceeded quota: gpus")
        self.version += 1
        if manifest["kind"] in ("RayJob", "RayService"):
            self.made.append(manifest["metadata"]["name"])
        stored = self.ours.get((manifest["kind"], manifest["metadata"]["name"]), {})
        made = merge({"metadata": {"uid": f"uid-{self.version}"}}, merge(stored, manifest))
        made["metadata"]["resourceVersion"] = str(self.version)
        return made

    async def patch(self, kind: str, namespace: str, name: str, operations: Any) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}}


def run(name: str, second: int, **more: Any) -> dict[str, Any]:
    made = f"2026-03-01T11:59:{second:02}Z"
    found = make_run(name=name, uid=f"uid-{name}", creationTimestamp=made, resourceVersion="5")
    return merge(found, more)


def service(name: str, second: int, **more: Any) -> dict[str, Any]:
    source = {
        "from": {"checkpoint": "s3://policies/chat"},
        "pools": ["h100"],
        "resources": {"accelerators": 1},
    }
    found = make_service(source)
    about = {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": f"2026-03-01T11:59:{second:02}Z"}
    return merge(merge(found, {"metadata": about | {"resourceVersion": "5"}}), more)


def controller_of(server: Server, *runs: dict[str, Any], **spec: Any) -> Controller:
    controller = Controller(cast(Api, server), Settings(), Metrics())
    profile = make_profile(default=True, **spec)
    profile["metadata"] |= {"uid": "p", "resourceVersion": "1"}
    controller.seen("RLTrainingProfile", "ADDED", profile)
    server.ours = {(one["kind"], one["metadata"]["name"]): one for one in runs}
    for one in runs:
        controller.seen(one["kind"], "ADDED", one)
    return controller


LIMITS = {"limits": {"perNamespace": {"maxRuns": 2}}}


def test_no_two_get_what_only_one_may_have() -> None:
    async def work() -> None:
        server = Server()
        names = "abcdefgh"
        controller = controller_of(server, *(run(name, at) for at, name in enumerate(names)), **LIMITS)
        await asyncio.gather(*(controller.attend(("team-a", name)) for name in names))
        assert sorted(server.made) == ["a-1", "b-1"]
        assert controller.ledger.others(Holder("team-a", "h"), "shared", "2027") == Others(
            controller.ledger._held["team-a", "shared"][A].times(2), "run c"
        )

    asyncio.run(work())


def test_after_a_restart_it_is_the_same() -> None:
    async def work() -> None:
        server = Server()
        first = controller_of(server, run("a", 1), run("b", 2), **LIMITS)
        await asyncio.gather(*(first.attend(key.key) for key in (A, B)))
        assert sorted(server.made) == ["a-1", "b-1"]
        waiting = {"conditions": [{"type": "ClusterReady", "status": "False", "reason": "NamespaceLimit"}]}
        second = controller_of(
            server, run("a", 1), run("b", 2), run("c", 3, status=waiting), run("d", 4), **LIMITS
        )
        for name, seen in (*first.store.of_run(A.key), *first.store.of_run(B.key)):
            assert name
            second.store._objects[seen.kind][("team-a", name)] = seen
            second.store._of_run[(A if name.startswith("a") else B).key].add((seen.kind, ("team-a", name)))
        second.watches = []
        await second.prime()
        others = second.ledger.others(Holder("team-a", "d"), "shared", "2026-03-01T11:59:04Z")
        assert (others.held.runs, others.first) == (2, "run c")
        await second.attend(("team-a", "d"))
        assert sorted(server.made) == ["a-1", "b-1"]
        assert second.queue.depth == 4, "nothing but the first look at each"

    asyncio.run(work())


def test_the_end_of_one_lets_the_next_begin() -> None:
    async def work() -> None:
        server = Server()
        controller = controller_of(
            server, run("a", 1), run("b", 2), **{"limits": {"perNamespace": {"maxRuns": 1}}}
        )
        for key in (A, B):
            await controller.attend(key.key)
        assert server.made == ["a-1"]
        while controller.queue.depth:
            controller.queue.done(await controller.queue.get())
        controller.seen("RLTrainingRun", "DELETED", run("a", 1, metadata={"resourceVersion": "9000"}))
        assert await controller.queue.get() == A.key
        await controller.attend(A.key)
        controller.queue.done(A.key)
        assert await asyncio.wait_for(controller.queue.get(), 60) == B.key
        await controller.attend(B.key)
        assert server.made == ["a-1", "b-1"]

    asyncio.run(work())


def test_labels_of_a_namespace_are_asked_for_where_a_profile_goes_by_them() -> None:
    async def work() -> None:
        server = Server()
        controller = controller_of(server, run("a", 1), **LIMITS)
        await controller.attend(A.key)
        assert not [each for each in server.found if each[0] == "Namespace"]
        server = Server()
        namespaces = {"matchLabels": {"tenant": "a"}}
        controller = controller_of(server, run("a", 1), allow={"namespaces": namespaces})
        await controller.attend(A.key)
        assert ("Namespace", "", "team-a") in server.found
        assert server.made == []
        server.labels = {"tenant": "a"}
        controller.cluster._known.answers.clear()
        await controller.attend(A.key)
        assert server.made == ["a-1"]

    asyncio.run(work())


FOUR = {
    "pools": [GPU_POOLS[0], {"name": "cpu"}],
    "limits": {"perNamespace": {"maxAccelerators": 4}},
}
"""Room for a run, which has three, or for four services, which have one each."""


async def emptied(controller: Controller) -> None:
    """Until nobody is to be looked at."""
    for queue, attend in (
        (controller.queue, controller.attend),
        (controller.services.queue, controller.services.attend),
    ):
        while queue.depth:
            key = await queue.get()
            await attend(key)
            queue.done(key)


def test_runs_and_services_wait_in_one_line() -> None:
    async def work() -> None:
        server = Server()
        made = (run("a", 2), service("chat", 1), service("a", 3), service("late", 5), run("b", 4))
        controller = controller_of(server, *made, **FOUR)
        services = controller.services
        await services.attend(("team-a", "chat"))
        await controller.attend(A.key)
        await services.attend(("team-a", "a"))
        await controller.attend(B.key)
        await services.attend(("team-a", "late"))
        assert server.made == ["chat", "a-1"], "one and three: the rest waits"
        late = services.store.service(("team-a", "late"))
        assert late is not None
        (said,) = [one for one in late["status"]["conditions"] if one["type"] == "ClusterReady"]
        assert (said["status"], said["reason"]) == ("False", "NamespaceLimit")
        await emptied(controller)
        assert server.made == ["chat", "a-1"]

        controller.seen("RLTrainingRun", "DELETED", run("a", 2, metadata={"resourceVersion": "9000"}))
        await emptied(controller)
        assert server.made == ["chat", "a-1", "a"], "the oldest of those that wait, woken by who went"
        assert controller.queue.depth == 1, (
            "then the next one: a run, which has no room and keeps the service behind it"
        )
        await emptied(controller)
        assert server.made == ["chat", "a-1", "a"]

        controller.seen(SERVICE_KIND, "DELETED", service("chat", 1, metadata={"resourceVersion": "9000"}))
        await emptied(controller)
        await emptied(controller)
        assert server.made == ["chat", "a-1", "a", "b-1"]

    asyncio.run(work())


def test_no_two_services_get_what_only_one_may_have() -> None:
    async def work() -> None:
        server = Server()
        names = "abcdefgh"
        controller = controller_of(server, *(service(name, at) for at, name in enumerate(names)), **FOUR)
        await asyncio.gather(*(controller.services.attend(("team-a", name)) for name in names))
        assert sorted(server.made) == ["a", "b", "c", "d"]

    asyncio.run(work())


def test_after_a_restart_services_hold_what_they_held_before_anything_begins() -> None:
    async def work() -> None:
        server = Server()
        first = controller_of(server, *(service(name, at) for at, name in enumerate("cde")), **FOUR)
        await emptied(first)
        assert server.made == ["c", "d", "e"]
        waiting = {"conditions": [{"type": "ClusterReady", "status": "False", "reason": "NamespaceLimit"}]}
        again = [service(name, at) for at, name in enumerate("cde")]
        second = controller_of(server, *again, service("f", 3, status=waiting), run("a", 4), **FOUR)
        second.services.store._objects |= first.services.store._objects
        second.watches = []
        await second.prime()
        others = second.ledger.others(A, "shared", "2026-03-01T11:59:04Z")
        assert others == Others(second.ledger.others(SERVICE, "shared", "").held, "service f")
        assert (others.held.runs, others.held.accelerators) == (0, 3)
        await second.attend(A.key)
        assert server.made == ["c", "d", "e"]

    asyncio.run(work())


def test_a_service_that_was_made_holds_what_it_has_though_its_status_is_refused() -> None:
    async def work() -> None:
        server = Server()
        controller = controller_of(server, service("a", 1), **FOUR)
        server.refuses = SERVICE_KIND
        await controller.services.attend(("team-a", "a"))
        assert server.made == ["a"]
        assert controller.ledger.others(A, "shared", "2027").held.accelerators == 1

    asyncio.run(work())


def test_a_service_that_cannot_be_made_keeps_nothing() -> None:
    async def work() -> None:
        server = Server()
        controller = controller_of(server, service("a", 1), run("a", 2), **FOUR)
        server.refuses = "RayService"
        await controller.services.attend(("team-a", "a"))
        assert controller.ledger.others(A, "shared", "2027") == Others()
        server.refuses = ""
        await controller.services.attend(("team-a", "a"))
        assert controller.ledger.others(A, "shared", "2027").held.accelerators == 1

    asyncio.run(work())
