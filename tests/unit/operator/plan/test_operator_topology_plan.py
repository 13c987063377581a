"""Topology: levels that pools have, and what roles may ask of them."""

from __future__ import annotations

from typing import Any

import pytest
from operator_worlds import VERL, make_plan, make_profile, refused

from rl_operator.plan.topology import Topology

ZONE, RACK = "topology.kubernetes.io/zone", "example.com/rack"
LEVELS = [{"name": "zone", "label": ZONE}, {"name": "rack", "label": RACK}]
POOLS: list[dict[str, Any]] = [
    {"name": "spot", "nodeSelector": {"capacity": "spot"}, "topology": LEVELS, "spot": True},
    {"name": "owned", "nodeSelector": {"capacity": "owned"}, "topology": LEVELS},
    {"name": "other", "nodeSelector": {"capacity": "other"}, "topology": [{"name": "rack", "label": "rack"}]},
    {"name": "flat", "nodeSelector": {"capacity": "flat"}},
]
PROFILE = make_profile(default=True, pools=POOLS)


@pytest.mark.parametrize(
    ("how", "level", "label"),
    [("required", "rack", RACK), ("preferred", "rack", RACK), ("spread", "zone", ZONE)],
)
def test_a_level_is_the_label_that_the_pools_say(how: Any, level: str, label: str) -> None:
    spec = {"learner": {"topology": {how: level}, "pools": ["spot", "owned"]}}
    effective = make_plan(spec, PROFILE)
    assert effective.role("learner").topology == Topology(how, level, label)
    assert effective.role("sampler").topology is None
    assert effective.role("head").topology is None
    assert make_plan({"sampler": {"topology": {how: level}}}, PROFILE).role("sampler").topology is not None


@pytest.mark.parametrize(
    ("pools", "level", "sentence"),
    [
        (
            ["spot"],
            "block",
            "spec.sampler.topology.required: found 'block', allowed: a level of the topology of pool spot: zone, rack",
        ),
        (
            ["spot", "flat"],
            "rack",
            "spec.sampler.topology.required: found 'rack', allowed: a level of the topology of pool flat: none",
        ),
        (
            ["spot", "owned", "other"],
            "rack",
            "spec.sampler.topology.required: found 'rack', which is label example.com/rack in pool spot and rack in pool "
            "other, allowed: a level that is the same label in all pools of the role",
        ),
    ],
)
def test_each_pool_of_a_role_has_the_level(pools: list[str], level: str, sentence: str) -> None:
    found = refused({"sampler": {"pools": pools, "topology": {"required": level}}}, PROFILE)
    assert (found.reason, found.message) == ("InvalidSpec", sentence)


def test_a_role_that_has_no_pods_needs_no_level() -> None:
    pools = [{"name": "h100", "acceleratorResource": "nvidia.com/gpu"}, {"name": "cpu"}]
    spec = VERL | {"sampler": {**VERL["sampler"], "topology": {"required": "rack"}}}
    assert not make_plan(spec, make_profile(default=True, pools=pools)).has("sampler")


def test_the_topology_of_a_run_takes_the_place_of_the_profiles() -> None:
    profile = make_profile(
        default=True, pools=POOLS, defaults={"learner": {"topology": {"required": "rack"}}}
    )
    assert make_plan({}, profile).role("learner").topology == Topology("required", "rack", RACK)
    own = make_plan({"learner": {"topology": {"preferred": "zone"}}}, profile)
    assert own.role("learner").topology == Topology("preferred", "zone", ZONE)


def test_runs_and_profiles_that_say_nothing_of_it_are_what_they_were() -> None:
    """Their digests, by which attempts are compared, were the same before there was a topology."""
    assert make_plan().digest == "fdcc678d5f0ece1b"
    plain, placed = make_plan({}, PROFILE), make_plan({"learner": {"topology": {"spread": "zone"}}}, PROFILE)
    assert plain.digest != placed.digest
    levels = make_profile(default=True, pools=[POOLS[3] | {"topology": LEVELS}])
    flat = make_profile(default=True, pools=[POOLS[3]])
    assert make_plan({}, levels).profile_digest != make_plan({}, flat).profile_digest
