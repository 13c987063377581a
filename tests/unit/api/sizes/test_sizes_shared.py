"""Devices on which learners and samplers take turns: what they need with both residencies, and what would fit."""

from __future__ import annotations

from typing import Any

import pytest
from model_configs import MODELS

from rl_api import RunSpec
from rl_api.sizes.layout import Group, as_text, nodes_of
from rl_api.sizes.memory import GB, Device, gigabytes
from rl_api.sizes.run_plan import Place, RunPlan, plan_run
from rl_api.sizes.shape import model_shape

SHAPE = model_shape(MODELS["Qwen2.5-0.5B"])


def planned(
    memory: int | None,
    *,
    accelerator: bool = True,
    samplers: int = 1,
    learners: int = 1,
    main_memory: int | None = None,
    **parts: Any,
) -> RunPlan:
    document: dict[str, Any] = {
        "model": {"source": "a/b", "dtype": "bfloat16"},
        "task": {"environment": "reasoning-gym", "name": "chain_sum"},
        "sampler": {"engine": "vllm", "replicas": samplers, "maxNewTokens": 1024, **parts.pop("sampler", {})},
        "learner": {"replicas": learners, "tokensPerMicroBatch": 4096, **parts.pop("learner", {})},
        "placement": {"mode": "collocated", **parts.pop("placement", {})},
    }
    spec = RunSpec.model_validate(document | parts, by_alias=True, by_name=False)
    device = None if memory is None else Device(memory, accelerator=accelerator)
    each = int(accelerator)
    place = Place(learners, each, device, per_node=8, main_memory=main_memory)
    return plan_run(spec, SHAPE, place, Place(samplers - spec.shared_samplers, each, device, per_node=8))


def test_where_both_stay_it_is_the_sum_and_else_the_larger_and_the_others_process() -> None:
    plan = planned(80 * GB)
    assert plan.shared is not None
    learner, sampler = plan.roles
    assert plan.shared.keep == learner.parts.total + sampler.parts.total
    assert plan.shared.swap == max(
        learner.parts.total + sampler.parts.overhead, sampler.parts.total + learner.parts.overhead
    )
    # vLLM takes 0.9 of the device for itself.
    assert (plan.shared.residency, plan.shared.total, plan.misfits) == ("swap", plan.shared.swap, [])
    assert planned(80 * GB, placement={"mode": "disaggregated"}).shared is None


def test_versions_that_lie_on_the_device_are_counted_twice_and_never_moved() -> None:
    plan, other = planned(80 * GB, weightSync={"transport": "ipc"}), planned(80 * GB)
    assert plan.shared is not None
    assert other.shared is not None
    version = 2 * SHAPE.parameters  # in bfloat16
    for residency in ("keep", "swap"):
        more = getattr(plan.shared, residency) - getattr(other.shared, residency)
        assert more == pytest.approx(2 * version, rel=0.01)
    assert plan.shared.moved == other.shared.moved
    keep = {"placement": {"residency": "keep"}, "weightSync": {"transport": "ipc"}}
    greedy = {"gpuMemoryUtilization": 0.999}
    (sentence,) = planned(80 * GB, sampler=greedy, **keep).misfits
    share = float(sentence.rpartition("set sampler.gpuMemoryUtilization: ")[2])
    assert planned(80 * GB, sampler={"gpuMemoryUtilization": share}, **keep).misfits == []
    assert planned(80 * GB, sampler={"gpuMemoryUtilization": share + 0.01}, **keep).misfits != []


def test_where_published_versions_are_too_much_the_store_is_advised_and_no_devices_of_their_own() -> None:
    small: dict[str, Any] = {"engine": "torch", "maxSequences": 4}
    ipc: dict[str, Any] = {"weightSync": {"transport": "ipc"}}
    for residency in ("keep", "swap", "auto"):
        parts = {"sampler": small, "placement": {"residency": residency}}
        store = planned(80 * GB, **parts).shared
        assert store is not None
        fits = store.keep if residency == "keep" else store.swap
        assert planned(fits, **parts).misfits == []
        (sentence,) = planned(fits, **parts, **ipc).misfits
        assert sentence.endswith(
            f"; set weightSync.transport: objectStore, with which they need {gigabytes(fits)}"
        )
        together = planned(fits - 1, **parts, **ipc).shared
        assert together is not None
        assert together.misfit is not None
        last = together.misfit.rpartition("; ")[2]
        assert last == "take larger devices" or last.startswith("set placement.residency: swap, ")


