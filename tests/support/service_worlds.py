"""Policy services for tests of the operator: a service, what its control says, and a world that does what is decided."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from rl_api.service_status import FollowedRun, PolicyVersion, ServiceStatus
from rl_operator.decide.service import reconcile_service
from rl_operator.model.names import PROFILE_ANNOTATION, Manifest
from rl_operator.model.parse import hash_of, service_asked
from rl_operator.model.seen import Live, Pod
from rl_operator.model.service import (
    Control,
    Evaluation,
    RayService,
    Replica,
    ServiceDecision,
    ServiceWorld,
    VersionFigures,
)
from rl_operator.model.settings import Settings
from rl_operator.plan.service import EffectiveService, plan_service

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
FOLLOWED = FollowedRun(name="sums", uid="run-uid", claim="ckpt", folder="sums-run-uid")
CLUSTER = "chat-abcde"
HEAD = Pod(
    name=f"{CLUSTER}-head",
    uid="uid-head",
    role="head",
    attempt=0,
    owner="cluster-uid",
    phase="Running",
    ready=True,
    ip="10.0.0.1",
)


def make_service(spec: dict[str, Any] | None = None, **more: Any) -> Manifest:
    """An RLPolicyService as the API server holds it; `spec` replaces fields."""
    metadata = {"name": "chat", "namespace": "team-a", "uid": "service-uid", "generation": 1}
    whole = {"from": {"run": "sums"}, "auth": {"anonymous": True}, **(spec or {})}
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLPolicyService",
        "metadata": metadata,
        "spec": whole,
        **more,
    }


def make_service_plan(spec: dict[str, Any] | None = None, *profiles: Manifest) -> EffectiveService:
    """The service as it is carried out."""
    found = plan_service(make_service(spec), profiles, Settings())
    assert isinstance(found, EffectiveService), found
    return found


def checkpoint(step: int) -> PolicyVersion:
    """A checkpoint of the followed run."""
    digest = f"{step:064x}"
    return PolicyVersion(
        version=f"sums-step-{step}-{digest[:8]}",
        step=step,
        digest=digest,
        source=f"/var/lib/rltrain/sums-run-uid/run/checkpoints/step-{step:08}",
        run="sums",
    )


def patched(live: Live, operations: Sequence[Manifest]) -> Manifest:
    """The spec of an object after a JSON patch."""
    document = {"metadata": {"uid": live.uid}, "spec": deepcopy(live.spec)}
    for one in operations:
        *path, last = one["path"].removeprefix("/").split("/")
        place: Any = document
        for name in path:
            place = place[name]
        if one["op"] == "test":
            assert place[last] == one["value"], one["path"]
        else:
            assert one["op"] == "add" or last in place, one["path"]
            place[last] = one["value"]
    found: Manifest = document["spec"]
    return found


class ServiceStory:
    """A service from its birth on: what is decided is done at once, and its copies serve what they are told to."""

    def __init__(self, spec: dict[str, Any] | None = None, **world: Any) -> None:
        self.spec, self.now = spec or {}, NOW
        self.profiles: list[Manifest] = []
        self.status: ServiceStatus = ServiceStatus()
        self.world = ServiceWorld(make_service(spec), **({"followed": FOLLOWED, "key": b"key"} | world))
        self.checkpoints: list[PolicyVersion] = []
        self.evaluations: dict[str, Evaluation] = {}
        self.figures: dict[str, VersionFigures] = {}
        self.obeys = True
        """Whether copies load what they are told to."""
        self.error = ""
        self.retryable = False
        """Whether that says nothing of the policy."""
        self.missing = False
        """Whether one of two copies is not there."""
        self.problem = ""
        """Why there are no checkpoints."""
        self.decisions: list[ServiceDecision] = []

    @property
    def last(self) -> ServiceDecision:
        """What was decided last."""
        return self.decisions[-1]

    @property
    def told(self) -> str:
        """Version that copies are told to serve; empty: none."""
        policy = self._config().get("policy") or {}
        return str(policy.get("version") or "")

    @property
    def reasons(self) -> list[str]:
        """Reasons of all events so far."""
        return [note.reason for decision in self.decisions for note in decision.notes]

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition."""
        found = next(one for one in self.status.conditions if one.type == kind)
        return found.status, found.reason, found.message

    def look(self, seconds: float = 2.0, **world: Any) -> ServiceDecision:
        """One look, so many seconds later."""
        self.now += timedelta(seconds=seconds)
        self.world = replace(self.world, **world)
        seen = replace(
            self.world,
            service=make_service(
                self.spec, status=self.status.model_dump(mode="json", by_alias=True, exclude_none=True)
            ),
            control=self._control(),
        )
        decision = reconcile_service(seen, self.now, plan_service(seen.service, self.profiles, Settings()))
        self.decisions.append(decision)
        self.status = decision.status
        live = dict(self.world.live)
        for manifest in (*decision.create, *decision.apply):
            name = manifest["metadata"]["name"]
            if manifest["kind"] != "Secret":
                live[manifest["kind"], name] = Live(f"uid-of-{name}", hash_of(manifest), manifest["spec"])
        if decision.change:
            before = live["RayService", "chat"]
            live["RayService", "chat"] = replace(before, spec=patched(before, decision.change))
        self.world = replace(self.world, live=live)
        if decision.change and self.world.ray is not None:
            self.world = replace(self.world, ray=replace(self.world.ray, live=live["RayService", "chat"]))
        if ("RayService", "chat") in live and self.world.ray is None:
            ray = RayService("chat", "ray-uid", live["RayService", "chat"], active=CLUSTER, ready=True)
            pods, clusters = (HEAD, *self.world.pods), {HEAD.name: CLUSTER, **self.world.clusters}
            self.world = replace(self.world, ray=ray, pods=pods, clusters=clusters)
        for manifest in (*decision.create, *decision.apply):
            if manifest["kind"] == "RayService" and self.world.ray is not None:
                self.world = replace(self.world, ray=replace(self.world.ray, live=live["RayService", "chat"]))
                profile = manifest["metadata"]["annotations"].get(PROFILE_ANNOTATION, "")
                asked = service_asked(manifest["spec"]["rayClusterConfig"])
                self.world = replace(self.world, ray=replace(self.world.ray, asked=asked, profile=profile))
        return decision

    def looks(self, count: int, seconds: float = 2.0) -> None:
        """Several looks."""
        for _ in range(count):
            self.look(seconds)

    def served(self, step: int) -> None:
        """A checkpoint is there, passes the gate, and is served."""
        self.checkpoints = [checkpoint(step), *self.checkpoints]
        self.evaluations[checkpoint(step).digest] = Evaluation("passed", "it is good enough")
        self.looks(6)
        assert self.status.serving is not None
        assert self.status.serving.step == step

    def _config(self) -> dict[str, Any]:
        live = self.world.live.get(("RayService", "chat"))
        if live is None:
            return {}
        applications = yaml.safe_load(live.spec["serveConfigV2"])["applications"]
        found: dict[str, Any] = applications[1]["deployments"][0]["user_config"]
        return found

    def _control(self) -> Control | None:
        if self.world.ray is None:
            return None
        before = self.status.serving.version if self.status.serving is not None else ""
        version = self.told if self.obeys else before
        starts = (Replica("two"),) if self.missing else ()
        return Control(
            self.now,
            CLUSTER,
            problem=self.problem,
            replicas=(
                Replica("one", version, "", self.error if not self.obeys else "", self.retryable),
                *starts,
            ),
            versions=self.figures,
            checkpoints=tuple(self.checkpoints),
            evaluations=self.evaluations,
        )
