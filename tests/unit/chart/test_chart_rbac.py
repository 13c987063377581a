"""What the operator may do: exactly the verbs of its list, which docs/operations.md repeats."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from chart_rendering import NAMESPACE, ROOT, one, render

CREATED = "get list watch create patch delete"
RUN_VERBS = {
    "rltrain.dev/rltrainingruns": "get list watch patch",
    "rltrain.dev/rltrainingruns/status": "patch",
    "rltrain.dev/rltrainingruns/finalizers": "update",
    "rltrain.dev/rlpolicyservices": "list watch",
    "rltrain.dev/rlpolicyservices/status": "patch",
    "rltrain.dev/rlpolicyservices/finalizers": "update",
    "ray.io/rayjobs": "get list watch create delete",
    "ray.io/rayservices": "get list watch create patch",
    "ray.io/rayclusters": CREATED,
    "gateway.networking.k8s.io/gateways": "get",
    "networking.k8s.io/networkpolicies": CREATED,
    "policy/poddisruptionbudgets": CREATED,
    "resource.k8s.io/resourceclaimtemplates": CREATED,
    "kueue.x-k8s.io/workloads": CREATED,
    "kueue.x-k8s.io/workloads/status": "patch",
    "/configmaps": "get create delete",
    "/secrets": "create",
    "/pods": "list watch",
    "/pods/log": "get",
    "/events": "list create",
    "/persistentvolumeclaims": "get",
}
CLUSTER_VERBS = {
    "rltrain.dev/rltrainingprofiles": "list watch",
    "/namespaces": "get",
    "/nodes": "list watch",
    "kueue.x-k8s.io/resourceflavors": "get",
    "kueue.x-k8s.io/workloadpriorityclasses": "get list",
    "kueue.x-k8s.io/clusterqueues": "list",
    "scheduling.k8s.io/priorityclasses": "get list",
}
LEADER_VERBS = {
    "coordination.k8s.io/leases": "get create patch",
    "/secrets": "create",
    "/secrets/rltrain-operator-key": "get",
}
PAGE = ROOT / "docs" / "operations.md"


def verbs(role: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for rule in role["rules"]:
        assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}
        names = [f"/{name}" for name in rule.get("resourceNames", ())] or [""]
        for group in rule["apiGroups"]:
            for resource in (f"{what}{name}" for what in rule["resources"] for name in names):
                assert f"{group}/{resource}" not in found
                found[f"{group}/{resource}"] = " ".join(rule["verbs"])
    return found


def test_the_operator_may_do_what_it_needs_and_nothing_else() -> None:
    objects = render()
    assert verbs(one(objects, "ClusterRole", "rltrain-runs")) == RUN_VERBS
    assert verbs(one(objects, "ClusterRole", "rltrain-cluster")) == CLUSTER_VERBS
    assert verbs(one(objects, "Role", "rltrain-leader")) == LEADER_VERBS


def test_secrets_are_read_in_all_namespaces_only_where_an_upgrade_asks_for_it() -> None:
    roles = [each for each in render() if each["kind"] == "ClusterRole"]
    assert [v for each in roles for name, v in verbs(each).items() if name == "/secrets"] == ["create"]
    role = one(render("rbac.legacySecrets=true"), "ClusterRole", "rltrain-runs")
    assert [rule["verbs"] for rule in role["rules"] if rule["resources"] == ["secrets"]] == [
        ["create"],
        ["get"],
    ]


def test_pod_groups_are_made_only_for_the_schedulers_that_are_named() -> None:
    assert "podgroups" not in str([each for each in render() if each["kind"] == "ClusterRole"])
    role = one(render('gang.schedulers=["volcano","kubernetes"]'), "ClusterRole", "rltrain-runs")
    assert role["rules"][-1] == {
        "apiGroups": ["scheduling.volcano.sh", "scheduling.k8s.io"],
        "resources": ["podgroups"],
        "verbs": ["get", "create", "delete"],
    }


def test_only_gangs_of_kubernetes_take_an_admission_policy() -> None:
    for schedulers, made in ((("volcano", "schedulerPlugins"), 0), (("kubernetes",), 2)):
        objects = render(f"gang.schedulers={json.dumps(schedulers)}")
        assert sum(each["kind"].startswith("MutatingAdmissionPolicy") for each in objects) == made


def test_the_key_is_that_of_the_release() -> None:
    objects = render(release="ops")
    names = [
        name
        for each in objects
        if each["kind"] == "Role"
        for rule in each["rules"]
        for name in rule.get("resourceNames", ())
    ]
    (container,) = one(objects, "Deployment", "ops-rltrain")["spec"]["template"]["spec"]["containers"]
    assert names == [v["value"] for v in container["env"] if v["name"] == "RLTRAIN_KEY_SECRET"]
    assert names == ["ops-rltrain-operator-key"]


def test_no_role_has_a_star() -> None:
    for each in render():
        if each["kind"] in ("Role", "ClusterRole"):
            assert "*" not in str(each["rules"])


def test_every_role_is_bound_to_the_account_that_is_there() -> None:
    objects = render("serviceAccount.name=trainer")
    accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    roles = {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] in ("Role", "ClusterRole")}
    bindings = [o for o in objects if o["kind"].endswith("RoleBinding")]
    assert len(bindings) == 4
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        (subject,) = binding["subjects"]
        assert subject["namespace"] == NAMESPACE
        assert subject["name"] in accounts
    assert one(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "trainer"


def test_namespaced_mode_gives_no_rights_elsewhere() -> None:
    objects = render('watch.namespaces=["team-a","team-b"]')
    bound = {
        o["metadata"]["namespace"]
        for o in objects
        if o["kind"] == "RoleBinding" and o["roleRef"]["name"] == "rltrain-runs"
    }
    assert bound == {"team-a", "team-b"}
    wide = {o["roleRef"]["name"] for o in objects if o["kind"] == "ClusterRoleBinding"}
    assert wide == {"rltrain-cluster", "rltrain-default-profile"}


def test_users_get_runs_through_their_own_roles() -> None:
    objects = render()
    view, edit = one(objects, "ClusterRole", "rltrain-view"), one(objects, "ClusterRole", "rltrain-edit")
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    # The status is the operator's, profiles are the platform's.
    kinds = {"rltrain.dev/rltrainingruns", "rltrain.dev/rltrainingruns/scale", "rltrain.dev/rlpolicyservices"}
    assert verbs(edit).keys() == kinds


@pytest.mark.parametrize(("value", "left"), [("rbac.create=false", 3), ("rbac.userRoles=false", 3)])
def test_roles_can_be_somebody_elses(value: str, left: int) -> None:
    names = {o["metadata"]["name"] for o in render(value) if o["kind"] == "ClusterRole"}
    expected = {
        "rbac.create=false": {"rltrain-default-profile", "rltrain-view", "rltrain-edit"},
        "rbac.userRoles=false": {"rltrain-default-profile", "rltrain-cluster", "rltrain-runs"},
    }
    assert names == expected[value]
    assert len(names) == left


def test_the_page_lists_every_verb() -> None:
    rights = (
        PAGE.read_text(encoding="utf-8").partition("## What the operator may do")[2].partition("\n## ")[0]
    )
    tables = []
    for part in rights.split("\nRole `")[1:]:
        rows = re.findall(r"^\| `([^`]*)` \| `([^`]+)` \| ([a-z, ]+) \|", part, flags=re.M)
        tables.append(
            {
                f"{'' if group == 'core' else group}/{name}": verbs.replace(",", "")
                for group, name, verbs in rows
            }
        )
    assert tables == [RUN_VERBS, CLUSTER_VERBS, LEADER_VERBS]


def test_the_page_lists_every_metric() -> None:
    metrics = pytest.importorskip("rl_operator.runtime.metrics").Metrics()
    names = {metric.name for metric in metrics.registry.collect()}
    table = PAGE.read_text(encoding="utf-8").partition("## Watch the operator")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| ((?:`rltrain_\w+`(?:, )?)+) \|", table, flags=re.M)
    listed = {name.removesuffix("_total") for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == names


def test_the_page_lists_values_that_exist_with_their_defaults() -> None:
    values = yaml.safe_load((ROOT / "charts" / "rltrain" / "values.yaml").read_text())
    table = PAGE.read_text(encoding="utf-8").partition("## Values of the chart")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", table, flags=re.M)
    named = [path for cell, _ in rows for path in re.findall(r"`([^`]+)`", cell)]
    for path in named:
        found: Any = values
        for part in path.split("."):
            assert part in found, path
            found = found[part]
    assert {path.partition(".")[0] for path in named} >= {
        "image",
        "replicas",
        "watch",
        "crds",
        "rbac",
        "defaultProfile",
    }
    for cell, default in rows:
        if default.strip() in ("`true`", "`false`", "`1`", "`[]`"):
            found = values
            for part in re.findall(r"`([^`]+)`", cell)[0].split("."):
                found = found[part]
            assert found == yaml.safe_load(default.strip(" `")), cell
