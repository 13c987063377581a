from __future__ import annotations

from operator_worlds import make_plan

from rl_operator.render.objects import all_objects


def test_who_may_come_in() -> None:
    spec = all_objects(make_plan(), 1, "token")[1]["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    own, operator, kuberay = spec["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": {"rltrain.dev/run": "sums"}}}]}
    name = {"kubernetes.io/metadata.name": "rltrain-system"}
    assert operator["from"] == [{"namespaceSelector": {"matchLabels": name}}]
    assert kuberay["from"] == [
        {
            "namespaceSelector": {},
            "podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}},
        }
    ]
    assert {port["port"] for port in operator["ports"]} == {8090, 8265}
    assert operator["ports"] == kuberay["ports"]
