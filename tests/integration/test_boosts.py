"""Boosts under a real Kueue: whom it evicts by them, how one learns whether it minds them, and who may write them."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import yaml
from kube import REPOSITORY, KubeApi
from kueue_process import QueuedCluster
from kueue_queues import Queue, pod_sets
from operator_inside import connected

from rl_operator.kube.boost import boost_manager, levels, minds_boosts, write_boost
from rl_operator.kube.client import Api
from rl_operator.kube.wire import ApiError
from rl_operator.model.decision import Boost
from rl_operator.model.workload import BOOST_ANNOTATION, Workload, parse_workload

OPERATOR = "system:serviceaccount:rltrain-system:rltrain"
US = boost_manager("rltrain-system")
SECONDS = 60.0


def ask(kube: KubeApi, work: Callable[[Api], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        api = await connected(kube)
        try:
            return await work(api)
        finally:
            await api.close()

    return asyncio.run(run())


def submit(queue: Queue, name: str, priority: int, accelerators: int, **annotations: str) -> None:
    """A Workload with an annotation of the operator's, as all of its Workloads have one."""
    queue.submit(name, priority, pod_sets(accelerators, 0), hash="1", **annotations)


def seen(queue: Queue, name: str) -> Workload:
    """As the operator sees it; kubectl does not show who wrote what."""
    return parse_workload(ask(queue.kube, lambda api: api.get("Workload", queue.namespace, name)))


def boosted(queue: Queue, name: str, value: int, manager: str = US) -> Workload:
    boost = Boost(name, seen(queue, name).uid, value)
    return parse_workload(ask(queue.kube, lambda api: write_boost(api, queue.namespace, boost, manager)))


def minds(queue: Queue) -> bool | None:
    found: bool | None = ask(queue.kube, lambda api: minds_boosts(api, queue.namespace))
    return found


def with_boost(value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {BOOST_ANNOTATION: value}}}


def until(so: Callable[[], bool], what: str) -> None:
    begun = time.monotonic()
    while not so():
        assert time.monotonic() - begun < SECONDS, f"not in time: {what}"
        time.sleep(0.4)


@pytest.fixture
def queue(queued: QueuedCluster) -> Queue:
    """A queue of four accelerators."""
    return Queue(queued.kube, 4)


