"""What each actor of a run asks for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

from rl_api import RunSpec
from rl_api.errors import PlacementError
from rl_api.sharing_rules import OUT_OF_REACH
from rl_api.task import WORKERS, role_of
from rl_trainer.placement.groups import ROLE_SHARE, WHOLE_PLACE, Bundle


def bundles(
    spec: RunSpec,
    gpus: float = 0.0,
    marked: Container[str] = (),
    samplers: int | None = None,
    gpus_of: Mapping[str, float] | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Bundle]:
    """One bundle per actor, named as in messages, and of a sampler of several pods one for each other pod after its own;
    samplers that share learners' devices are guests in theirs.

    Args:
        spec: the run.
        gpus: GPUs that the Ray cluster has. As many for workers of the task as these ask for, see `check_workers`; one each
            for learner processes, unless `learner.resources.accelerators` is 0, then for each sampler as many as it has
            parts, where there are enough for all of them and `sampler.resources.accelerators` does not say otherwise. Where
            there is none, CPUs do, with a core for each part.
        marked: roles (head, learner, sampler, those of workers of the task) that have nodes of their own in the Ray cluster,
            each marked by a custom resource of that name. Where the head has one, the others get them too, if only later.
        samplers: how many; None: `sampler.replicas`.
        gpus_of: of the nodes that are marked for a role, where there are such: the role has these and no others.
        warn: told, in a sentence, where samplers get no GPU because there are too few.

    Raises:
        PlacementError: there are GPUs, but too few for all learners beside workers of the task; or samplers on CPUs are to
            copy weights out of the memory of learners' GPUs.
    """

    def mark(role: str) -> str | None:
        return role if role in marked or "head" in marked else None

    learners = spec.learner.ranks
    samplers = spec.sampler.replicas if samplers is None else samplers
    shared = spec.shared_samplers
    alone = samplers - shared
    resources = spec.sampler.resources
    own = gpus_of or {}
    there, of_workers = own.get("learner", gpus), _gpus_of_workers(spec)
    free = max(0.0, gpus - of_workers)
    for_learners = own.get("learner", free)
    asked = spec.learner.resources
    learner_gpus = 1.0 if there else 0.0
    if asked is not None and asked.accelerators is not None:
        learner_gpus = float(asked.accelerators > 0)
    if there and for_learners < learners * learner_gpus:
        beside = f" beside {of_workers} of reward models" if for_learners < there else ""
        instead = "hide them (CUDA_VISIBLE_DEVICES=) to train on CPUs"
        raise PlacementError(
            f"placement: {_each_a_gpu(learners, 'learner')}, and found {for_learners:g}{beside}; "
            f"{_fewer_learners(spec, int(for_learners))}add GPUs, or "
            f"{'set task.rewardModel.accelerators to 0' if beside else instead}"
        )
    for_samplers = own.get("sampler", free - learners * learner_gpus)
    pods, each, per_pod = spec.sampler.pods_per_replica, spec.sampler.devices, spec.sampler.devices_per_pod
    sampler_gpus = float(per_pod) if for_samplers >= alone * each else 0.0
    if resources is not None and resources.accelerators is not None:
        sampler_gpus = float(resources.accelerators)
    elif each and own.get("sampler", gpus) and not sampler_gpus:
        warn(
            f"sampling is on CPUs: samplers would take {alone * each} GPUs, {'one' if each == 1 else each} each, and "
            f"{for_samplers:g} are left for them; "
            f"add GPUs, {_fewer_samplers(spec, alone, int(for_samplers))}or set sampler.resources.accelerators to 0 if "
            "that is what you want"
        )
    guest_gpus = learner_gpus / 2
    if resources is not None and resources.accelerators == 0:
        guest_gpus = 0.0
    if learner_gpus and not guest_gpus and spec.weight_sync.transport == "ipc":
        raise PlacementError(f"placement: weightSync.transport: found ipc, {OUT_OF_REACH}")

    def sampler_cpus(gpus: float) -> float:
        said = resources.cpu if resources is not None else None
        return said or float(spec.sampler.threads if gpus else spec.sampler.cores)

    share = WHOLE_PLACE if mark("sampler") else ROLE_SHARE

    def learner(rank: int) -> Bundle:
        own = Bundle(f"learner {rank}", spec.learner.threads, learner_gpus, mark("learner"))
        if rank >= shared:
            return own
        cpus = max(own.cpus, sampler_cpus(guest_gpus))
        return replace(own, cpus=cpus, guest=f"sampler {rank}", guest_gpus=guest_gpus)

    return [
        # Ray refuses an empty bundle; the buffer computes next to nothing.
        Bundle("buffer", 0.01, role=mark("head")),
        *_beside(spec, mark),
        *map(learner, range(learners)),
        *(
            Bundle(name, sampler_cpus(sampler_gpus), sampler_gpus, mark("sampler"), share)
            for rank in range(shared, samplers)
            for name in (f"sampler {rank}", *(f"{pod_of(rank)}{pod}" for pod in range(1, pods)))
        ),
    ]


def check_workers(spec: RunSpec, gpus: float, marked: Container[str]) -> None:
    """Raises PlacementError where workers of the task ask for GPUs that are not there; for arguments see `bundles`. Nodes of
    their own may still come, one after the other: it is Ray that waits for them."""
    for kind, workers in spec.task.workers.items():
        wanted = workers.replicas * workers.accelerators
        if role_of(kind) not in marked and "head" not in marked and gpus < wanted:
            raise PlacementError(
                f"placement: {_each_a_gpu(wanted, kind)} (task.{WORKERS[kind]}.accelerators), and found {gpus:g}; add "
                f"GPUs, or set task.{WORKERS[kind]}.accelerators to 0"
            )


def _gpus_of_workers(spec: RunSpec) -> int:
    return sum(one.replicas * one.accelerators for one in spec.task.workers.values())


def _each_a_gpu(count: int, noun: str) -> str:
    return f"{count} {noun}s need a GPU each" if count > 1 else f"1 {noun} needs a GPU"


def _beside(spec: RunSpec, mark: Callable[[str], str | None]) -> list[Bundle]:
    """Workers for the task: on a cluster each on a node of its own."""
    return [
        Bundle(
            f"{kind} {rank}",
            workers.cpu,
            float(workers.accelerators),
            role,
            ROLE_SHARE if role is None else WHOLE_PLACE,
        )
        for kind, workers in spec.task.workers.items()
        for role in [mark(role_of(kind))]
        for rank in range(workers.replicas)
    ]


def pod_of(rank: int) -> str:
    """How the names of bundles for the other pods of a sampler begin."""
    return f"pod of sampler {rank} number "


def _fewer_learners(spec: RunSpec, gpus: int) -> str:
    """How learners would do with `gpus`, as an advice with a comma after it; empty: there is none."""
    replicas, each = spec.learner.replicas, spec.learner.ranks_per_replica
    if gpus >= each:
        return f"set learner.replicas to {gpus // each}, "
    one = "learner.replicas to 1 and " if replicas > 1 else ""
    return f"set {one}learner.resources.accelerators to {gpus}, " if gpus else ""


def _fewer_samplers(spec: RunSpec, samplers: int, gpus: int) -> str:
    """The same of samplers: of one that has too few by itself, its parts."""
    if gpus >= spec.sampler.devices:
        return "lower sampler.replicas, "
    parts = "sampler.tensorParallelSize or sampler.pipelineParallelSize, "
    return f"lower {'sampler.replicas and ' if samplers > 1 else ''}{parts}" if gpus > 0 else ""
