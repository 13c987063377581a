from __future__ import annotations

from operator_worlds import NOW, make_run

from rl_operator.model.seen import World


def test_what_a_world_knows_of_its_run() -> None:
    world = World(run=make_run({"suspend": True}, deletionTimestamp="2026-03-01T12:00:00Z"))
    assert (world.wants_suspend, world.generation, world.deleted) == (True, 1, NOW)
    assert World(run={"metadata": {}, "spec": 5}).spec == {}
