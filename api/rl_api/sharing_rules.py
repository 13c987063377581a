"""Rules of samplers that live on learners' devices. See `rl_api.rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec

OWN_DEVICES: Final = "allowed with mode disaggregated: 0 or null, as its samplers have devices of their own"
ALL_SHARE: Final = "in which all samplers share"
SOME_SHARE: Final = "found 0, allowed with mode hybrid: a whole number >= 1, as some samplers share"
NOT_ALL_SHARE: Final = "as others have devices of their own; all share with mode collocated"
TWO_SAMPLERS: Final = (
    "allowed with placement.mode hybrid: a whole number >= 2, as some samplers share learners' devices and others have "
    "their own"
)
NOT_THEIR_OWN: Final = (
    "where all samplers share learners' devices: {}, as they are in learners' pods and have what these have"
)
NO_POOLS: Final = f"allowed {NOT_THEIR_OWN.format('[]')}"
NO_TOPOLOGY: Final = f"found an object, allowed {NOT_THEIR_OWN.format('null')}"
NO_ACCELERATORS: Final = f"allowed {NOT_THEIR_OWN.format('null or 1')}"
ONE_BESIDE_EACH: Final = "as each sampler that shares lives beside a learner process of its own"
ONE_DEVICE: Final = (
    "where samplers share learners' devices: 1, as a sampler shares the one of one learner process"
)
NOTHING_TO_SHARE: Final = "allowed with engine endpoint: auto or disaggregated, as the server has its devices"
NOBODY_SHARES: Final = "allowed with engine endpoint: 0 or null, as the server has its devices"
NOBODY_TO_HAND_TO: Final = "allowed: null with placement.mode"
NOTHING_CHANGES: Final = "found an object, allowed: null with placement.mode"
AUTO_CHANGES: Final = "as only auto lets a run change its placement"
NOTHING_TO_HAND_OVER: Final = (
    "allowed: null with placement.handOver drain, as samplers finish what they have begun"
)
OTHERS_SAMPLE_ON: Final = "as only with hybrid and auto others sample on"
NOT_TWICE: Final = (
    "allowed where samplers share learners' devices: auto, objectStore, delta, adapter or ipc, as a broadcast reaches each "
    "device once"
)
NOT_BESIDE: Final = (
    "allowed where no sampler shares learners' devices: auto, objectStore, collective, delta or adapter, as with ipc a "
    "sampler copies weights out of a learner's memory on the device of both; samplers share with placement.mode "
    "collocated or hybrid"
)

OUT_OF_REACH: Final = (
    "allowed with samplers on CPUs (sampler.resources.accelerators 0) beside learners on GPUs: auto, objectStore, delta or "
    "adapter, as they do not reach a GPU's memory"
)


def _ours(spec: RunSpec) -> bool:
    """Whether rltrain's own trainer shares devices; what verl does is in `rl_api.verl`."""
    return spec.trainer.kind == "rltrain"


def who_shares(spec: RunSpec) -> Iterator[Problem]:
    """`placement.sharedSamplers` is what `placement.mode` means: 0 with disaggregated, all samplers with collocated, some
    and not all of two or more with hybrid, and never more than `sampler.replicas`."""
    placement, replicas = spec.placement, spec.sampler.replicas
    shared, mode = placement.shared_samplers, placement.mode
    if not _ours(spec):
        return
    if mode == "hybrid" and replicas < 2 and spec.sampler.engine != "endpoint":
        yield spec_problem("sampler.replicas", f"found {replicas}, {TWO_SAMPLERS}", "placement.mode")
        return
    if shared is None:
        return
    if mode == "disaggregated" and shared > 0:
        problem = f"found {shared}, {OWN_DEVICES}"
    elif mode == "collocated" and shared != replicas:
        problem = f"found {shared}, allowed with mode collocated, {ALL_SHARE}: null or sampler.replicas = {replicas}"
    elif mode == "hybrid" and shared == 0:
        problem = SOME_SHARE
    elif mode == "hybrid" and shared >= replicas:
        fewer = f"a whole number < sampler.replicas = {replicas}"
        problem = f"found {shared}, allowed with mode hybrid: {fewer}, {NOT_ALL_SHARE}"
    elif mode == "auto" and shared > replicas:
        problem = f"found {shared}, allowed: a whole number <= sampler.replicas = {replicas}"
    else:
        return
    yield spec_problem("placement.sharedSamplers", problem, "placement.mode", "sampler.replicas")


