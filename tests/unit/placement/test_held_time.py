"""Accelerator seconds as a driver counts them, with a clock that stands still in between."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from rl_trainer.placement.held_time import LOOK_SECONDS, HeldTime, Nodes
from rl_trainer.placement.places import nodes_now


class There:
    """What there is, and when; and how often it was looked."""

    def __init__(self) -> None:
        self.time, self.nodes, self.looks = 100.0, Nodes(4.0, 2), 0

    def look(self) -> Nodes:
        self.looks += 1
        return self.nodes

    def clock(self) -> float:
        return self.time


def test_what_was_there_at_one_look_counts_until_the_next():
    there = There()
    held = HeldTime(there.look, there.clock)
    there.time += 10
    there.nodes = Nodes(6.0, 3)
    held.look()
    assert (held.accelerators, held.pods) == (40.0, 20.0)
    there.time += 5
    held.count()
    assert (held.accelerators, held.pods) == (40.0 + 30.0, 20.0 + 15.0)
    held.count()
    assert held.accelerators == 70.0, "nothing is counted twice"


def test_steps_shorter_than_a_look_ask_ray_no_more_often():
    there = There()
    held = HeldTime(there.look, there.clock)
    for _ in range(8):
        there.time += LOOK_SECONDS / 4
        held.look()
    assert (there.looks, held.accelerators) == (3, 4.0 * 2 * LOOK_SECONDS)


def test_where_ray_has_died_the_end_is_counted_without_it():
    there = There()
    held = HeldTime(there.look, there.clock)
    there.time += 3
    held.count()
    assert (there.looks, held.accelerators) == (1, 12.0)


def test_live_nodes_are_counted_with_their_accelerators(monkeypatch: pytest.MonkeyPatch):
    def node(alive: bool, **resources: float) -> dict[str, Any]:
        return {"Alive": alive, "Resources": resources}

    nodes = [node(True, head=1.0), node(True, GPU=8.0), node(False, GPU=8.0), node(True, GPU=2.0)]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert nodes_now() == (10.0, 3)
