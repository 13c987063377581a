"""Worlds for the tables: a run, its profile, and what the cluster shows of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_api.progress import CheckpointStatus, Progress
from rl_operator.decide.reconcile import reconcile
from rl_operator.model.decision import Decision
from rl_operator.model.seen import Ask, Claim, Container, Live, Pod, Ray, Reading, WorkerGroup, World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective, plan
from rl_operator.plan.refused import Refused
from rl_operator.render.objects import run_objects
from rl_operator.render.rayjob import ray_job

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
CRASH = "Job entrypoint command failed with exit code 1, last available logs:\nrltrain: learner 0 died\n"
SETTINGS = Settings()
KEY = ("team-a", "sums")
OWNED = {"ownerReferences": [{"kind": "RLTrainingRun", "uid": "12345678-90ab"}]}

SPEC: dict[str, Any] = {
    "model": {"source": "tiny"},
    "task": {"environment": "reasoning-gym", "name": "chain_sum"},
    "algorithm": {"promptsPerStep": 8, "groupSize": 4},
    "sampler": {"replicas": 2},
    "buffer": {"capacity": 32},
    "checkpoint": {"storage": {"persistentVolumeClaim": "ckpt"}},
}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def make_run(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {
            "name": "sums",
            "namespace": "team-a",
            "uid": "12345678-90ab",
            "generation": 1,
            "creationTimestamp": "2026-03-01T11:59:00Z",
            **metadata,
        },
        "spec": merge(SPEC, spec or {}),
    }


def make_profile(name: str = "shared", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": name},
        "spec": {"pools": [{"name": "cpu"}], **spec},
    }


GPU_POOLS = [
    {
        "name": "h100",
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "acceleratorResource": "nvidia.com/gpu",
        "acceleratorsPerNode": 8,
    },
    {"name": "cpu"},
    {
        "name": "spot",
        "acceleratorResource": "nvidia.com/mig-1g.10gb",
        "spot": True,
        "runtimeClass": "nvidia",
    },
]

VERL: dict[str, Any] = {
    "trainer": {"kind": "verl"},
    "model": {"source": "org/model"},
    "task": {
        "environment": "prompts",
        "file": "train.parquet",
        "name": None,
        "rewards": [{"rule": "function", "function": "rewards:score"}],
    },
    "sampler": {"engine": "vllm", "replicas": 1},
    "learner": {"pools": ["h100"]},
}


def make_plan(spec: dict[str, Any] | None = None, profile: dict[str, Any] | None = None) -> Effective:
    found = plan(make_run(spec), [profile] if profile else [], SETTINGS)
    assert isinstance(found, Effective), found
    return found


def make_pod(role: str, *, attempt: int = 1, index: int = 0, ready: bool = True, **fields: Any) -> Pod:
    values: dict[str, Any] = {
        "name": f"sums-{attempt}-{role}-{index}",
        "uid": f"{role}-{attempt}-{index}",
        "role": role,
        "attempt": attempt,
        "owner": f"cluster-{attempt}",
        "ip": "10.0.0.7",
        "phase": "Running" if ready else "Pending",
        "ready": ready,
        "node": "node-1",
        "containers": (Container("ray", ready=ready),),
        "memory_limit": "1536Mi",
    }
    return Pod(**(values | fields))


def all_pods(attempt: int = 1) -> tuple[Pod, ...]:
    return (
        make_pod("head", attempt=attempt),
        make_pod("learner", attempt=attempt),
        make_pod("sampler", attempt=attempt),
        make_pod("sampler", attempt=attempt, index=1),
    )


def make_ray(attempt: int = 1, **fields: Any) -> Ray:
    values: dict[str, Any] = {
        "kind": "RayJob",
        "name": f"sums-{attempt}",
        "uid": f"ray-{attempt}",
        "attempt": attempt,
        "created": NOW,
        "deployment_status": "Initializing",
        "cluster": f"sums-{attempt}-abcde",
        "cluster_uid": f"cluster-{attempt}",
        "head_service": f"sums-{attempt}-abcde-head-svc",
    }
    return Ray(**(values | fields))


def running_ray(attempt: int = 1, **fields: Any) -> Ray:
    values: dict[str, Any] = {
        "deployment_status": "Running",
        "job_status": "RUNNING",
        "cluster_state": "ready",
    }
    return make_ray(attempt, **(values | fields))


def failed_ray(message: str, reason: str = "AppFailed", attempt: int = 1) -> Ray:
    return make_ray(attempt, deployment_status="Failed", job_status="FAILED", reason=reason, message=message)


def make_reading(
    step: int = 7, phase: str = "Training", attempt: int = 1, time: datetime = NOW, checkpoint: int | None = 5
) -> Reading:
    progress = Progress.model_validate(
        {"phase": phase, "step": step, "maxSteps": 100, "reward": 0.5, "updatedAt": time}
    )
    kept = CheckpointStatus(step=checkpoint, uri="/var/lib/rltrain/run") if checkpoint is not None else None
    return Reading(attempt, time, progress, kept)


def live_objects(effective: Effective) -> dict[tuple[str, str], Live]:
    return {
        (manifest["kind"], manifest["metadata"]["name"]): Live(
            uid=f"uid-{manifest['kind']}",
            hash=manifest["metadata"]["annotations"]["rltrain.dev/manifest"],
            spec=manifest["spec"],
        )
        for manifest in run_objects(effective)
    }


def stored(kind: str, name: str, version: int, uid: str = "u", **parts: Any) -> dict[str, Any]:
    """An object of the run as the API server holds it."""
    metadata = {
        "name": name,
        "namespace": "team-a",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": {"rltrain.dev/run": "sums", "rltrain.dev/attempt": "1"},
        **parts.pop("metadata", {}),
    }
    return {"kind": kind, "metadata": metadata, **parts}


class Story:
    """A run that is looked at again and again; each look begins with what the last one wrote."""

    def __init__(
        self, spec: dict[str, Any] | None = None, profiles: list[dict[str, Any]] | None = None
    ) -> None:
        self.run = make_run(spec)
        self.profiles = profiles or []
        self.now = NOW
        self.world = World(run=self.run, claims={"ckpt": Claim(True)})
        self.last: Decision | None = None
        self.labelled = False
        """Whether its RayJobs have the label of a queue."""

    def look(self, **changes: Any) -> Decision:
        """One reconcile in the world with these changes, which stay."""
        self.world = replace(self.world, run=self.run, **changes)
        found = plan(self.run, self.profiles, SETTINGS)
        self.labelled = self.labelled or (isinstance(found, Effective) and found.labelled)
        if self.labelled:
            self.world = replace(
                self.world, rays=tuple(replace(one, labelled=True) for one in self.world.rays)
            )
        decision = reconcile(self.world, self.now, found)
        again = reconcile(self.world, self.now, found)
        assert decision == again, "the same world must give the same decision"
        self._write(decision)
        if isinstance(found, Effective) and decision.create:
            self.world = replace(self.world, live=live_objects(found))
        self.last = decision
        return decision

    def settled(self, **changes: Any) -> Decision:
        """The same, and a second look at what it wrote changes nothing any more."""
        decision = self.look(**changes)
        second = self.look()
        assert second.status == decision.status
        assert (second.create, second.apply, second.notes, second.finalizer) == ((), (), (), None)
        return decision

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def set(self, spec: dict[str, Any]) -> None:
        self.run = {**self.run, "spec": merge(self.run["spec"], spec)}
        self.run["metadata"] = {**self.run["metadata"], "generation": self.run["metadata"]["generation"] + 1}

    def delete(self) -> None:
        stamp = self.now.isoformat().replace("+00:00", "Z")
        self.run = {**self.run, "metadata": {**self.run["metadata"], "deletionTimestamp": stamp}}

    def begin(self) -> Decision:
        """The first attempt is created."""
        decision = self.look()
        assert [one["kind"] for one in decision.create][-1] == "RayJob"
        return decision

    def train(self, attempt: int = 1) -> Decision:
        """The attempt trains."""
        return self.look(
            rays=(running_ray(attempt),),
            pods=all_pods(attempt),
            reading=make_reading(attempt=attempt, time=self.now),
        )

    def answered(self, state: str, message: str = "", attempt: int = 1, **changes: Any) -> Decision:
        """The driver was asked for the checkpoint that is wished for, and this became of it."""
        if "checkpointRequest" not in self.run["status"]:
            self.look()
        wish = self.run["status"]["checkpointRequest"]["id"]
        return self.look(ask=Ask(wish, attempt, state, message), **changes)  # type: ignore[arg-type]

    def fail(self, message: str, attempt: int = 1) -> Decision:
        """The attempt's job ends with an error."""
        return self.look(rays=(failed_ray(message, attempt=attempt),), pods=())

    def _write(self, decision: Decision) -> None:
        status = decision.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        metadata = dict(self.run["metadata"])
        if decision.finalizer is not None:
            metadata["finalizers"] = ["rltrain.dev/checkpoint"] if decision.finalizer else []
        self.run = {**self.run, "metadata": metadata, "status": status}


