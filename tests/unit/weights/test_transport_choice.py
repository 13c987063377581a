"""Which way weights take where the run leaves it open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rl_trainer.weights.transports.choose import LEAST_COLLECTIVE_BYTES, Topology, choose_transport

MANY = Topology(14_000_000_000, samplers=8, nodes=4, accelerated=True)


def test_a_large_model_for_several_nodes_of_accelerators_is_broadcast():
    assert choose_transport(MANY) == "collective"
    assert choose_transport(replace(MANY, size=LEAST_COLLECTIVE_BYTES)) == "collective"


@pytest.mark.parametrize(
    "change",
    [
        {"accelerated": False},
        {"encrypted": True},
        {"size": LEAST_COLLECTIVE_BYTES - 1},
        {"samplers": 1, "nodes": 1},
        {"nodes": 1},
        {"nodes": 0},
        {"samplers": 0, "nodes": 0},
    ],
)
def test_all_else_goes_through_the_object_store(change: dict[str, int]):
    assert choose_transport(replace(MANY, **change)) == "objectStore"
