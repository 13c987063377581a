"""Why a run's pods do not run: from pods, events and KubeRay's status to the sentence that a person needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rl_api.paths import Path, render_path
from rl_api.printable import printable
from rl_operator.decide.shortage import short_of, short_role, waits_for_others
from rl_operator.model.names import CODE_CONTAINER, HEAD, SAMPLER, TASK_WORKERS
from rl_operator.model.seen import Container, Event, Pod, Ray, World
from rl_operator.plan.effective import CHECKPOINT_CLAIM, WEIGHTS_CLAIM, Effective
from rl_operator.plan.roles import Role
from rl_operator.render.encryption import CONTAINER as CERTIFICATES

_PULL: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_CONFIG: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_TAKEN: Final = frozenset(
    {
        "Evicted",
        "NodeShutdown",
        "Preempted",
        "Terminated",
        "EvictionByEvictionAPI",
        "PreemptionByScheduler",
        "TerminationByKubelet",
    }
)
_NODE_LOST: Final = frozenset({"NodeLost", "DeletionByTaintManager"})
_MISSING_CLAIM: Final = re.compile(r'persistentvolumeclaim "([^"]+)" not found')
_MISSING_OBJECT: Final = re.compile(r'(configmap|secret) "([^"]+)" not found', re.IGNORECASE)
_SERVICE_TAKEN: Final = re.compile(r'services "([^"]+)" already exists')
_EXIT_CODE: Final = re.compile(r"exit code (-?\d+)")
_RAN_OUT: Final = re.compile(r"\b(?P<role>sampler|learner) \d+ [^;]*ran out of memory")
_SAID: Final = "rltrain: "
_LONGEST: Final = 600
_CODE: Final = f"container {CODE_CONTAINER}, in which code of yours runs,"
_CODE_MEMORY: Final = "than its memory limit; raise task.resources.memory"


@dataclass(frozen=True)
class Diagnosis:
    """Why something is not running."""

    reason: str
    """One word for programs."""
    message: str
    """A sentence for people."""
    role: str = ""


def one_line(text: str, limit: int = _LONGEST) -> str:
    """`text` on one line of at most `limit` characters, none of which acts on what shows a status, an event or a log."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def last_lines(text: str) -> str:
    """The last three lines of a log that are not empty, on one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(" | ".join(lines[-3:]))


def exit_code(message: str) -> int | None:
    """Exit code that KubeRay's message about a failed job names."""
    match = _EXIT_CODE.search(message)
    return int(match.group(1)) if match else None


def failure_sentence(message: str) -> str:
    """What a failed job's last lines say: the trainer's own sentence where there is one, else the last lines."""
    lines = [line.strip() for line in message.splitlines()]
    said = [line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)]
    return one_line(" ".join(said[-3:])) if said else last_lines(message) or "the job says nothing"


def diagnose(world: World, attempt: int, effective: Effective | None) -> list[Diagnosis]:
    """All that keeps an attempt's pods from running, the most telling first; empty: nothing is known to."""
    if not world.kuberay:
        return [missing_kuberay()]
    pods = sorted(world.pods_of(attempt), key=lambda pod: (pod.role, pod.name))
    found = pods_problems(pods, world, effective.roles if effective is not None else ())
    ray = world.ray(attempt)
    if ray is not None:
        found += _of_ray(ray, world)
    return ranked(found)


class Around(Protocol):
    """What is known besides pods."""

    @property
    def events(self) -> Sequence[Event]:
        """Warnings, newest first."""

    @property
    def log_tail(self) -> Mapping[str, str]:
        """Last log lines of containers that crashed, by pod name."""


def pods_problems(pods: Sequence[Pod], around: Around, roles: Sequence[Role]) -> list[Diagnosis]:
    """What keeps each of these pods, which are of `roles`, from running, the most telling first."""
    found = [diagnosis for pod in pods if (diagnosis := _of_pod(pod, around, roles)) is not None]
    return ranked(found)


_ORDER: Final = (
    "ClaimMissing",
    "ObjectMissing",
    "ImagePullFailed",
    "OutOfMemory",
    "NodeLost",
    "CrashLoop",
    "ContainerNotCreated",
    "QuotaExceeded",
    "PodRefused",
    "NameTaken",
    "Evicted",
    "VolumeNotMounted",
    "NotInGang",
    "Unschedulable",
    "GangWaits",
    "Queued",
)