@pytest.fixture(scope="module")
def policed(queued: QueuedCluster) -> Iterator[Queue]:
    """The same under the chart's policy about boosts."""
    command = [str(REPOSITORY / ".tools/bin/helm"), "template", "rltrain", str(REPOSITORY / "charts/rltrain")]
    command += ["-n", "rltrain-system", "-s", "templates/admission-boosts.yaml"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    queue = Queue(queued.kube, 4)
    submit(queue, "probe", 0, 2)

    def refuses() -> bool:
        return "only the operator" in queue.patch("probe", with_boost("5"), "--dry-run=server")

    queue.kube.apply(*[one for one in yaml.safe_load_all(text) if one])
    until(refuses, "the policy is enforced")
    rights = ("--verb=get,patch", "--resource=workloads.kueue.x-k8s.io")
    queue.kube.kubectl("create", "clusterrole", "boosts", *rights)
    queue.kube.kubectl("create", "clusterrolebinding", "boosts", "--clusterrole=boosts", f"--user={OPERATOR}")
    yield queue
    queue.kube.kubectl(
        "delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", "rltrain-boosts"
    )
    until(lambda: not refuses(), "the policy is gone")  # others test boosts after this


def test_kueue_evicts_who_loses_least_and_nobody_for_its_equals(queue: Queue) -> None:
    # Without boosts it would be the last that was admitted.
    for name in ("cheap", "dear"):
        submit(queue, name, 0, 2)
        queue.until_admitted(name)
        queue.until_older(name)
    assert boosted(queue, "dear", 40).boost == 40
    assert boosted(queue, "cheap", 7).boost == 7
    submit(queue, "equal", 0, 2)
    queue.until_waits("equal")
    submit(queue, "urgent", 100, 2)
    queue.until_evicted("cheap")
    assert queue.condition("dear", "Evicted") == ("", "")
    # What the operator does: no boost any more, then the quota goes.
    assert boosted(queue, "cheap", 0).boost == 0
    queue.give_back("cheap")
    queue.until_admitted("urgent")
    queue.until_waits("cheap")
    assert queue.condition("dear", "Evicted") == ("", ""), "who waits evicts none of its class"
    assert seen(queue, "equal").pending


def test_a_gate_that_is_on_is_found_by_a_question_that_leaves_nothing(queue: Queue) -> None:
    assert minds(queue) is True
    assert queue.kube.get("workloads", "-n", queue.namespace)["items"] == []
    assert ask(queue.kube, lambda api: minds_boosts(api, "nowhere")) is None


def test_the_priorities_that_a_boost_must_not_reach(queued: QueuedCluster) -> None:
    preemption = {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": "LowerPriority",
        "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 499},
    }
    queue = Queue(queued.kube, 4, cohortName="all", preemption=preemption)
    kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    queue.kube.apply(kind | {"metadata": {"name": "research"}, "value": 700})
    found = ask(queue.kube, levels)
    assert {500, 700, 2_000_000_000} <= set(found), "a queue's, Kueue's and Kubernetes' own"


def test_what_is_written_tells_by_whom_and_when(queue: Queue) -> None:
    submit(queue, "run", 0, 2)
    assert seen(queue, "run").boost_writers == {}
    made = boosted(queue, "run", 12)
    assert (made.boost, list(made.boost_writers)) == (12, [US])
    assert made.boost_writers[US] is not None
    assert not queue.patch("run", {"metadata": {"annotations": {"a": "b"}}})
    assert list(seen(queue, "run").boost_writers) == [US]
    with pytest.raises(ApiError) as error:
        boosted(queue, "run", 13, boost_manager("another"))
    assert error.value.conflict, "of two operators the second is refused"
    assert not queue.patch("run", with_boost("-10"), "--field-manager=kueue-priority-booster")
    theirs = seen(queue, "run")
    assert (theirs.boost, list(theirs.boost_writers)) == (-10, ["kueue-priority-booster"])
    with pytest.raises(ApiError) as error:
        boosted(queue, "run", 13)
    assert error.value.conflict


def test_a_workload_that_is_gone_is_not_made_again(queue: Queue) -> None:
    with pytest.raises(ApiError) as error:
        ask(queue.kube, lambda api: write_boost(api, queue.namespace, Boost("run", "1-2-3", 5), US))
    assert error.value.conflict
    assert queue.kube.get("workloads", "-n", queue.namespace)["items"] == []


def test_only_the_operator_writes_the_boost_of_a_run(policed: Queue) -> None:
    submit(policed, "run", 0, 2)
    policed.until_admitted("run")
    assert "found '99' for kueue.x-k8s.io/priority-boost, allowed: none" in policed.patch(
        "run", with_boost("99")
    )
    with pytest.raises(AssertionError, match="only the operator of rltrain writes it"):
        submit(policed, "another", 0, 2, priority_boost="5")
    assert not policed.patch("run", with_boost("12"), f"--as={OPERATOR}")
    for value in ("99", "-99", "0", None):
        said = policed.patch("run", with_boost(value))
        assert f"found '{value or ''}' for kueue.x-k8s.io/priority-boost, allowed: '12'" in said, said


def test_who_changes_something_else_brings_the_boost_along(policed: Queue) -> None:
    submit(policed, "kept", 0, 0)
    assert not policed.patch("kept", with_boost("12"), f"--as={OPERATOR}")
    assert not policed.patch("kept", {"metadata": {"annotations": {BOOST_ANNOTATION: "12", "a": "b"}}})
    assert not policed.patch("kept", {"spec": {"active": False}})
    # Kueue itself works on it.
    policed.until_evicted("kept", "Deactivated")


def test_a_boost_is_not_given_to_a_workload_before_it_is_a_runs(policed: Queue) -> None:
    submit(policed, "mine", 0, 0)
    owners = policed.workload("mine")["metadata"]["ownerReferences"]
    orphan = {"metadata": {"ownerReferences": []}}
    assert "allowed: none" in policed.patch(
        "mine", {"metadata": orphan["metadata"] | with_boost("9")["metadata"]}
    )
    assert not policed.patch("mine", orphan)
    assert not policed.patch("mine", with_boost("99")), "what is no run's is not ours"
    assert "found '99'" in policed.patch("mine", {"metadata": {"ownerReferences": owners}})
    assert not policed.patch("mine", {"metadata": {"ownerReferences": owners} | with_boost(None)["metadata"]})


@pytest.fixture
def gateless(queued: QueuedCluster) -> Iterator[Queue]:
    """A queue of a Kueue whose gate is off, as it is by default."""
    queued.kueue.restart(PriorityBoost=False)
    try:
        yield Queue(queued.kube, 4)
    finally:
        queued.kueue.restart()


def test_a_gate_that_is_off_is_told_from_a_kueue_that_does_not_answer(
    gateless: Queue, queued: QueuedCluster
) -> None:
    assert minds(gateless) is False
    queued.kueue.kill()
    assert minds(gateless) is None
