"""Who holds what and who waits, over all runs: no two get what only one may have, and the oldest comes first."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from operator_worlds import make_profile, make_run, merge

from rl_operator.kube.client import Api
from rl_operator.model.names import KIND
from rl_operator.model.needs import Needs, Others
from rl_operator.model.settings import Settings
from rl_operator.runtime.controller import Controller
from rl_operator.runtime.ledger import Ledger
from rl_operator.runtime.metrics import Metrics

ONE = Needs(runs=1)
A, B, C = (("team-a", name) for name in "abc")


class TestLedger:
    def test_others_are_those_of_the_namespace_and_the_profile(self) -> None:
        ledger = Ledger()
        for key, profile in ((A, "p"), (B, "p"), (C, "q"), (("team-b", "d"), "p")):
            ledger.note(key, profile, ONE, None)
        assert ledger.others(A, "p", "1") == Others(ONE)
        assert ledger.others(C, "p", "1") == Others(ONE.times(2))
        assert ledger.others(A, None, "1") == Others()

    def test_the_oldest_that_waits_comes_first(self) -> None:
        ledger = Ledger()
        ledger.note(B, "p", Needs(), "2")
        ledger.note(C, "p", Needs(), "2")
        assert ledger.others(A, "p", "1").first == ""
        assert ledger.others(A, "p", "3").first == "b"
        assert ledger.others(B, "p", "2").first == ""
        assert ledger.others(C, "p", "2").first == "b", "made in the same second: by name"

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
        self.runs: dict[str, dict[str, Any]] = {}
        self.found: list[tuple[str, str, str]] = []

    async def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        self.found.append((kind, namespace, name))
        await asyncio.sleep(0)
        if kind == "Namespace":
            return {"metadata": {"name": name, "labels": self.labels}}
        return {"metadata": {"name": name}, "spec": {"storageClassName": "disk"}}

    async def list(self, kind: str, namespace: str, **_: Any) -> list[dict[str, Any]]:
        return []

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return await self.apply(manifest)

    async def apply(
        self, manifest: dict[str, Any], subresource: str = "", *, new: bool = False
    ) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        self.version += 1
        if manifest["kind"] == "RayJob":
            self.made.append(manifest["metadata"]["name"])
        stored = self.runs.get(manifest["metadata"]["name"], {}) if manifest["kind"] == KIND else {}
        made = merge({"metadata": {"uid": f"uid-{self.version}"}}, merge(stored, manifest))
        made["metadata"]["resourceVersion"] = str(self.version)
        return made

    async def patch(self, kind: str, namespace: str, name: str, operations: Any) -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "resourceVersion": "1"}}


def run(name: str, second: int, **more: Any) -> dict[str, Any]:
    made = f"2026-03-01T11:59:{second:02}Z"
    found = make_run(name=name, uid=f"uid-{name}", creationTimestamp=made, resourceVersion="5")
    return merge(found, more)


def controller_of(server: Server, *runs: dict[str, Any], **spec: Any) -> Controller:
    controller = Controller(cast(Api, server), Settings(), Metrics())
    profile = make_profile(default=True, **spec)
    profile["metadata"] |= {"uid": "p", "resourceVersion": "1"}
    controller.seen("RLTrainingProfile", "ADDED", profile)
    server.runs = {one["metadata"]["name"]: one for one in runs}
    for one in runs:
        controller.seen("RLTrainingRun", "ADDED", one)
    return controller


LIMITS = {"limits": {"perNamespace": {"maxRuns": 2}}}


def test_no_two_get_what_only_one_may_have() -> None:
    async def work() -> None:
        server = Server()
        names = "abcdefgh"
        controller = controller_of(server, *(run(name, at) for at, name in enumerate(names)), **LIMITS)
        await asyncio.gather(*(controller.attend(("team-a", name)) for name in names))
        assert sorted(server.made) == ["a-1", "b-1"]
        assert controller.ledger.others(("team-a", "h"), "shared", "2027") == Others(
            controller.ledger._held["team-a", "shared"][A].times(2), "c"
        )

    asyncio.run(work())


def test_after_a_restart_it_is_the_same() -> None:
    async def work() -> None:
        server = Server()
        first = controller_of(server, run("a", 1), run("b", 2), **LIMITS)
        await asyncio.gather(*(first.attend(key) for key in (A, B)))
        assert sorted(server.made) == ["a-1", "b-1"]
        waiting = {"conditions": [{"type": "ClusterReady", "status": "False", "reason": "NamespaceLimit"}]}
        second = controller_of(
            server, run("a", 1), run("b", 2), run("c", 3, status=waiting), run("d", 4), **LIMITS
        )
        for name, seen in (*first.store.of_run(A), *first.store.of_run(B)):
            assert name
            second.store._objects[seen.kind][("team-a", name)] = seen
            second.store._of_run[A if name.startswith("a") else B].add((seen.kind, ("team-a", name)))
        second.watches = []
        await second.prime()
        others = second.ledger.others(("team-a", "d"), "shared", "2026-03-01T11:59:04Z")
        assert (others.held.runs, others.first) == (2, "c")
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
            await controller.attend(key)
        assert server.made == ["a-1"]
        while controller.queue.depth:
            controller.queue.done(await controller.queue.get())
        controller.seen("RLTrainingRun", "DELETED", run("a", 1, metadata={"resourceVersion": "9000"}))
        assert await controller.queue.get() == A
        await controller.attend(A)
        controller.queue.done(A)
        assert await asyncio.wait_for(controller.queue.get(), 1) == B
        await controller.attend(B)
        assert server.made == ["a-1", "b-1"]

    asyncio.run(work())


def test_labels_of_a_namespace_are_asked_for_where_a_profile_goes_by_them() -> None:
    async def work() -> None:
        server = Server()
        controller = controller_of(server, run("a", 1), **LIMITS)
        await controller.attend(A)
        assert not [each for each in server.found if each[0] == "Namespace"]
        server = Server()
        namespaces = {"matchLabels": {"tenant": "a"}}
        controller = controller_of(server, run("a", 1), allow={"namespaces": namespaces})
        await controller.attend(A)
        assert ("Namespace", "", "team-a") in server.found
        assert server.made == []
        server.labels = {"tenant": "a"}
        controller.cluster._known.answers.clear()
        await controller.attend(A)
        assert server.made == ["a-1"]

    asyncio.run(work())
