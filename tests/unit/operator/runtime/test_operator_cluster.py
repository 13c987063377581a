"""What the shell keeps between two looks at a run."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, cast

import pytest
from operator_worlds import SETTINGS, make_run

from rl_operator.kube.applied import LAST_APPLIED
from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.plan import prior
from rl_operator.plan.effective import Effective
from rl_operator.plan.refused import Refused
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.memory import Memory


def test_a_null_that_is_applied_changes_the_plan_though_the_generation_stays() -> None:
    """`kubectl apply` of `checkpoint: null` where there is no such field: of the object only an annotation changes."""
    store, memory = Store(), Memory("12345678-90ab")
    cluster = Cluster(cast(Api, None), store, SETTINGS)
    run = make_run(resourceVersion="1")
    del run["spec"]["checkpoint"]

    def planned(version: int, spec: dict[str, Any]) -> object:
        metadata = {**run["metadata"], "resourceVersion": str(version)}
        metadata["annotations"] = {LAST_APPLIED: json.dumps({"spec": spec})}
        store.put({**run, "metadata": metadata})
        seen = store.run(("team-a", "sums"))
        assert seen is not None
        return cluster.plan(seen, memory)

    assert isinstance(planned(1, run["spec"]), Refused), "storage is missing, or checkpoint: null"
    found = planned(2, {**run["spec"], "checkpoint": None})
    assert isinstance(found, Effective)
    assert found.spec.checkpoint is None
    assert planned(3, {**run["spec"], "checkpoint": None, "seed": 0}) is found, (
        "made anew only when something changed"
    )


def test_a_plan_that_would_take_much_memory_is_made_anew() -> None:
    memory, cluster = Memory("12345678-90ab"), Cluster(cast(Api, None), Store(), SETTINGS)
    small, large = make_run(), make_run({"task": {"args": {"text": "x" * 9000}}})
    assert cluster.plan(small, memory) is cluster.plan(small, memory) is memory.plan
    found = cluster.plan(large, memory)
    assert isinstance(found, Effective)
    assert memory.plan is None
    assert cluster.plan(large, memory) == found


def test_other_runs_do_not_wait_for_a_first_placement_that_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory, cluster = Memory("12345678-90ab"), Cluster(cast(Api, None), Store(), SETTINGS)
    simulated: list[threading.Thread] = []

    def simulates(*asked: Any) -> None:
        simulated.append(threading.current_thread())

    monkeypatch.setattr(prior, "first_placement", simulates)
    prior._planned.cache_clear()
    run = make_run({"placement": {"replan": {}}})
    found = asyncio.run(cluster.thought_out(run, memory))
    assert isinstance(found, Effective)
    assert cluster.plan(run, memory) is found
    # Not in the loop, and once: what is made there is remembered.
    [thread] = simulated
    assert thread is not threading.current_thread()
    prior._planned.cache_clear()