def ranked(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """The most telling first."""
    return sorted(found, key=lambda one: _ORDER.index(one.reason))


def _of_pod(pod: Pod, world: Around, roles: Sequence[Role]) -> Diagnosis | None:
    causes = [_taken_away(pod), *(_of_container(pod, container, world) for container in pod.containers)]
    if pod.unschedulable:
        causes.append(_unschedulable(pod, roles))
    if _unanswered(pod, world):
        causes.append(_said(pod, "NodeLost", f"node {pod.node} of pod {pod.name} does not answer"))
    if pod.phase == "Pending":
        about = (event for event in world.events if (event.kind, event.name) == ("Pod", pod.name))
        causes += [_of_pod_event(pod, event) for event in about]
    return next((cause for cause in causes if cause is not None), None)


def _unanswered(pod: Pod, world: Around) -> bool:
    """Whether the pod's node is silent: said by an event until its toleration is over and the pod is taken away."""
    return (
        pod.phase == "Running"
        and not pod.ready
        and any(event.name == pod.name and event.reason == "NodeNotReady" for event in world.events)
    )


def _taken_away(pod: Pod) -> Diagnosis | None:
    """What Kubernetes itself ended the pod for."""
    why = one_line(f"{pod.reason}: {pod.message}" if pod.message else pod.reason, 300)
    if pod.reason in _NODE_LOST:
        return _said(pod, "NodeLost", f"node {pod.node} of pod {pod.name} was lost ({why})")
    if pod.reason in _TAKEN:
        return _said(pod, "Evicted", f"pod {pod.name} was taken away ({why})")
    return None


def _of_container(pod: Pod, container: Container, world: Around) -> Diagnosis | None:
    if container.waiting in _PULL:
        why = one_line(container.waiting_message, 300)
        return _said(
            pod,
            "ImagePullFailed",
            f"the image {container.image!r} cannot be pulled ({container.waiting}{': ' + why if why else ''}); "
            "check spec.image, the registry and its credentials",
        )
    if container.waiting in _CONFIG:
        why = f"{container.waiting}: {one_line(container.waiting_message, 300)}"
        return _missing_object(pod, container.waiting_message) or _said(
            pod, "ContainerNotCreated", f"the container cannot be created ({why})"
        )
    if container.ended == "OOMKilled" and not container.ready:
        if container.name == CODE_CONTAINER:
            return _said(
                pod,
                "OutOfMemory",
                f"{_CODE} of pod {pod.name} was killed because it used more {_CODE_MEMORY}",
            )
        return Diagnosis("OutOfMemory", out_of_memory(pod), pod.role)
    # KubeRay makes a head whose first container fails anew, and never restarts it.
    first = container.name == CERTIFICATES and bool(container.exit_code)
    if first or container.waiting == "CrashLoopBackOff" or (container.restarts >= 2 and not container.ready):
        code = f" with exit code {container.exit_code}" if container.exit_code is not None else ""
        log = world.log_tail.get(pod.name) or container.ended_message
        lines = f"; its last lines: {last_lines(log)}" if log else ""
        times = f" {container.restarts} times" if container.restarts else ""
        return _said(
            pod,
            "CrashLoop",
            f"container {container.name} of pod {pod.name} ended{code}{times}{lines}",
        )
    return None


def _said(pod: Pod, reason: str, sentence: str) -> Diagnosis:
    return Diagnosis(reason, f"{pod.role}: {sentence}", pod.role)


def _missing_object(pod: Pod, text: str) -> Diagnosis | None:
    found = _MISSING_OBJECT.search(text)
    if found is None:
        return None
    kind = {"configmap": "ConfigMap", "secret": "Secret"}[found.group(1).lower()]
    return _said(pod, "ObjectMissing", f"{kind} {found.group(2)!r} is missing in this namespace")


def out_of_memory(pod: Pod) -> str:
    """The sentence about a pod that was killed for its memory."""
    limit = f" of {pod.memory_limit}" if pod.memory_limit else ""
    return (
        f"{pod.role}: pod {pod.name} was killed because it used more than its memory limit{limit}; "
        f"{_memory_advice(pod.role) if pod.attempt else _memory_of_service(pod.role)}"
    )


def _memory_of_service(role: str) -> str:
    """What helps a pod of a policy service, which is of no attempt."""
    field = "head.resources.memory" if role == HEAD else "resources.memory"
    return f"raise {field}: there has to be room for two copies of the policy, or lower limits.context"


def _memory_advice(role: str) -> str:
    if role in TASK_WORKERS:
        return f"raise {TASK_WORKERS[role]}.memory"
    return {
        "sampler": "raise sampler.resources.memory, or lower sampler.maxSequences or sampler.maxNewTokens",
        "learner": "lower learner.tokensPerMicroBatch or ask your platform team for a pool with more memory",
    }.get(
        role,
        "lower buffer.capacity or ask your platform team for more memory for heads (of a program of yours: raise "
        "trainer.resources.memory)",
    )


def memory_sentence(world: World, attempt: int, said: str) -> str | None:
    """What the driver says about a process that was ended for the memory of its pod; None: it says something else."""
    found = _RAN_OUT.search(said)
    if found is None:
        return None
    role = found["role"]
    limits = {pod.memory_limit for pod in world.pods if (pod.role, pod.attempt) == (role, attempt)} - {""}
    limit = f" (limit {limits.pop()})" if len(limits) == 1 else ""
    return f"{found[0]}{limit}; {_memory_advice(role)}"


def _of_pod_event(pod: Pod, event: Event) -> Diagnosis | None:
    claim = _MISSING_CLAIM.search(event.message)
    if claim:
        return _missing_claim(claim.group(1), pod.role)
    if (missing := _missing_object(pod, event.message)) is not None:
        return missing
    if event.reason in ("FailedMount", "FailedAttachVolume"):
        why = one_line(event.message, 300)
        return _said(pod, "VolumeNotMounted", f"a volume of pod {pod.name} cannot be used ({why})")
    if event.reason == "FailedScheduling":
        reason = "GangWaits" if waits_for_others(event.message) else "Unschedulable"
        return _said(pod, reason, one_line(event.message, 400))
    return None


def missing_kuberay(kind: str = "RayJob") -> Diagnosis:
    """Nobody makes pods of a RayJob, or of another `kind` of KubeRay's."""
    return Diagnosis(
        "KubeRayMissing",
        f"this cluster has no KubeRay (no {kind} in ray.io/v1), which runs the pods: install the KubeRay operator",
    )


def missing_dra(roles: Iterable[Role]) -> Diagnosis | None:
    """Nobody makes the claims of these roles on a cluster without DRA; None: none of them has any."""
    for role in roles:
        if role.accelerators and role.pool.device_class is not None:
            return Diagnosis(
                "DRAMissing",
                f"this cluster has no resource.k8s.io/v1 (Kubernetes 1.34), by which pods of the {role.name} claim devices "
                f"of class {role.pool.device_class.name} in {role.where}: name pools with an acceleratorResource",
                role.name,
            )
    return None


def missing_claim(name: str, path: Path, role: str = "") -> Diagnosis:
    """The claim that the run names at `path` is not there."""
    return Diagnosis(
        "ClaimMissing",
        f"{render_path(path)}: there is no PersistentVolumeClaim {name!r} in this namespace; "
        "create it, and the run goes on by itself",
        role,
    )


def _missing_claim(name: str, role: str) -> Diagnosis:
    """The same of a pod of this role: samplers mount no checkpoints."""
    return missing_claim(name, WEIGHTS_CLAIM if role == SAMPLER else CHECKPOINT_CLAIM, role)


def _unschedulable(pod: Pod, roles: Sequence[Role]) -> Diagnosis:
    text = pod.unschedulable
    claim = _MISSING_CLAIM.search(text)
    if claim:
        return _missing_claim(claim.group(1), pod.role)
    said = one_line(text, 300)
    if waits_for_others(text):
        return _said(pod, "GangWaits", f"pod {pod.name} waits for the others [{said}]")
    own = next((role for role in roles if role.name == pod.role), None)
    role = short_role(text, own, roles)
    if role is not None and role is not own:
        lacking = f"too little {', '.join(short_of(text))} is free on {role.where}"
        return Diagnosis("Unschedulable", f"{role.name}: {lacking} [{said}]", role.name)
    pool = f" of {role.where}" if role else ""
    reasons = []
    short = short_of(text)
    if short:
        asked = ""
        if role is not None and role.accelerators and {role.pool.accelerator_resource, "GPUs"} & set(short):
            asked = f" ({role.accelerators} asked for per pod)"
        reasons.append(f"too little {', '.join(short)} is free{asked}")
    if role is not None and role.pool.device_class is not None and "cannot allocate all claims" in text:
        claimed = f"{role.accelerators} of class {role.pool.device_class.name}"
        reasons.append(f"too few devices are free ({claimed} asked for per pod)")
    if role is not None and role.topology is not None and "match pod affinity" in text:
        reasons.append(
            f"the {role.topology.level} in which others of the {role.name} are is full, or nodes lack its label "
            f"{role.topology.label}"
        )
    if "node affinity/selector" in text or "node selector" in text:
        labels = [sorted(one.node_selector.items()) for one in role.pools] if role else []
        shown = " or ".join(", ".join(f"{key}={value}" for key, value in pairs) for pairs in labels)
        their = "pools'" if len(labels) > 1 else "pool's"
        reasons.append(f"too few nodes have the {their} labels{f' ({shown})' if shown else ''}")
    if "untolerated taint" in text:
        reasons.append("nodes have taints that the pool does not tolerate")
    if "unbound immediate PersistentVolumeClaims" in text:
        reasons.append("the checkpoint claim is not bound to a volume yet")
    why = ", ".join(reasons) or "the scheduler found none"
    return _said(pod, "Unschedulable", f"no node{pool} takes the pod: {why} [{said}]")


def _of_ray(ray: Ray, world: World) -> Iterator[Diagnosis]:
    """What KubeRay says about pods that it could not even create."""
    texts = [ray.cluster_reason] if ray.cluster_reason else []
    texts += [
        event.message
        for event in world.events
        if event.name in (ray.name, ray.cluster) and event.reason.startswith("FailedToCreate")
    ]
    taken = next((found for text in texts if (found := _SERVICE_TAKEN.search(text))), None)
    if taken is not None and not world.pods_of(ray.attempt):
        why = f"KubeRay needs the name {taken[1]} for the Service of the head, and there is one of somebody's; delete that"
        yield Diagnosis("NameTaken", why)
    # KubeRay tries again what it has done already, when its own watch lags.
    texts = [text for text in texts if "already exists" not in text]
    if texts:
        refused = f"KubeRay cannot create the pods: {one_line(texts[0], 400)}"
        yield no_quota(texts[0]) or Diagnosis("PodRefused", refused)
    if ray.held and not world.pods_of(ray.attempt):
        yield Diagnosis("Queued", "the run waits in its queue for quota")


def no_quota(refusal: str) -> Diagnosis | None:
    """What an API server's refusal says of a quota; None: nothing."""
    if "quota" not in refusal.lower():
        return None
    named = refusal[max(refusal.find("exceeded quota"), 0) :]
    return Diagnosis("QuotaExceeded", f"a quota of this namespace is used up: {one_line(named, 300)}")


def dead_pods(world: World, attempt: int) -> Iterator[Diagnosis]:
    """The pods of an attempt whose end may explain the attempt's: killed for their memory, or with their node, which may
    still have its pods: one that is frozen closes no connection, and whoever waits for it says only that. The head first."""
    for pod in sorted(world.pods, key=lambda pod: (pod.role != "head", pod.name)):
        if pod.attempt != attempt:
            continue
        # That of the user's code is missed by the driver, which says so itself.
        if any(one.ended == "OOMKilled" for one in pod.containers if one.name != CODE_CONTAINER):
            yield Diagnosis("OutOfMemory", out_of_memory(pod), pod.role)
        elif (taken := _taken_away(pod)) is not None:
            yield taken
        elif _unanswered(pod, world):
            yield _said(pod, "NodeLost", f"node {pod.node} of pod {pod.name} was lost: it does not answer")
