"""Runs of other trainers: a program of the user's (`trainer.kind: command`) and verl, as Kubernetes objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_worlds import (
    GPU_POOLS,
    SETTINGS,
    VERL,
    Story,
    condition,
    make_plan,
    make_pod,
    make_profile,
    make_reading,
    make_run,
    running_ray,
)

from rl_operator.plan.backends import backend_of
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused
from rl_operator.render.budget import disruption_budget
from rl_operator.render.rayjob import ENTRYPOINT, ray_job

COMMAND: dict[str, Any] = {"kind": "command", "command": ["python", "train.py"]}
PROFILE = make_profile(default=True, pools=GPU_POOLS)


def program(trainer: dict[str, Any], **more: Any) -> Effective:
    return make_plan({"trainer": COMMAND | trainer, **more}, PROFILE)


def refused(trainer: dict[str, Any], **more: Any) -> str:
    found = plan(make_run({"trainer": trainer, **more}), [PROFILE], SETTINGS)
    assert isinstance(found, Refused), found
    return found.message


def cluster(effective: Effective) -> dict[str, Any]:
    found: dict[str, Any] = ray_job(effective, 1)["spec"]["rayClusterSpec"]
    return found


def test_the_program_is_alone_on_the_head() -> None:
    effective = program({})
    spec = cluster(effective)
    assert spec["workerGroupSpecs"] == []
    assert ray_job(effective, 1)["spec"]["entrypoint"] == ENTRYPOINT
    assert disruption_budget(effective)["spec"]["minAvailable"] == 1
    assert not effective.elastic
    # Head, storage, token and status are those of every run.
    small = {"learner": {"pools": ["cpu"]}, "sampler": {"pools": ["cpu"]}}
    own, ours = spec["headGroupSpec"], cluster(make_plan(small, PROFILE))["headGroupSpec"]
    for head in (own, ours):
        ray = head["template"]["spec"]["containers"][0]
        ray["env"] = [one for one in ray["env"] if one["name"] != "RLTRAIN_SPEC_HASH"]
    assert own == ours


def test_the_program_needs_no_model_and_no_task() -> None:
    run = make_run({"trainer": COMMAND})
    del run["spec"]["model"], run["spec"]["task"]
    effective = plan(run, [PROFILE], SETTINGS)
    assert isinstance(effective, Effective)
    assert effective.document["spec"]["model"] is None
    assert effective.document["spec"]["trainer"]["command"] == ["python", "train.py"]


def test_pool_and_size_of_its_pod() -> None:
    asked = {"cpu": 7.5, "accelerators": 4, "memory": "200Gi"}
    spec = cluster(program({"pools": ["h100"], "resources": asked}))["headGroupSpec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    requests = {"cpu": "7500m", "memory": "200Gi", "nvidia.com/gpu": "4", "ephemeral-storage": "256Mi"}
    assert container["resources"]["requests"] == requests
    assert container["image"].endswith("-gpu")
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert (spec["rayStartParams"]["num-gpus"], spec["rayStartParams"]["num-cpus"]) == ("4", "8")


def test_workers_are_those_that_it_names() -> None:
    effective = program({"workers": ["learner"]}, learner={"replicas": 2, "pools": ["h100"]})
    (group,) = cluster(effective)["workerGroupSpecs"]
    assert (group["groupName"], group["replicas"]) == ("learner", 2)
    assert disruption_budget(effective)["spec"]["minAvailable"] == 3
    both = cluster(program({"workers": ["sampler", "learner"]}))["workerGroupSpecs"]
    assert [one["groupName"] for one in both] == ["learner", "sampler"]


def test_it_trains_and_ends_like_every_run() -> None:
    story = Story({"trainer": COMMAND})
    story.begin()
    decision = story.look(
        rays=(running_ray(1),),
        pods=(make_pod("head"),),
        reading=make_reading(attempt=1, time=story.now),
    )
    assert list(decision.status.roles) == ["head"]
    assert condition(decision, "ClusterReady") == ("True", "Ready", "all pods are ready")
    assert decision.status.phase == "Training"
    decision = story.fail(
        "rltrain: trainer.command: python train.py ended with exit code 7; its last lines: no"
    )
    assert decision.status.attempts[-1].reason == (
        "AppFailed: trainer.command: python train.py ended with exit code 7; its last lines: no"
    )


def test_how_many_steps_it_has_done_is_its_own_to_know() -> None:
    story = Story({"trainer": COMMAND})
    story.begin()
    reading = make_reading(attempt=1, time=story.now)
    story.look(rays=(running_ray(1),), pods=(make_pod("head"),), reading=reading)
    done = replace(running_ray(1), deployment_status="Complete", job_status="SUCCEEDED")
    decision = story.look(rays=(done,), pods=())
    assert decision.status.phase == "Succeeded"
    assert decision.status.progress is not None
    assert decision.status.progress.step == reading.progress.step < 100


@pytest.mark.parametrize(
    ("trainer", "sentence"),
    [
        ({"pools": ["h1000"]}, "spec.trainer.pools[0]: found 'h1000', allowed: a pool of profile"),
        (
            {"resources": {"accelerators": 2}},
            "spec.trainer.resources.accelerators: found 2, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            {"pools": ["h100"], "resources": {"accelerators": 64}},
            "spec.trainer.resources.accelerators: found 64, allowed: at most 8",
        ),
    ],
)
def test_a_pod_that_fits_nowhere_is_refused(trainer: dict[str, Any], sentence: str) -> None:
    assert sentence in refused(COMMAND | trainer)


def test_what_differs_by_trainer() -> None:
    specs = {"rltrain": {}, "command": {"trainer": COMMAND}, "verl": VERL}
    backends = {kind: backend_of(make_plan(spec, PROFILE).spec) for kind, spec in specs.items()}
    differs = {
        kind: (
            backend.follows_stop,
            backend.workers_write,
            backend.workers_need_secrets,
            backend.learners_write,
        )
        for kind, backend in backends.items()
    }
    assert differs == {
        "rltrain": (True, False, False, True),
        "command": (False, False, True, False),
        "verl": (True, True, True, True),
    }


def test_verl_in_a_pool_that_does_not_say_what_its_nodes_have() -> None:
    spot = make_plan({**VERL, "learner": {"pools": ["spot"]}}, PROFILE)
    assert spot.role("learner").accelerators == 1


def test_verl_trains_on_gpus_only() -> None:
    sentence = "spec.learner.pools: found pool cpu, without accelerators, allowed with trainer.kind verl"
    assert sentence in refused(**{**VERL, "learner": {"pools": ["cpu"]}})
    effective = make_plan(VERL, PROFILE)
    (group,) = cluster(effective)["workerGroupSpecs"]
    assert group["groupName"] == "learner"
    assert group["rayStartParams"]["num-gpus"] == "8"
    # Its workers write the checkpoints, where the head says.
    for one in (group, cluster(effective)["headGroupSpec"]):
        (container,) = one["template"]["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["data"] == "/var/lib/rltrain"
        assert any("persistentVolumeClaim" in volume for volume in one["template"]["spec"]["volumes"])
    (container,) = cluster(effective)["headGroupSpec"]["template"]["spec"]["containers"]
    assert {"name": "RLTRAIN_ACCELERATORS", "value": "8"} in container["env"]
    assert "RLTRAIN_ACCELERATORS" not in str(cluster(make_plan({}, PROFILE)))
