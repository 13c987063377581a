from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from rl_api import RunSpec
from rl_api.errors import InvalidConfig, PlacementError
from rl_trainer.placement.bundles import bundles, check_workers
from rl_trainer.placement.groups import WHOLE_PLACE, Bundle, Reservation
from rl_trainer.placement.places import Elasticity, Placement
from rl_trainer.run.supported import check_supported


def spec(**parts: Any) -> RunSpec:
    base = {"model": {"source": "tiny"}, "task": {"environment": "reasoning-gym", "name": "chain_sum"}}
    return RunSpec.model_validate(base | parts)


def test_every_actor_has_a_bundle_of_its_own():
    found = bundles(spec(learner={"replicas": 2, "threads": 3}, sampler={"replicas": 2, "threads": 1}))
    assert [(b.name, b.cpus, b.gpus) for b in found] == [
        ("buffer", 0.01, 0.0),
        ("learner 0", 3, 0.0),
        ("learner 1", 3, 0.0),
        ("sampler 0", 1, 0.0),
        ("sampler 1", 1, 0.0),
    ]


def test_reward_models_have_bundles_of_their_own():
    model = {"source": "org/judge", "replicas": 2, "cpu": 2.5}
    task = {
        "environment": "reasoning-gym",
        "name": "chain_sum",
        "rewards": [{"rule": "model"}],
        "rewardModel": model,
    }
    found = bundles(spec(task=task), marked=("head", "learner", "sampler", "reward-model"))
    own = {"role": "reward-model", "share": WHOLE_PLACE}
    assert found[1:3] == [Bundle(f"reward model {n}", 2.5, **own) for n in (0, 1)]


def test_samplers_on_cpus_do_not_read_the_memory_of_gpus():
    parts = {"placement": {"mode": "hybrid"}, "weightSync": {"transport": "ipc"}}
    on_cpus = {"replicas": 2, "resources": {"accelerators": 0}}
    sentence = r"weightSync\.transport: found ipc, allowed with samplers on CPUs \(sampler\.resources\.accelerators 0\)"
    with pytest.raises(PlacementError, match=sentence):
        bundles(spec(**parts, sampler=on_cpus), 1.0)
    assert bundles(spec(**parts, sampler=on_cpus))
    assert bundles(spec(**parts, sampler={"replicas": 2}), 2.0)
    assert bundles(spec(**parts | {"weightSync": {"transport": "objectStore"}}, sampler=on_cpus), 1.0)


def judged(accelerators: int = 1, replicas: int = 2, **parts: Any) -> RunSpec:
    model = {"source": "org/judge", "replicas": replicas, "accelerators": accelerators}
    task = {"environment": "reasoning-gym", "name": "chain_sum", "rewards": [{"rule": "model"}]}
    return spec(task=task | {"rewardModel": model}, **parts)


@pytest.mark.parametrize(
    ("gpus", "accelerators", "learner", "sampler"), [(4, 1, 1, 1), (3, 1, 1, 0), (3, 0, 1, 1), (2, 0, 1, 1)]
)
def test_reward_models_have_the_gpus_that_they_ask_for(
    gpus: int, accelerators: int, learner: float, sampler: float
):
    told: list[str] = []
    found = {b.name: b.gpus for b in bundles(judged(accelerators), gpus, warn=told.append)}
    assert found["reward model 0"] == found["reward model 1"] == accelerators
    assert (found["learner 0"], found["sampler 0"]) == (learner, sampler)
    assert len(told) == (not sampler)


def test_learners_that_reward_models_leave_no_gpu_are_told_of():
    sentence = (
        "placement: 1 learner needs a GPU, and found 0 beside 2 of reward models; add GPUs, or set "
        "task.rewardModel.accelerators to 0"
    )
    with pytest.raises(PlacementError, match=f"^{sentence}$"):
        bundles(judged(), 2)
    cores = {"resources": {"accelerators": 0}}
    assert {b.name: b.gpus for b in bundles(judged(learner=cores), 2)}["learner 0"] == 0
    own = {"learner": 1.0, "sampler": 0.0, "reward-model": 2.0}
    assert {b.name: b.gpus for b in bundles(judged(), 3, own, gpus_of=own)}["learner 0"] == 1