def devices_to_share(spec: RunSpec) -> Iterator[Problem]:
    """No more samplers share than there are learner processes; each has one device, and none is a server's."""
    placement, sampler, learner = spec.placement, spec.sampler, spec.learner
    shared, replicas = spec.shared_samplers, sampler.replicas
    if not _ours(spec) or not shared:
        return
    if sampler.engine == "endpoint":
        if placement.mode in ("collocated", "hybrid"):
            yield spec_problem(
                "placement.mode", f"found {placement.mode}, {NOTHING_TO_SHARE}", "sampler.engine"
            )
        else:
            yield spec_problem(
                "placement.sharedSamplers", f"found {shared}, {NOBODY_SHARES}", "sampler.engine"
            )
        return
    if shared > learner.ranks and shared <= replicas:
        several = learner.ranks_per_replica > 1
        processes = "learner.replicas * learner.resources.accelerators" if several else "learner.replicas"
        most = f"at most {processes} = {learner.ranks}, {ONE_BESIDE_EACH}"
        if placement.mode == "collocated":
            yield spec_problem(
                "sampler.replicas",
                f"found {replicas}, allowed with placement.mode collocated: {most}",
                "placement.mode",
                "learner.replicas",
            )
        else:
            yield spec_problem(
                "placement.sharedSamplers", f"found {shared}, allowed: {most}", "learner.replicas"
            )
    for name, size in (
        ("tensorParallelSize", sampler.tensor_parallel_size),
        ("pipelineParallelSize", sampler.pipeline_parallel_size),
    ):
        if size > 1:
            yield spec_problem(f"sampler.{name}", f"found {size}, allowed {ONE_DEVICE}", "placement.mode")


def nothing_of_their_own(spec: RunSpec) -> Iterator[Problem]:
    """Where all samplers share learners' devices, `sampler.pools` is empty, `sampler.topology` null, and
    `sampler.resources.accelerators` null or 1."""
    sampler = spec.sampler
    if not _ours(spec) or sampler.engine == "endpoint" or not 0 < sampler.replicas <= spec.shared_samplers:
        return
    if sampler.pools:
        yield spec_problem(
            "sampler.pools", f"found [{', '.join(sampler.pools)}], {NO_POOLS}", "placement.mode"
        )
    if sampler.topology is not None:
        yield spec_problem("sampler.topology", NO_TOPOLOGY, "placement.mode")
    found = sampler.resources.accelerators if sampler.resources is not None else None
    if found not in (None, 1):
        yield spec_problem(
            "sampler.resources.accelerators", f"found {found}, {NO_ACCELERATORS}", "placement.mode"
        )


def no_broadcast_on_shared(spec: RunSpec) -> Iterator[Problem]:
    """`weightSync.transport` is not collective where samplers share learners' devices."""
    if _ours(spec) and spec.shared_samplers and spec.weight_sync.transport == "collective":
        yield spec_problem("weightSync.transport", f"found collective, {NOT_TWICE}", "placement.mode")


def somebody_beside(spec: RunSpec) -> Iterator[Problem]:
    """`weightSync.transport` is ipc only where samplers share learners' devices, none on CPUs beside learners on GPUs."""
    sampler, learner = spec.sampler, spec.learner
    if not _ours(spec) or spec.weight_sync.transport != "ipc":
        return
    if not spec.shared_samplers:
        yield spec_problem(
            "weightSync.transport",
            f"found ipc, {NOT_BESIDE}",
            "placement.mode",
            "placement.sharedSamplers",
        )
        return
    # Where all share, `nothing_of_their_own` refuses 0.
    on_cpus = sampler.resources is not None and sampler.resources.accelerators == 0
    on_gpus = learner.resources is not None and (learner.resources.accelerators or 0) >= 1
    if on_cpus and on_gpus and spec.shared_samplers < sampler.replicas:
        yield spec_problem(
            "weightSync.transport",
            f"found ipc, {OUT_OF_REACH}",
            "sampler.resources.accelerators",
            "learner.resources.accelerators",
        )


def parts_of_a_step(spec: RunSpec) -> Iterator[Problem]:
    """`placement.partGroups` is <= `algorithm.promptsPerStep`."""
    part, prompts = spec.placement.part_groups, spec.algorithm.prompts_per_step
    if _ours(spec) and part is not None and part > prompts:
        yield spec_problem(
            "placement.partGroups",
            f"found {part}, allowed: a whole number <= algorithm.promptsPerStep = {prompts}",
            "algorithm.promptsPerStep",
        )


def others_to_hand_to(spec: RunSpec) -> Iterator[Problem]:
    """`placement.handOverAt` is set with mode hybrid or auto only, as with others nobody samples on, and not with
    `placement.handOver` drain, with which samplers keep what they have begun."""
    placement = spec.placement
    if _ours(spec) and placement.hand_over_at is not None and placement.mode not in ("hybrid", "auto"):
        yield spec_problem(
            "placement.handOverAt",
            f"found {placement.hand_over_at:g}, {NOBODY_TO_HAND_TO} {placement.mode}, {OTHERS_SAMPLE_ON}",
            "placement.mode",
        )
    elif _ours(spec) and placement.hand_over_at is not None and placement.hand_over == "drain":
        yield spec_problem(
            "placement.handOverAt",
            f"found {placement.hand_over_at:g}, {NOTHING_TO_HAND_OVER}",
            "placement.handOver",
        )


def what_may_change(spec: RunSpec) -> Iterator[Problem]:
    """`placement.replan` is set with mode auto only: with others the user has chosen."""
    placement = spec.placement
    if _ours(spec) and placement.replan is not None and placement.mode != "auto":
        yield spec_problem(
            "placement.replan", f"{NOTHING_CHANGES} {placement.mode}, {AUTO_CHANGES}", "placement.mode"
        )


SHARING_RULES: Final = (
    *(who_shares, devices_to_share, nothing_of_their_own, no_broadcast_on_shared, somebody_beside),
    *(parts_of_a_step, others_to_hand_to, what_may_change),
)
"""Rules of who shares devices, and how."""