def test_what_would_fit_is_said_and_is_true() -> None:
    keep = {"residency": "keep"}
    (sentence,) = planned(80 * GB, placement=keep).misfits
    assert sentence.startswith("a learner and a sampler that share one 80 GB device need ")
    assert "with residency keep; set placement.residency: swap, with which they need " in sentence
    assert planned(80 * GB, placement={"residency": "swap"}).misfits == []
    # Where nothing is left for the other's process neither would do.
    greedy = {"gpuMemoryUtilization": 0.999}
    (sentence,) = planned(80 * GB, placement=keep, sampler=greedy).misfits
    share = float(sentence.rpartition("set sampler.gpuMemoryUtilization: ")[2])
    assert 0.3 < share < 0.9
    assert planned(80 * GB, placement=keep, sampler={"gpuMemoryUtilization": share}).misfits == []
    assert planned(80 * GB, placement=keep, sampler={"gpuMemoryUtilization": share + 0.01}).misfits != []


def test_what_does_not_fit_together_is_said_beside_what_does_not_fit_alone() -> None:
    plan = planned(4 * GB, placement={"residency": "keep"})
    assert plan.shared is not None
    assert plan.shared.misfit is not None
    alone = [role.misfit for role in plan.roles if role.misfit is not None]
    assert alone
    assert plan.misfits == [*alone, plan.shared.misfit]


def test_of_a_pod_without_accelerators_the_memory_is_shared() -> None:
    small = {"engine": "torch", "maxSequences": 4}
    plan = planned(None, accelerator=False, sampler=small)
    assert plan.shared is not None
    assert plan.misfits == []
    enough = planned(plan.shared.keep, accelerator=False, sampler=small)
    assert enough.shared is not None
    assert enough.shared.residency == "keep"
    less = planned(plan.shared.keep - 1, accelerator=False, sampler=small)
    assert less.shared is not None
    assert (less.shared.residency, less.shared.moved, less.misfits) == ("swap", 0, [])
    (sentence,) = planned(plan.shared.swap - 1, accelerator=False, sampler=small).misfits
    assert sentence.endswith(
        " with residency swap; set placement.mode: disaggregated, or take larger devices"
    )


def test_what_is_moved_off_accelerators_has_room_in_main_memory() -> None:
    plan = planned(80 * GB)
    assert plan.shared is not None
    weights = 4 * SHAPE.parameters
    # fp32 weights, gradients and two moments, and the sampler's weights in bfloat16.
    assert plan.shared.moved == pytest.approx(4 * weights + weights / 2, rel=0.01)
    need = plan.roles[0].main_memory + plan.shared.moved
    assert planned(80 * GB, main_memory=need).misfits == []
    (sentence,) = planned(80 * GB, main_memory=need - 1).misfits
    assert "what is moved off devices that samplers share needs" in sentence
    assert sentence.endswith(f"set learner.resources.memory: {-(-need // 2**30)}Gi, or more")


@pytest.mark.parametrize(
    ("mode", "lines", "pods"),
    [
        ("collocated", ["this machine node 0: 2 learners with 2 samplers on their devices, 6 free (copy 0 to copy 1)"], 2),
        (
            "hybrid",
            ["this machine node 0: 2 learners with 1 sampler on their devices, 1 sampler, 5 free (copy 0 to copy 1)"],
            2,
        ),
    ],
)  # fmt: skip
def test_who_sits_with_whom(mode: str, lines: list[str], pods: int) -> None:
    plan = planned(80 * GB, samplers=2, learners=2, placement={"mode": mode})
    assert as_text(plan.nodes) == lines
    assert plan.roles[1].place.pods == pods
    seats = [(seat.label, seat.guest) for seat in plan.nodes[0].seats]
    others = [] if mode == "collocated" else [("sampler 1", "")]
    assert seats == [("copy 0", "sampler 0"), ("copy 1", "" if others else "sampler 1"), *others]


def test_samplers_beside_the_ranks_of_a_pod() -> None:
    nodes = nodes_of([Group("learner", 2, 4, "h100", per_node=4, share=8, guests=6)])
    assert [seat.guest for node in nodes for seat in node.seats][4:] == ["sampler 4", "sampler 5", "", ""]
    assert as_text(nodes) == [
        "h100 node 0: 1 learner of 4 devices with 4 samplers on their devices (copy 0 shard 0 to copy 0 shard 3)",
        "h100 node 1: 1 learner of 4 devices with 2 samplers on their devices (copy 0 shard 4 to copy 0 shard 7)",
    ]
