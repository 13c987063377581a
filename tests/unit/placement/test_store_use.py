from __future__ import annotations

import math

import pytest
import ray

from rl_trainer.placement import store_use
from rl_trainer.placement.store_use import LOOK_SECONDS, StoreUse, stored_now


def test_steps_shorter_than_a_look_ask_ray_no_more_often():
    now, found = [100.0], iter([8.0, 9.0])
    use = StoreUse(lambda: next(found), lambda: now[0])
    seen = []
    for seconds in (0.0, 0.9 * LOOK_SECONDS, 0.2 * LOOK_SECONDS, 0.5 * LOOK_SECONDS):
        now[0] += seconds
        seen.append(use.look())
    assert seen == [8.0, 8.0, 9.0, 9.0]


def test_what_is_not_free_is_used(monkeypatch: pytest.MonkeyPatch):
    answers(monkeypatch, {"a": 100.0, "b": 50.0}, {"a": 70.0, "b": 45.0})
    assert stored_now() == 35.0
    answers(monkeypatch, {"a": 100.0}, {"a": None})
    assert stored_now() == 100.0, "full: Ray leaves out what there is none of"
    answers(monkeypatch, {"a": None}, {"a": None})
    assert math.isnan(stored_now())
    answers(monkeypatch, {}, {})
    assert math.isnan(stored_now())


def test_nodes_that_come_and_go_between_the_questions_do_not_count(monkeypatch: pytest.MonkeyPatch):
    answers(monkeypatch, {"a": 100.0, "new": 500.0}, {"a": 70.0})
    assert stored_now() == 30.0
    answers(monkeypatch, {"a": 100.0}, {"a": 70.0, "gone": 500.0})
    assert stored_now() == 30.0
    answers(monkeypatch, {"a": 100.0}, {"a": 100.5})
    assert stored_now() == 0.0


def answers(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, float | None], free: dict[str, float | None]
) -> None:
    """What Ray says of nodes' stores: bytes in all, and those that are free; None: nothing. One node is dead."""

    def resources(found: float | None) -> dict[str, float]:
        return {"CPU": 2.0} | ({} if found is None else {"object_store_memory": found})

    nodes = [{"NodeID": name, "Alive": True, "Resources": resources(size)} for name, size in sizes.items()]
    nodes.append({"NodeID": "dead", "Alive": False, "Resources": {}})
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    told = {name: resources(size) for name, size in free.items()} | {"dead": resources(7.0)}
    monkeypatch.setattr(store_use, "available_resources_per_node", lambda: told)
