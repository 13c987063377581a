"""What of pods, events and messages gets into sentences, how much of it, and what is told first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import GPU_POOLS, make_plan, make_pod, make_profile, make_ray, make_run

from rl_operator.decide.diagnose import (
    dead_pods,
    diagnose,
    failure_sentence,
    memory_sentence,
    no_quota,
    one_line,
)
from rl_operator.model.seen import Container, Event, Pod, Ray, World
from rl_operator.plan.effective import Effective

LONG = "x" * 1000
GPU_PLAN = make_plan({"sampler": {"pools": ["h100"]}}, make_profile(default=True, pools=GPU_POOLS))
KILLED = Container("ray", ended="OOMKilled", exit_code=137)


def world(*pods: Pod, ray: Ray | None = None, events: tuple[Event, ...] = (), **fields: Any) -> World:
    return World(run=make_run(), pods=pods, rays=(ray,) if ray else (), events=events, **fields)


def pending(message: str = "", **container: Any) -> Pod:
    containers = (Container("ray", waiting_message=message, **container),) if container else ()
    return make_pod("head", ready=False, containers=containers)


def reasons(seen: World, effective: Effective | None = None) -> list[str]:
    return [one.reason for one in diagnose(seen, 1, effective)]


def message(seen: World, effective: Effective | None = None) -> str:
    (only,) = diagnose(seen, 1, effective)
    return only.message


def test_texts_of_one_line_have_a_length() -> None:
    assert one_line("x" * 600) == "x" * 600
    assert one_line("x" * 601) == "x" * 597 + "..."
    assert one_line(" a\n  b\t", 3) == "a b"
    assert failure_sentence("\n".join(f"rltrain: {word}" for word in "abcd")) == "b c d"


@pytest.mark.parametrize(
    ("seen", "kept"),
    [
        (world(make_pod("head", reason="Evicted", message=LONG)), 300 - len("Evicted: ...")),
        (world(make_pod("head", reason="NodeLost", message=LONG)), 300 - len("NodeLost: ...")),
        (world(pending(LONG, waiting="ErrImagePull")), 297),
        (world(pending(LONG, waiting="CreateContainerError")), 297),
        (world(make_pod("head", ready=False, containers=(), unschedulable=LONG)), 297),
        (world(pending(), events=(Event("Pod", "sums-1-head-0", "FailedMount", LONG),)), 297),
        (world(pending(), events=(Event("Pod", "sums-1-head-0", "FailedScheduling", LONG),)), 397),
        (world(ray=make_ray(cluster_reason=LONG)), 397),
        (world(ray=make_ray(cluster_reason="no quota is left: " + LONG)), 297 - len("no quota is left: ")),
    ],
)
def test_what_others_say_is_cut(seen: World, kept: int) -> None:
    found = message(seen)
    assert "x" * kept + "..." in found
    assert "x" * (kept + 1) not in found


def test_the_most_telling_reason_comes_first_whatever_the_role() -> None:
    head = make_pod("head", ready=False, containers=(), unschedulable="1 Insufficient cpu.")
    learner = make_pod("learner", ready=False, containers=(Container("ray", waiting="ErrImagePull"),))
    assert reasons(world(head, learner)) == ["ImagePullFailed", "Unschedulable"]


def test_events_of_other_objects_say_nothing_of_a_pod() -> None:
    events = (
        Event("Pod", "sums-1-learner-0", "FailedScheduling", "no nodes"),
        Event("Node", "sums-1-head-0", "FailedScheduling", "no nodes"),
    )
    assert reasons(world(pending(), events=events)) == []
    mine = Event("Pod", "sums-1-head-0", "FailedScheduling", "no nodes")
    assert reasons(world(pending(), events=(*events, mine))) == ["Unschedulable"]
    running = make_pod("head", phase="Running", ready=False, containers=())
    assert reasons(world(running, events=(mine,))) == []


@pytest.mark.parametrize(
    ("fields", "event", "lost"),
    [
        ({"phase": "Running", "ready": False}, ("sums-1-head-0", "NodeNotReady"), True),
        ({"phase": "Running", "ready": True}, ("sums-1-head-0", "NodeNotReady"), False),
        ({"phase": "Failed", "ready": False}, ("sums-1-head-0", "NodeNotReady"), False),
        ({"phase": "Running", "ready": False}, ("sums-1-head-0", "Unhealthy"), False),
        ({"phase": "Running", "ready": False}, ("sums-1-learner-0", "NodeNotReady"), False),
    ],
)
def test_when_a_node_does_not_answer(fields: dict[str, Any], event: tuple[str, str], lost: bool) -> None:
    name, reason = event
    seen = world(make_pod("head", containers=(), **fields), events=(Event("Pod", name, reason, "m"),))
    assert reasons(seen) == (["NodeLost"] if lost else [])


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        (Container("ray", restarts=1, exit_code=1), []),
        (Container("ray", restarts=2, exit_code=1), ["CrashLoop"]),
        (Container("ray", restarts=2, exit_code=1, ready=True), []),
        (Container("ray", waiting="CrashLoopBackOff", restarts=1), ["CrashLoop"]),
        (KILLED, ["OutOfMemory"]),
        (replace(KILLED, ready=True), []),
        (Container("ray", waiting="PodInitializing"), []),
    ],
)
def test_containers(container: Container, reason: list[str]) -> None:
    assert reasons(world(make_pod("head", ready=False, containers=(Container("init"), container)))) == reason


def test_what_a_crash_says_is_its_log_or_its_last_word_or_nothing() -> None:
    def crash(logs: dict[str, str], **fields: Any) -> str:
        state = Container("ray", waiting="CrashLoopBackOff", restarts=3, **fields)
        return message(world(make_pod("head", ready=False, containers=(state,)), log_tail=logs))

    start = "head: container ray of pod sums-1-head-0 ended"
    log = {"sums-1-head-0": "of the log"}
    assert crash(log, ended_message="word", exit_code=0) == (
        f"{start} with exit code 0 3 times; its last lines: of the log"
    )
    assert crash({}, ended_message="word") == f"{start} 3 times; its last lines: word"
    assert crash({"other": "of another"}) == f"{start} 3 times"


@pytest.mark.parametrize(
    ("role", "limit", "sentence"),
    [
        (
            "learner",
            "1Gi",
            "than its memory limit of 1Gi; lower learner.tokensPerMicroBatch or ask your platform team for a pool "
            "with more memory",
        ),
        (
            "sampler",
            "",
            "than its memory limit; raise sampler.resources.memory, or lower sampler.maxSequences or "
            "sampler.maxNewTokens",
        ),
    ],
)
def test_what_to_do_where_memory_is_short(role: str, limit: str, sentence: str) -> None:
    pod = make_pod(role, ready=False, containers=(KILLED,), memory_limit=limit)
    assert message(world(pod)) == f"{role}: pod {pod.name} was killed because it used more {sentence}"


def test_the_limit_of_a_process_that_ran_out_of_memory_is_that_of_its_pods() -> None:
    said = "sampler 0 died: the node ran out of memory; more"
    own = make_pod("sampler", memory_limit="4Gi")
    others = (make_pod("sampler", attempt=2, memory_limit="8Gi"), make_pod("head", memory_limit="2Gi"))
    unlimited = make_pod("sampler", index=1, memory_limit="")
    start = "sampler 0 died: the node ran out of memory"
    for pods, limit in (
        ((own, unlimited, *others), " (limit 4Gi)"),
        (others, ""),
        ((own, replace(own, memory_limit="5Gi")), ""),
    ):
        found = memory_sentence(world(*pods), 1, said)
        assert found is not None
        assert found.startswith(f"{start}{limit}; raise sampler.resources.memory")
    assert memory_sentence(world(own), 1, "sampler 0 died") is None


TOO_FEW = "3 node(s) didn't match {}."


@pytest.mark.parametrize(
    ("text", "effective", "sentence"),
    [
        ("1 Insufficient cpu.", GPU_PLAN, " of pool h100 takes the pod: too little cpu is free"),
        (
            "1 Insufficient nvidia.com/gpu.",
            GPU_PLAN,
            " of pool h100 takes the pod: too little nvidia.com/gpu is free (1 asked for per pod)",
        ),
        ("1 Insufficient nvidia.com/gpu.", None, " takes the pod: too little nvidia.com/gpu is free"),
        (
            TOO_FEW.format("node selector"),
            GPU_PLAN,
            " of pool h100 takes the pod: too few nodes have the pool's labels (gpu=h100)",
        ),
        (
            TOO_FEW.format("Pod's node affinity/selector"),
            None,
            " takes the pod: too few nodes have the pool's labels",
        ),
        (
            "1 Insufficient cpu, 1 node(s) had untolerated taint {a: b}.",
            None,
            " takes the pod: too little cpu is free, nodes have taints that the pool does not tolerate",
        ),
    ],
)
def test_why_no_node_takes_a_pod(text: str, effective: Effective | None, sentence: str) -> None:
    pod = make_pod("sampler", ready=False, node="", containers=(), unschedulable=text)
    assert message(world(pod), effective) == f"sampler: no node{sentence} [{text}]"


def test_without_kuberay_nothing_else_is_said() -> None:
    assert message(world(pending(waiting="ErrImagePull"), ray=make_ray(held=True), kuberay=False)) == (
        "this cluster has no KubeRay (no RayJob in ray.io/v1), which runs the pods: install the KubeRay operator"
    )


def test_pods_that_kuberay_could_not_create() -> None:
    def refused(name: str, reason: str = "FailedToCreatePod", text: str = "forbidden") -> Event:
        return Event("RayCluster", name, reason, text)

    for name in ("sums-1", "sums-1-abcde"):
        assert reasons(world(ray=make_ray(), events=(refused(name),))) == ["PodRefused"]
    strange = (refused("sums-2"), refused("sums-1", "Other"))
    assert reasons(world(ray=make_ray(), events=strange)) == []
    both = (refused("sums-1", text="first"), refused("sums-1", text="second"))
    assert message(world(ray=make_ray(), events=both)) == "KubeRay cannot create the pods: first"
    first = message(world(ray=make_ray(cluster_reason="before"), events=both))
    assert first == "KubeRay cannot create the pods: before"


@pytest.mark.parametrize("text", ["exceeded quota: most", "insufficient Quota: most"])
def test_a_quota(text: str) -> None:
    found = message(world(ray=make_ray(cluster_reason=text)))
    assert found == f"a quota of this namespace is used up: {text}"
    refused = no_quota("pods x is forbidden: exceeded quota: most")
    assert refused is not None
    assert refused.message == "a quota of this namespace is used up: exceeded quota: most"
    assert no_quota("pods x is forbidden") is None


def test_a_run_waits_in_its_queue_until_it_has_pods() -> None:
    assert message(world(ray=make_ray(held=True))) == "the run waits in its queue for quota"
    assert reasons(world(make_pod("head"), ray=make_ray(held=True))) == []
    assert reasons(world(ray=make_ray())) == []


def test_the_pod_that_explains_an_end() -> None:
    sampler, head = (make_pod(role, containers=(KILLED,)) for role in ("sampler", "head"))
    learner = make_pod("learner", reason="Evicted", message="m")
    for pods, role in (
        ((sampler, head), "head"),
        ((sampler, learner), "learner"),
        ((make_pod("head"), sampler), "sampler"),
    ):
        assert next(dead_pods(world(*pods), 1)).role == role
    assert [one.role for one in dead_pods(world(sampler, head, learner), 1)] == ["head", "learner", "sampler"]
    assert list(dead_pods(world(make_pod("head"), replace(sampler, attempt=2)), 1)) == []
    # The driver goes on, or says itself that it misses it.
    code = make_pod("head", containers=(Container("ray", ready=True), replace(KILLED, name="user-code")))
    assert list(dead_pods(world(code), 1)) == []