def condition(decision: Decision, kind: str) -> tuple[str, str, str] | None:
    found = next((one for one in decision.status.conditions if one.type == kind), None)
    return (found.status, found.reason, found.message) if found else None


def kinds(decision: Decision) -> list[str]:
    return [manifest["kind"] for manifest in decision.create]


def deleted(decision: Decision) -> list[tuple[str, str]]:
    return [(target.kind, target.name) for target in decision.delete]


def refused(spec: dict[str, Any], *profiles: dict[str, Any]) -> Refused:
    """Why the operator refuses a run of this spec under these profiles."""
    found = plan(make_run(spec), profiles, SETTINGS)
    assert isinstance(found, Refused), found
    return found


def groups(effective: Effective) -> dict[str, dict[str, Any]]:
    """Head and worker groups of the first attempt's RayJob, by name."""
    spec = ray_job(effective, 1)["spec"]["rayClusterSpec"]
    return {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    """The only container of a group's pods."""
    (only,) = group["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def group(replicas: int = 1, most: int = 2, hosts: int = 1) -> WorkerGroup:
    return WorkerGroup("sums-1-abcde", "cluster-1", "ray-1", 1, replicas, most, hosts=hosts)


def pods(samplers: int = 1) -> tuple[Pod, ...]:
    return (*all_pods()[:2], *(make_pod("sampler", index=index) for index in range(samplers)))


def training(spec: dict[str, Any] | None = None, profile: dict[str, Any] | None = None) -> Story:
    story = Story(spec, [profile] if profile else None)
    story.begin()
    story.look(rays=(with_group(group()),), pods=pods(), reading=make_reading())
    return story


def with_group(found: WorkerGroup | None, **fields: Any) -> Ray:
    return running_ray(samplers=found, **fields)