@pytest.mark.parametrize(
    ("replicas", "gpus", "marked", "found"),
    [
        (1, 0.0, (), "1 reward model needs a GPU (task.rewardModel.accelerators), and found 0; add GPUs, or set "),
        (2, 1.0, ("learner",), "2 reward models need a GPU each (task.rewardModel.accelerators), and found 1; "),
        (2, 2.0, (), ""),
        (2, 0.0, ("head",), ""),
        (2, 1.0, ("head", "reward-model"), ""),
        (2, 1.0, ("reward-model",), ""),
    ],
)  # fmt: skip
def test_a_run_does_not_begin_without_the_gpus_of_its_reward_models(
    replicas: int, gpus: float, marked: tuple[str, ...], found: str
):
    """Marked nodes may still come, also where some are there: Ray waits for them."""
    if not found:
        check_workers(judged(replicas=replicas), gpus, marked)
        return
    with pytest.raises(PlacementError, match=re.escape(f"placement: {found}")):
        check_workers(judged(replicas=replicas), gpus, marked)
    check_workers(judged(0, replicas), gpus, marked)


def test_simulators_have_nodes_of_their_own_where_nodes_are_marked():
    task = {"environment": "tool-use", "name": "calculator", "simulators": {"replicas": 2, "cpu": 1.5}}
    alone = bundles(spec(task=task))
    assert alone[1:3] == [Bundle(f"simulator {n}", 1.5) for n in (0, 1)]
    found = bundles(spec(task=task), marked=("head",))
    own = {"role": "simulator", "share": WHOLE_PLACE}
    assert found[1:3] == [Bundle(f"simulator {n}", 1.5, **own) for n in (0, 1)]


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_placement_says_whether_learners_have_gpus(gpus: int):
    reservation: Any = SimpleNamespace(bundles=bundles(spec(), gpus=gpus))
    assert Placement(reservation, {}, None).learner_gpus is (gpus > 0)


@pytest.mark.parametrize(("gpus", "learner", "sampler"), [(0, 0, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1)])
def test_gpus_go_to_learners_first_and_to_a_whole_role_or_none(gpus: int, learner: float, sampler: float):
    found = {b.name: b.gpus for b in bundles(spec(sampler={"replicas": 2}), gpus)}
    assert (found["learner 0"], found["sampler 0"], found["sampler 1"]) == (learner, sampler, sampler)


def test_fewer_gpus_than_learners_are_no_reason_to_train_on_cpus():
    sentence = "placement: 4 learners need a GPU each, and found 3; set learner.replicas to 3, add GPUs, or hide them"
    with pytest.raises(PlacementError, match=sentence):
        bundles(spec(learner={"replicas": 4}), 3)
    assert {b.gpus for b in bundles(spec(learner={"replicas": 4}), 0)} == {0.0}


def test_samplers_that_get_no_gpu_although_there_are_some_are_told_of():
    told: list[str] = []
    three = spec(sampler={"replicas": 3})
    found = {b.name: b.gpus for b in bundles(three, 3, warn=told.append)}
    assert (found["learner 0"], found["sampler 0"]) == (1, 0)
    assert len(told) == 1
    assert told[0].startswith(
        "sampling is on CPUs: samplers would take 3 GPUs, one each, and 2 are left for them; "
    )
    for run, gpus in (
        (three, 0),
        (three, 4),
        (spec(sampler={"replicas": 3, "resources": {"accelerators": 0}}), 3),
    ):
        bundles(run, gpus, warn=told.append)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("learners", "gpus_of"), [((0.0, 1.0), {"learner": 0}), ((1.0, 0.0), {"learner": 2})]
)
def test_a_role_with_nodes_of_its_own_has_their_gpus(
    learners: tuple[float, float], gpus_of: dict[str, float]
):
    own = {**gpus_of, "sampler": 2 - gpus_of["learner"]}
    found = bundles(spec(learner={"replicas": 2}), 2, ("learner", "sampler"), gpus_of=own)
    assert (found[1].gpus, found[3].gpus) == learners


DIVIDED = {"engine": "vllm", "tensorParallelSize": 2, "pipelineParallelSize": 2}


@pytest.mark.parametrize(
    ("gpus", "sampler", "cpus", "taken"),
    [
        (9, {}, 1, 4),
        (9, {"threads": 6}, 6, 4),
        (8, {}, 4, 0),
        (0, {}, 4, 0),
        (0, {"threads": 6}, 6, 0),
        (9, {"resources": {"accelerators": 0}}, 4, 0),
        (9, {"resources": {"cpu": 2}}, 2, 4),
    ],
)
def test_a_sampler_of_four_parts_has_a_gpu_or_a_core_for_each(
    gpus: int, sampler: dict[str, Any], cpus: float, taken: float
):
    found = bundles(spec(sampler={"replicas": 2, **DIVIDED, **sampler}), gpus)
    assert [(b.cpus, b.gpus) for b in found if b.name.startswith("sampler")] == [(cpus, taken)] * 2
    assert found[1].gpus == (1 if gpus else 0)


