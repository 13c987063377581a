"""Which versions may stay in a node's object store while engines compute with them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ray.exceptions import RaySystemError

from rl_trainer.flow import store_room
from rl_trainer.flow.store_room import StoreRoom, node_store_bytes


def version(size: int) -> list[np.ndarray]:
    return [np.zeros(40, np.uint8), np.zeros(size - 40, np.uint8)]


def test_every_sampler_may_hold_one_beside_those_under_way(monkeypatch: pytest.MonkeyPatch):
    looked: list[None] = []

    def look() -> float:
        looked.append(None)
        return 700.0

    room = StoreRoom(4, look)
    assert not looked, "Ray is asked when it matters"
    used: list[int] = []
    monkeypatch.setattr(store_room, "use_store_pages", lambda array: used.append(array.nbytes))
    assert [room(version(size)) for size in (99, 100, 101)] == [True, True, False]
    assert len(looked) == 1
    assert not StoreRoom(5, look)(version(100))
    assert used == [40, 59, 40, 60], "those that are not lent are given back"


def test_the_store_is_that_of_this_node(monkeypatch: pytest.MonkeyPatch):
    nodes = [
        {"NodeID": "other", "Resources": {"object_store_memory": 5.0}},
        {"NodeID": "here", "Resources": {"object_store_memory": 7.0, "CPU": 2.0}},
        {"NodeID": "none", "Resources": {"CPU": 2.0}},
    ]
    monkeypatch.setattr(store_room.ray, "nodes", lambda: nodes)
    for name, size in (("here", 7.0), ("other", 5.0), ("none", 0.0), ("gone", 0.0)):
        context = SimpleNamespace(get_node_id=lambda name=name: name)
        monkeypatch.setattr(store_room.ray, "get_runtime_context", lambda context=context: context)
        assert node_store_bytes() == size

    def fail() -> list[object]:
        raise RaySystemError("no head")

    monkeypatch.setattr(store_room.ray, "nodes", fail)
    assert node_store_bytes() == 0.0
    assert not StoreRoom(1)(version(41))
