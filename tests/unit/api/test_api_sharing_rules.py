"""Who may share devices: one table of placements, and the number of samplers that each comes to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api import RunSpec, check_rules
from rl_api.paths import render_path

COUNT = st.integers(1, 6)
MODES = st.sampled_from(["auto", "collocated", "disaggregated", "hybrid"])


def run(**parts: Any) -> RunSpec:
    good = {"model": {"source": "tiny"}, "task": {"environment": "reasoning-gym", "name": "chain_sum"}}
    algorithm = {"promptsPerStep": 60, "groupSize": 8}
    return RunSpec.model_validate({**good, "algorithm": algorithm} | parts, by_alias=True, by_name=False)


def broken(**parts: Any) -> list[str]:
    return [render_path(problem.path).removeprefix("spec.") for problem in check_rules(run(**parts))]


def told(**parts: Any) -> list[str]:
    """What is wrong, by field."""
    found = check_rules(run(**parts))
    return [f"{render_path(one.path).removeprefix('spec.')}: {one.sentence}" for one in found]


@pytest.mark.parametrize(
    ("placement", "samplers", "learners", "shared"),
    [
        ({}, 3, 2, 0),
        ({"mode": "auto", "sharedSamplers": 2}, 3, 2, 2),
        ({"mode": "disaggregated"}, 3, 2, 0),
        ({"mode": "collocated"}, 2, 2, 2),
        ({"mode": "collocated", "sharedSamplers": 2}, 2, 4, 2),
        ({"mode": "hybrid"}, 2, 4, 1),
        ({"mode": "hybrid"}, 3, 4, 2),
        ({"mode": "hybrid"}, 6, 2, 2),
        ({"mode": "hybrid", "sharedSamplers": 1}, 6, 2, 1),
    ],
)
def test_how_many_samplers_share(
    placement: dict[str, Any], samplers: int, learners: int, shared: int
) -> None:
    parts = {
        "sampler": {"replicas": samplers},
        "learner": {"replicas": learners},
        "placement": placement,
    }
    assert run(**parts).shared_samplers == shared
    assert broken(**parts) == []


@given(
    mode=MODES,
    samplers=COUNT,
    learners=st.sampled_from([1, 2, 3, 4, 5, 6]),
    said=st.none() | st.integers(0, 6),
)
def test_what_is_let_through_can_be_placed(mode: str, samplers: int, learners: int, said: int | None) -> None:
    parts = {
        "sampler": {"replicas": samplers},
        "learner": {"replicas": learners},
        "placement": {"mode": mode, "sharedSamplers": said},
    }
    shared = run(**parts).shared_samplers
    good = shared <= min(samplers, learners)
    good = good and (mode != "disaggregated" or not said) and (mode != "hybrid" or 0 < shared < samplers)
    good = good and (mode != "collocated" or said in (None, samplers))
    assert (broken(**parts) == []) is good


def test_of_several_learner_processes_in_a_pod_each_can_have_a_sampler() -> None:
    learner = {"replicas": 2, "resources": {"accelerators": 4}}
    assert broken(sampler={"replicas": 8}, learner=learner, placement={"mode": "collocated"}) == []
    assert broken(sampler={"replicas": 9}, learner=learner, placement={"mode": "collocated"}) == [
        "sampler.replicas"
    ]


@pytest.mark.parametrize("field", ["tensorParallelSize", "pipelineParallelSize"])
def test_a_sampler_of_several_devices_shares_none(field: str) -> None:
    sampler = {"engine": "vllm", field: 2}
    assert broken(sampler=sampler, placement={"mode": "collocated"}) == [f"sampler.{field}"]
    assert broken(sampler=sampler, placement={"mode": "auto", "sharedSamplers": 1}) == [f"sampler.{field}"]
    assert broken(sampler=sampler, placement={"mode": "auto"}) == []


@pytest.mark.parametrize(
    ("samplers", "said", "sentences"),
    [
        (2, None, []),
        (3, 2, []),
        (
            1,
            None,
            [
                "sampler.replicas: found 1, allowed with placement.mode hybrid: a whole number >= 2, as some samplers share "
                "learners' devices and others have their own"
            ],
        ),
        (
            2,
            2,
            [
                "placement.sharedSamplers: found 2, allowed with mode hybrid: a whole number < sampler.replicas = 2, as "
                "others have devices of their own; all share with mode collocated"
            ],
        ),
    ],
)
def test_hybrid_is_not_collocated_in_fact(samplers: int, said: int | None, sentences: list[str]) -> None:
    parts = {
        "sampler": {"replicas": samplers},
        "learner": {"replicas": 4},
        "placement": {"mode": "hybrid", "sharedSamplers": said},
    }
    assert told(**parts) == sentences
    assert told(**parts | {"placement": {"mode": "auto", "sharedSamplers": said}}) == []


THEIRS = "as they are in learners' pods and have what these have"


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"pools": ["nope", "h100"]}, "sampler.pools: found [nope, h100], allowed WHERE: [], "),
        ({"topology": {"required": "rack"}}, "sampler.topology: found an object, allowed WHERE: null, "),
        (
            {"resources": {"accelerators": 4}},
            "sampler.resources.accelerators: found 4, allowed WHERE: null or 1, ",
        ),
        (
            {"resources": {"accelerators": 0}},
            "sampler.resources.accelerators: found 0, allowed WHERE: null or 1, ",
        ),
        ({"resources": {"accelerators": 1, "memory": "4Gi"}}, ""),
        ({"pools": [], "topology": None, "resources": None}, ""),
    ],
)
def test_samplers_without_pods_of_their_own_have_no_fields_of_these(
    field: dict[str, Any], sentence: str
) -> None:
    wanted = [sentence.replace("WHERE", "where all samplers share learners' devices") + THEIRS] * bool(
        sentence
    )
    learner = {"replicas": 2}
    for placement in ({"mode": "collocated"}, {"sharedSamplers": 2}):
        assert told(sampler={"replicas": 2, **field}, learner=learner, placement=placement) == wanted
    for placement in ({"mode": "hybrid"}, {"sharedSamplers": 1}, {}):
        assert told(sampler={"replicas": 2, **field}, learner=learner, placement=placement) == []


def test_a_server_shares_nothing() -> None:
    sampler = {"engine": "endpoint", "endpoint": {"url": "http://a:8000", "folder": "/a"}}
    assert broken(sampler=sampler, placement={"mode": "hybrid"}) == ["placement.mode"]
    assert broken(sampler=sampler, placement={"sharedSamplers": 1}) == ["placement.sharedSamplers"]
    assert broken(sampler=sampler) == []


def test_a_broadcast_reaches_no_device_twice() -> None:
    sync = {"transport": "collective"}
    assert broken(placement={"mode": "collocated"}, weightSync=sync) == ["weightSync.transport"]
    assert broken(placement={"mode": "disaggregated"}, weightSync=sync) == []


@pytest.mark.parametrize(
    ("placement", "good"),
    [
        ({}, False),
        ({"mode": "disaggregated"}, False),
        ({"mode": "auto", "sharedSamplers": 0}, False),
        ({"mode": "auto", "sharedSamplers": 1}, True),
        ({"mode": "collocated"}, True),
        ({"mode": "hybrid"}, True),
    ],
)
def test_memory_of_a_device_is_for_those_who_share_it(placement: dict[str, Any], good: bool) -> None:
    parts = {"sampler": {"replicas": 2}, "learner": {"replicas": 2}, "weightSync": {"transport": "ipc"}}
    assert broken(**parts, placement=placement) == ([] if good else ["weightSync.transport"])
    other = {"kind": "command", "command": ["python"]}
    assert broken(**parts, placement=placement, trainer=other) == [], "its loop is its own"


@pytest.mark.parametrize(
    ("sampler", "learner", "good"),
    [(0, 1, False), (0, 2, False), (0, 0, True), (1, 1, True), (None, 1, True), (0, None, True)],
)
def test_samplers_on_cpus_reach_no_memory_of_gpus(
    sampler: int | None, learner: int | None, *, good: bool
) -> None:
    parts = {
        "sampler": {"replicas": 2, "resources": {"accelerators": sampler}},
        "learner": {"replicas": 2, "resources": {"accelerators": learner}},
    }
    ipc = {"weightSync": {"transport": "ipc"}}
    sentence = (
        "weightSync.transport: found ipc, allowed with samplers on CPUs (sampler.resources.accelerators 0) beside learners "
        "on GPUs: auto, objectStore, delta or adapter, as they do not reach a GPU's memory"
    )
    for placement in ({"mode": "hybrid"}, {"mode": "auto", "sharedSamplers": 1}):
        assert told(**parts, **ipc, placement=placement) == ([] if good else [sentence])
        assert told(**parts, placement=placement) == []
    of_all = told(**parts, **ipc, placement={"mode": "collocated"})
    assert len(of_all) == (sampler == 0), "they have what learners' pods have"
    assert not [one for one in of_all if one.startswith("weightSync")]


@pytest.mark.parametrize("mode", ["auto", "collocated", "disaggregated", "hybrid"])
def test_a_part_is_no_more_than_a_step_and_others_take_what_is_handed_over(mode: str) -> None:
    two = {"sampler": {"replicas": 2}, "learner": {"replicas": 2}}
    assert broken(**two, placement={"mode": mode, "partGroups": 60}) == []
    assert broken(**two, placement={"mode": mode, "partGroups": 61}) == ["placement.partGroups"]
    nobody = mode in ("collocated", "disaggregated")
    assert broken(**two, placement={"mode": mode, "handOverAt": 0.7}) == ["placement.handOverAt"] * nobody


def test_verl_shares_in_its_own_way() -> None:
    spec = run(
        trainer={"kind": "verl"},
        sampler={"engine": "vllm", "tensorParallelSize": 2},
        placement={"mode": "collocated"},
    )
    assert spec.shared_samplers == 0
    assert not [one for one in check_rules(spec) if one.path[1] in ("placement", "sampler")]
    more = spec.model_copy(update={"placement": run(placement={"residency": "keep"}).placement})
    found = [
        problem.sentence for problem in check_rules(more) if problem.path[1:] == ("placement", "residency")
    ]
    assert found == ["found keep, allowed with trainer.kind verl: auto"]


@pytest.mark.parametrize("mode", ["hybrid", "auto"])
def test_who_drains_hands_nothing_over(mode: str) -> None:
    two = {"sampler": {"replicas": 2}, "learner": {"replicas": 2}}
    placement = {"mode": mode, "handOverAt": 0.7, "sharedSamplers": 1}
    assert broken(**two, placement=placement) == []
    assert broken(**two, placement=placement | {"handOver": "drain"}) == ["placement.handOverAt"]