def placed(wanted: list[Bundle]) -> Any:
    """A reservation of these bundles, but for Ray's part of it."""
    found = SimpleNamespace(bundles=wanted)
    found.beginning = partial(Reservation.beginning, found)
    return found


@pytest.mark.parametrize(("gpus", "cpus", "taken"), [(9, 1, 2), (8, 2, 0), (0, 2, 0)])
def test_a_sampler_in_two_pods_has_a_bundle_for_each(gpus: int, cpus: float, taken: float):
    run = spec(sampler={"replicas": 2, **DIVIDED, "podsPerReplica": 2})
    found = bundles(run, gpus, marked=("sampler",))
    assert [(b.name, b.cpus, b.gpus) for b in found[2:]] == [
        ("sampler 0", cpus, taken),
        ("pod of sampler 0 number 1", cpus, taken),
        ("sampler 1", cpus, taken),
        ("pod of sampler 1 number 1", cpus, taken),
    ]
    assert {b.share for b in found[2:]} == {WHOLE_PLACE}, "each on a node of its own, where nodes are marked"
    one = Placement(placed(found), {}, None)
    assert (one.samplers, one.other_pods(0), one.other_pods(1)) == (2, (3,), (5,))
    elastic = Elasticity(tuple(found[2:4]), 1, None, 60.0)
    several = Placement(placed(found[:2]), {7: placed(found[2:4])}, elastic)
    assert (several.samplers, several.other_pods(7)) == (1, (1,))


def test_samplers_of_one_pod_have_no_others():
    found = bundles(spec(sampler={"replicas": 2}))
    assert Placement(placed(found), {}, None).other_pods(1) == ()


def test_samplers_of_several_parts_that_get_no_gpus_are_told_of():
    told: list[str] = []
    bundles(spec(sampler={"replicas": 2, **DIVIDED}), 8, warn=told.append)
    assert told[0].startswith(
        "sampling is on CPUs: samplers would take 8 GPUs, 4 each, and 7 are left for them; "
    )


def test_resources_of_the_sampler_overrule():
    found = {b.name: b for b in bundles(spec(sampler={"resources": {"cpu": 0.5, "accelerators": 2}}), 8)}
    assert (found["sampler 0"].cpus, found["sampler 0"].gpus) == (0.5, 2.0)


def test_a_learner_pod_has_a_process_for_each_of_its_accelerators():
    learner = {"replicas": 2, "resources": {"accelerators": 2}, "threads": 3}
    found = [b for b in bundles(spec(learner=learner), 8) if b.name.startswith("learner")]
    assert [(b.name, b.cpus, b.gpus) for b in found] == [(f"learner {rank}", 3, 1.0) for rank in range(4)]
    with pytest.raises(PlacementError, match=r"4 learners need a GPU each, and found 3; set .* to 1, add"):
        bundles(spec(learner=learner), 3)


@pytest.mark.parametrize(
    ("learner", "gpus", "advice"),
    [
        ({"resources": {"accelerators": 8}}, 4, "set learner.resources.accelerators to 4, add GPUs"),
        (
            {"replicas": 2, "resources": {"accelerators": 8}},
            4,
            "set learner.replicas to 1 and learner.resources.accelerators to 4, add GPUs",
        ),
        ({}, 0.5, "add GPUs"),
    ],
)
def test_a_learner_with_too_few_gpus_is_told_what_is_allowed(learner: Any, gpus: float, advice: str):
    with pytest.raises(PlacementError, match=f"found {gpus}; {advice}, or hide them"):
        bundles(spec(learner=learner), gpus)


@pytest.mark.parametrize(
    ("sampler", "gpus", "advice"),
    [
        ({"replicas": 2, **DIVIDED}, 8, "lower sampler.replicas, "),
        (DIVIDED, 4, "lower sampler.tensorParallelSize or sampler.pipelineParallelSize, "),
        (
            {"replicas": 2, **DIVIDED},
            4,
            "lower sampler.replicas and sampler.tensorParallelSize or sampler.pipelineParallelSize, ",
        ),
        ({}, 1, ""),
    ],
)
def test_samplers_with_too_few_gpus_are_told_what_would_do(sampler: dict[str, Any], gpus: int, advice: str):
    told: list[str] = []
    bundles(spec(sampler=sampler), gpus, warn=told.append)
    assert f"are left for them; add GPUs, {advice}or set sampler.resources.accelerators to 0" in told[0]


