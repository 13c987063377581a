from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from operator_worlds import SETTINGS, make_plan

from rl_api.documents import load_documents
from rl_operator.plan.effective import Effective, plan
from rl_operator.render.objects import all_objects, attempt_objects, run_objects

REPOSITORY = Path(__file__).resolve().parents[4]

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.name for file in EXAMPLES])
def test_every_example_renders(file: Path) -> None:
    for _, document in load_documents(file.read_text(), file.name):
        if document["kind"] != "RLTrainingRun":
            continue
        document["metadata"] |= {"namespace": "team-a", "uid": "12345678"}
        profiles = [
            one
            for other in EXAMPLES
            for _, one in load_documents(other.read_text(), other.name)
            if one["kind"] == "RLTrainingProfile"
        ]
        if (document["spec"].get("checkpoint") or {}).get("storage") is None:
            document["spec"].setdefault("checkpoint", {})["storage"] = {"s3": "s3://bucket/folder"}
        if document["spec"].get("profile") is None:
            profiles = []
        effective = plan(document, profiles, SETTINGS)
        assert isinstance(effective, Effective), effective
        objects = all_objects(effective, 1, b"key")
        assert [one["kind"] for one in objects] == [
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Secret",
            "ConfigMap",
            "RayCluster" if effective.spec.workload == "Cluster" else "RayJob",
        ]
        for one in objects:
            assert one["metadata"]["namespace"] == "team-a"
            assert one["metadata"]["ownerReferences"][0]["uid"] == "12345678"


def test_each_object_has_its_hash_to_see_whether_it_must_be_written_again() -> None:
    def hashes(spec: dict[str, Any], attempt: int = 1) -> list[str]:
        effective = make_plan(spec)
        objects = [*run_objects(effective), *attempt_objects(effective, attempt, b"key")]
        # The Secret has none: it may not be read.
        found = [one["metadata"].get("annotations", {}).get("rltrain.dev/manifest") for one in objects]
        return [one for one in found if one is not None]

    first, moved = hashes({}), hashes({"server": {"port": 9000}})
    assert [len(one) for one in first] == [16] * 4
    # The network policy lets the operator in at the port; nothing of the budget has changed.
    assert [one == other for one, other in zip(first, moved, strict=True)] == [False, True, False, False]
    assert first[1] == "4f18f795bee07d3e", (
        "a new version of the operator writes nothing anew without a reason"
    )
    assert hashes({}, 2)[:2] == first[:2]


def test_an_object_keeps_the_annotations_that_it_has() -> None:
    job = attempt_objects(make_plan(), 1, b"key")[-1]
    assert set(job["metadata"]["annotations"]) == {
        "ray.io/disable-provisioned-head-restart",
        "rltrain.dev/image",
        "rltrain.dev/manifest",
        "rltrain.dev/profile-hash",
        "rltrain.dev/spec-hash",
    }
