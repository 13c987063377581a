from __future__ import annotations

from typing import Any, ClassVar

from async_work import run_async
from operator_worlds import OWNED, stored

from rl_operator.kube.cache import Store
from rl_operator.runtime.watches import Watches


class FakeController:
    """What the watches ask of the controller: all objects of a kind, and a place for what they see."""

    def __init__(self) -> None:
        self.store = Store()
        self.there: list[dict[str, Any]] = []

    async def list(self, kind: str, *, metadata_only: bool) -> tuple[list[dict[str, Any]], int]:
        assert metadata_only
        return [item for item in self.there if item["kind"] == kind], 100

    def missing(self, kind: str, place: tuple[str, str], uid: str) -> None:
        self.store.gone(kind, place, uid)


class TestWatches:
    CHILD: ClassVar = {"ownerReferences": [{"kind": "RayJob", "uid": "r", "controller": True}]}

    def look(self, controller: FakeController) -> list[str]:
        missed = run_async(Watches(controller)._missed)  # type: ignore[arg-type]
        return sorted(f"{kind} {place[1]} {version}" for kind, place, _, version in missed)

    def test_a_change_of_any_object_that_was_not_told_is_noticed(self) -> None:
        controller = FakeController()
        samplers = {"spec": {"workerGroupSpecs": [{"groupName": "sampler", "replicas": 1}]}}
        child = stored("RayCluster", "sums-1-abcde", 7, "c", metadata=self.CHILD, **samplers)
        other = stored("RayCluster", "of-somebody-else", 8, "o", metadata={"labels": {}})
        controller.there = [child, other, stored("RayJob", "sums-1", 9, "r", metadata=OWNED)]
        assert self.look(controller) == [
            "RayCluster of-somebody-else 8",
            "RayCluster sums-1-abcde 7",
            "RayJob sums-1 9",
        ]
        for item in controller.there:
            controller.store.put(item)
        assert self.look(controller) == []
        controller.there[0] = stored("RayCluster", "sums-1-abcde", 11, "c", metadata=self.CHILD, **samplers)
        assert self.look(controller) == ["RayCluster sums-1-abcde 11"]

    def test_what_went_unseen_is_forgotten(self) -> None:
        controller = FakeController()
        controller.store.put(stored("RayCluster", "sums-1-abcde", 7, "c", metadata=self.CHILD))
        assert self.look(controller) == []
        assert controller.store.was_deleted("c")