def test_learners_without_accelerators_leave_them_to_samplers():
    found = {b.name: b.gpus for b in bundles(spec(learner={"resources": {"accelerators": 0}}), 1)}
    assert found == {"buffer": 0.0, "learner 0": 0.0, "sampler 0": 1.0}


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            {"sampler": {"tensorParallelSize": 2}},
            "spec.sampler.tensorParallelSize: found 2, with sampler.engine torch this version of rltrain can run 1; set "
            "sampler.engine: vllm",
        ),
        (
            {"sampler": {"engine": "vllm", "temperature": 0.005}},
            "spec.sampler.temperature: found 0.005, allowed with sampler.engine vllm: 0.01 to 2.0",
        ),
    ],
)
def test_what_cannot_be_run_yet_is_refused(parts: dict[str, Any], sentence: str):
    check_supported(spec())
    check_supported(spec(sampler={"engine": "vllm"}))
    check_supported(spec(sampler={"engine": "vllm", "topP": 0.9, "topK": 50}))
    check_supported(spec(sampler={"engine": "vllm", "tensorParallelSize": 2, "pipelineParallelSize": 2}))
    check_supported(spec(sampler={"engine": "vllm", "temperature": 0.7, "topP": 0.9}))
    with pytest.raises(InvalidConfig, match=sentence):
        check_supported(spec(**parts))


def test_actors_go_to_the_nodes_of_their_role_where_there_are_such():
    both = bundles(spec(), marked={"CPU": 4.0, "learner": 1.0, "sampler": 2.0})
    assert [(b.name, b.role) for b in both] == [
        ("buffer", None),
        ("learner 0", "learner"),
        ("sampler 0", "sampler"),
    ]
    assert both[1].resources() == {"CPU": 1, "learner": 0.001}
    assert both[2].resources() == {"CPU": 1, "sampler": 1.0}, "a sampler has its place for itself"
    assert {b.role for b in bundles(spec())} == {None}


def test_the_head_is_marked_so_samplers_that_come_later_will_be():
    found = bundles(spec(sampler={"replicas": 3}), marked={"head": 1.0, "learner": 1.0}, samplers=1)
    assert [(b.name, b.role) for b in found] == [
        ("buffer", "head"),
        ("learner 0", "learner"),
        ("sampler 0", "sampler"),
    ]


@pytest.mark.parametrize("gpus", [0, 4])
def test_samplers_that_share_are_guests_of_the_first_learners(gpus: int):
    hybrid = spec(
        placement={"mode": "hybrid", "sharedSamplers": 1},
        learner={"replicas": 2, "threads": 3},
        sampler={"replicas": 2, "threads": 4},
    )
    found = bundles(hybrid, gpus)
    of_one = float(gpus > 0)
    assert [(b.name, b.guest, b.cpus, b.gpus, b.guest_gpus) for b in found[1:]] == [
        ("learner 0", "sampler 0", 4, of_one, of_one / 2),
        ("learner 1", "", 3, of_one, 0),
        ("sampler 1", "", 4, of_one, 0),
    ]
    reservation: Any = SimpleNamespace(bundles=found)
    assert Placement(reservation, {}, None).samplers == 2


def test_two_actors_of_one_bundle_ask_for_no_more_than_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rl_trainer.placement.groups.placement_group", lambda *_, **__: None)
    monkeypatch.setattr(
        "rl_trainer.placement.groups.PlacementGroupSchedulingStrategy",
        lambda group, placement_group_bundle_index, **_: placement_group_bundle_index,
    )
    collocated = spec(placement={"mode": "collocated"}, learner={"threads": 2}, sampler={"threads": 4})
    reservation = Reservation(bundles(collocated, 1))
    half = {"num_cpus": 2, "num_gpus": 0.5, "scheduling_strategy": 1}
    assert reservation.options("learner 0") == reservation.options("sampler 0") == half


def test_a_guest_may_do_without_the_gpu():
    none = spec(placement={"mode": "collocated"}, sampler={"resources": {"accelerators": 0}})
    (learner,) = bundles(none, 1)[1:]
    assert (learner.gpus, learner.guest, learner.guest_gpus) == (1, "sampler 0", 0)
