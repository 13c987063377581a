"""Rules of how learners share a run's batches and the model. See `rl_api.rules`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_api.problems import Problem, spec_problem
from rl_api.run import RunSpec

SEALED_WAYS: Final = (
    "allowed with scheduling.encryption: auto, objectStore, delta, adapter or ipc, as a broadcast is not "
    "encrypted"
)


def even_shares(spec: RunSpec) -> Iterator[Problem]:
    """`algorithm.promptsPerStep` * `groupSize` is a multiple of the learner processes * `miniBatches`."""
    algorithm, ranks = spec.algorithm, spec.learner.ranks
    sequences = algorithm.sequences_per_step
    product = f"algorithm.promptsPerStep * algorithm.groupSize = {sequences}"
    name = _processes(spec)
    divisor = name if name == "learner.replicas" else f"({name})"
    if sequences % ranks:
        found = f"found {ranks}" if name == "learner.replicas" else f"found {name} = {ranks}"
        yield spec_problem(
            "learner.replicas",
            f"{found}, allowed: a divisor of {product}",
            "algorithm.promptsPerStep",
            "algorithm.groupSize",
        )
    elif sequences % (ranks * algorithm.mini_batches):
        per_learner = f"algorithm.promptsPerStep * algorithm.groupSize / {divisor} = {sequences // ranks}"
        yield spec_problem(
            "algorithm.miniBatches",
            f"found {algorithm.mini_batches}, allowed: a divisor of {per_learner}",
            "algorithm.promptsPerStep",
            "algorithm.groupSize",
            "learner.replicas",
        )


def whole_copies(spec: RunSpec) -> Iterator[Problem]:
    """`learner.fsdpSize` divides the learner processes, with `learner.parallelism` fsdp2."""
    learner = spec.learner
    size = learner.fsdp_size
    if size is None:
        return
    if learner.parallelism != "fsdp2":
        yield spec_problem(
            "learner.fsdpSize",
            f"found {size}, allowed: null with learner.parallelism {learner.parallelism}, as only fsdp2 divides a copy",
            "learner.parallelism",
        )
    elif learner.ranks % size:
        yield spec_problem(
            "learner.fsdpSize",
            f"found {size}, allowed: a divisor of {_processes(spec)} = {learner.ranks}",
            "learner.replicas",
        )


def shared_sequences(spec: RunSpec) -> Iterator[Problem]:
    """`learner.contextSize` divides the learner processes."""
    learner = spec.learner
    if learner.ranks % learner.context_size:
        yield spec_problem(
            "learner.contextSize",
            f"found {learner.context_size}, allowed: a divisor of {_processes(spec)} = {learner.ranks}",
            "learner.replicas",
        )


def adapter_of_lora(spec: RunSpec) -> Iterator[Problem]:
    """`weightSync.transport` adapter goes with `learner.lora`."""
    if spec.weight_sync.transport == "adapter" and spec.learner.lora is None:
        yield spec_problem(
            "weightSync.transport",
            "found adapter, allowed: auto, objectStore, collective, delta or ipc without learner.lora, as only LoRA has "
            "an adapter",
            "learner.lora",
        )


def sealed_weights(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `weightSync.transport` is not collective with `scheduling.encryption`: a broadcast is not encrypted."""
    if (
        spec.trainer.kind == "rltrain"
        and spec.scheduling.encryption
        and spec.weight_sync.transport == "collective"
    ):
        yield spec_problem(
            "weightSync.transport", f"found collective, {SEALED_WAYS}", "scheduling.encryption"
        )


def _processes(spec: RunSpec) -> str:
    """The fields that say how many learner processes there are."""
    one = spec.learner.ranks_per_replica == 1
    return "learner.replicas" if one else "learner.replicas * learner.resources.accelerators"
