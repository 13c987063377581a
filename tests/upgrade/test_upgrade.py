"""What earlier releases have stored is read, left as it is, and goes on. See record.py, which wrote it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from big_yaml import yaml_documents
from operator_worlds import make_reading

from rl_api.progress import CheckpointStatus, RunStatus, Usage
from rl_operator.decide.reconcile import reconcile
from rl_operator.decide.unreadable import wrong_status
from rl_operator.kube.cache import Store
from rl_operator.kube.client import Api
from rl_operator.model.decision import Decision
from rl_operator.model.names import Key
from rl_operator.model.seen import World
from rl_operator.model.settings import Settings
from rl_operator.plan.effective import Effective
from rl_operator.runtime.cluster import Cluster
from rl_operator.runtime.memory import Memory

OBJECTS = Path(__file__).parent / "objects"
RECORDED = sorted(path for path in OBJECTS.glob("*/*.yaml") if path.stem != "profile")
UNDER_WAY = ("starting", "queued", "cluster", "no-checkpoints", "training", "stopping", "retried")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class OnlyReads(Api):
    """An API server that has what was recorded, and takes nothing."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.items = items

    async def find(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        return next(
            (one for one in self.items if (one["kind"], one["metadata"]["name"]) == (kind, name)), None
        )

    async def pages(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Any:
        yield [one for one in self.items if one["kind"] == kind], "1"

    async def has_group(self, group: str) -> bool:
        return True


def owned(items: list[dict[str, Any]]) -> None:
    """Pods as KubeRay makes them, and the kubelet: under control of their RayCluster, and with an address."""
    for pod in (one for one in items if one["kind"] == "Pod"):
        (cluster,) = (
            one
            for one in items
            if one["kind"] == "RayCluster" and pod["metadata"]["name"].startswith(one["metadata"]["name"])
        )
        owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": True}
        owner |= {part: cluster["metadata"][part] for part in ("name", "uid")}
        pod["metadata"].setdefault("ownerReferences", [owner])
        pod["status"].setdefault("podIP", "10.0.0.7")


class Upgraded:
    """An operator of today that begins with what an earlier one has stored."""

    def __init__(self, path: Path) -> None:
        self.items: list[dict[str, Any]] = yaml_documents(path.read_text())
        profile = yaml.safe_load((path.parent / "profile.yaml").read_text())
        self.run = next(one for one in self.items if one["kind"] == "RLTrainingRun")
        self.key: Key = (self.run["metadata"]["namespace"], self.run["metadata"]["name"])
        self.memory = Memory(self.run["metadata"]["uid"])
        owned(self.items)
        store = Store()
        for document in (profile, *self.items):
            if document["kind"] not in ("ConfigMap", "Secret"):
                store.put(document)
        self.cluster = Cluster(cast(Api, OnlyReads(self.items)), store, Settings())
        # Right after the last thing that happened.
        now = max(datetime.fromisoformat(text) for text in _TIME.findall(json.dumps(self.items, default=str)))
        self.now = now + timedelta(seconds=1)

    def world(self) -> World:
        run = self.cluster.store.run(self.key)
        assert run is not None
        return asyncio.run(self.cluster.observe(self.key, run, self.memory))

    def look(self, world: World) -> Decision:
        return reconcile(world, self.now, self.cluster.plan(world.run, self.memory))


@pytest.fixture(params=RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def upgraded(request: pytest.FixtureRequest) -> Upgraded:
    return Upgraded(request.param)


def test_every_release_has_runs_in_all_phases() -> None:
    for folder in OBJECTS.iterdir():
        names = {path.stem for path in folder.glob("*.yaml")}
        assert names == {*UNDER_WAY, "refused", "suspended", "succeeded", "failed", "profile"}


def test_it_is_read_and_nothing_is_changed(upgraded: Upgraded) -> None:
    world = upgraded.world()
    stored = RunStatus.model_validate(upgraded.run["status"])
    assert wrong_status(world.run) is None
    decision = upgraded.look(world)
    # A wish for a checkpoint that has no id gets one, and is brought to the driver with it.
    assert (decision.status.checkpoint_request is None) is (upgraded.key[1] != "stopping")
    assert (decision.ask is None) is (decision.status.checkpoint_request is None)
    # What an earlier version did not count is counted from the first status that is written anyway.
    counted = Usage(updated_at=upgraded.now) if decision.status.checkpoint_request is not None else None
    assert decision.status.usage == counted
    assert decision.status.model_copy(update={"checkpoint_request": None, "usage": None}) == stored
    assert (decision.create, decision.delete, decision.finalizer, decision.scale) == ((), (), None, None)
    assert [note for note in decision.notes if note.type == "Warning"] == []
    # What an earlier version rendered otherwise is brought up to date, where that disturbs nobody: no pods, no jobs.
    assert {one["kind"] for one in decision.apply} <= {"NetworkPolicy", "PodDisruptionBudget"}


def test_a_run_that_is_under_way_goes_on(upgraded: Upgraded) -> None:
    world = upgraded.world()
    stored = RunStatus.model_validate(upgraded.run["status"])
    attempts = stored.attempts
    under_way = [one for one in attempts if one.end_time is None]
    assert bool(under_way) is (upgraded.key[1] in UNDER_WAY)
    if not under_way:
        return
    assert world.ray(under_way[-1].number) is not None
    (secret,) = (one for one in upgraded.items if one["kind"] == "Secret")
    assert upgraded.memory.token == base64.b64decode(secret["data"]["token"]).decode(), "the driver knows it"
    decision = upgraded.look(world)
    assert decision.status.attempts == attempts
    if world.rays[0].submitted and not world.wants_suspend:
        assert decision.pull is not None
        kept = CheckpointStatus(step=9, uri="s3://checkpoints/run")
        reading = replace(make_reading(9, time=upgraded.now), checkpoint=kept)
        later = upgraded.look(replace(world, reading=reading))
        assert later.status.phase == "Training"
        assert later.status.checkpoint == kept
        # Since when it trains was said of the run alone; that is not when the upgrade came.
        (since,) = (one.last_transition_time for one in stored.conditions if one.type == "Training")
        assert later.status.attempts == [attempts[-1].model_copy(update={"trained_time": since})]


def test_what_it_trains_is_what_it_was(upgraded: Upgraded) -> None:
    """The driver's file of the next attempt says nothing else than that of this one."""
    world = upgraded.world()
    found = upgraded.cluster.plan(dict(world.run), upgraded.memory)
    files = [one for one in upgraded.items if one["kind"] == "ConfigMap"]
    if not files:
        return
    assert isinstance(found, Effective)
    (stored,) = (
        yaml.safe_load(one["data"]["run.yaml"])
        for one in files
        if one["metadata"]["name"] == f"{upgraded.key[1]}-{len(files)}"
    )
    today = json.loads(json.dumps(found.document))
    assert contained(stored["spec"], today["spec"]) == []


def contained(old: Any, new: Any, path: str = "spec") -> list[str]:
    """Where a value of `old` is another one in `new`; fields that came later do not matter."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [found for key in old for found in contained(old[key], new.get(key), f"{path}.{key}")]
    return [] if old == new else [path]
