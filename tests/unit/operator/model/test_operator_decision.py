from __future__ import annotations

from rl_operator.model.decision import Scale
from rl_operator.model.seen import WorkerGroup


def group(replicas: int = 1, most: int = 2) -> WorkerGroup:
    return WorkerGroup("sums-1-abcde", "cluster-1", "ray-1", 1, replicas, most)


class TestPatch:
    def test_more_than_the_most_raises_it(self) -> None:
        assert Scale(group(1, 2), 4).patch == [
            {"op": "test", "path": "/metadata/uid", "value": "cluster-1"},
            {"op": "test", "path": "/spec/workerGroupSpecs/1/groupName", "value": "sampler"},
            {"op": "add", "path": "/spec/workerGroupSpecs/1/replicas", "value": 4},
            {"op": "add", "path": "/spec/workerGroupSpecs/1/scaleStrategy", "value": {}},
            {"op": "add", "path": "/spec/workerGroupSpecs/1/maxReplicas", "value": 4},
        ]

    def test_as_many_as_the_most_leave_it(self) -> None:
        paths = [step["path"] for step in Scale(group(1, 2), 2).patch]
        assert paths[-1] == "/spec/workerGroupSpecs/1/scaleStrategy"

    def test_a_bound_is_always_written(self) -> None:
        last = Scale(group(3, 3), 1, bound=True).patch[-1]
        assert last == {"op": "add", "path": "/spec/workerGroupSpecs/1/maxReplicas", "value": 1}

    def test_fewer_names_the_pods(self) -> None:
        patch = Scale(group(3, 3), 1, ("b", "c")).patch
        assert patch[-1]["value"] == {"workersToDelete": ["b", "c"]}
