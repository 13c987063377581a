from __future__ import annotations

import math

import pytest
import ray

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
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "object_store_memory": 100.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"object_store_memory": 70.0})
    assert stored_now() == 30.0
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 2.0})
    assert stored_now() == 100.0, "full: Ray leaves out what there is none of"
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    assert math.isnan(stored_now())
