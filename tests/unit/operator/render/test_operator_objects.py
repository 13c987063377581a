from __future__ import annotations

from pathlib import Path

import pytest
from operator_worlds import SETTINGS

from rl_api.documents import load_documents
from rl_operator.plan.effective import Effective, plan
from rl_operator.render.objects import all_objects

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
        objects = all_objects(effective, 1, "token")
        assert [one["kind"] for one in objects] == [
            "Secret",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "ConfigMap",
            "RayCluster" if effective.spec.workload == "Cluster" else "RayJob",
        ]
        for one in objects:
            assert one["metadata"]["namespace"] == "team-a"
            assert one["metadata"]["ownerReferences"][0]["uid"] == "12345678"
