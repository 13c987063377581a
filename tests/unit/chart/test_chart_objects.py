"""What the chart renders: known fields only, restricted pods, switches, and values that are refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from big_yaml import yaml_documents
from chart_rendering import (
    CHART,
    HELM,
    ROOT,
    Manifest,
    helm,
    kinds,
    model_of,
    one,
    refusal,
    render,
    wrong_fields,
)

from rl_api.crd import definitions
from rl_api.validation import check_document

EVERYTHING = (
    "replicas=2",
    "metrics.podMonitor.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.servicePodMonitor.enabled=true",
    "alerts.enabled=true",
    "grafana.dashboard.enabled=true",
    'watch.namespaces=["team-a","team-b"]',
    'imagePullSecrets=[{"name":"registry"}]',
    'tolerations=[{"operator":"Exists"}]',
    'nodeSelector={"kubernetes.io/os":"linux"}',
    'affinity={"nodeAffinity":{}}',
    "priorityClassName=system-cluster-critical",
    'extraEnv=[{"name":"A","value":"b"}]',
    'podLabels={"team":"platform"}',
    'podAnnotations={"note":"x"}',
    'serviceAccount.annotations={"note":"x"}',
    'networkPolicy.metricsFrom=[{"podSelector":{}}]',
    'operatorArgs=["--cpu-burst=4","--ephemeral-storage=50Gi"]',
)
MONITORS = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_every_object_has_known_fields_only(values: tuple[str, ...]) -> None:
    objects = render(*values)
    assert len(objects) >= 15
    for each in objects:
        if each["kind"] in MONITORS:
            assert each["apiVersion"] == "monitoring.coreos.com/v1"
        elif each["kind"] == "CustomResourceDefinition":
            assert each in definitions().values()
        else:
            assert wrong_fields(each, model_of(each), each["kind"]) == []


def test_the_check_of_fields_sees_mistakes() -> None:
    wrong = one(render(), "Deployment")
    wrong["spec"]["replica"] = 2
    wrong["spec"]["replicas"] = "two"
    wrong["spec"]["template"]["spec"]["containers"][0]["port"] = []
    assert len(wrong_fields(wrong, "V1Deployment")) == 3


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_names_and_namespaces(values: tuple[str, ...]) -> None:
    objects = render(*values)
    places = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(places) == len(set(places))
    cluster = {
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for kind, namespace, name in places:
        assert (namespace is None) == (kind in cluster), (kind, name)
        assert len(name) <= 63
    # Helm waits for a hook, and deletes and makes it again: nothing here is one.
    assert not any("helm.sh/hook" in json.dumps(o) for o in objects)


def pods(objects: list[Manifest]) -> list[Manifest]:
    return [o["spec"]["template"]["spec"] for o in objects if o["kind"] in ("Deployment", "Job")]


@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_pods_pass_pod_security_restricted(values: tuple[str, ...]) -> None:
    found = pods(render(*values))
    assert len(found) == 2
    for pod in found:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all(set(v) & {"emptyDir", "configMap", "secret"} for v in pod["volumes"])
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]
            assert not any("hostPort" in port for port in container.get("ports", []))


def test_the_operator_understands_its_arguments() -> None:
    parser = pytest.importorskip("rl_operator.runtime.main")._parser()
    for values in ((), EVERYTHING, ("leaderElection.enabled=false",)):
        container = one(render(*values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
        parsed = parser.parse_args(container["args"])
        assert parsed.leader_elect == ("leaderElection.enabled=false" not in values)
        assert parsed.namespace == (["team-a", "team-b"] if values is EVERYTHING else [])
        assert parsed.image_cpu == "rltrain-trainer:0.1.0-cpu"
        sizes = (parsed.cpu_burst, parsed.ephemeral_storage)
        assert sizes == ((4, "50Gi") if values is EVERYTHING else (8, "20Gi"))
        selected = one(render(*values), "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
        assert parsed.labels == selected, "runs let in the operator's own pods"
        settings = pytest.importorskip("rl_operator.model.settings").Settings()
        assert parsed.kuberay_namespace == settings.kuberay_namespace == "kuberay-system"
        assert parsed.kuberay_labels == settings.kuberay_labels
        assert parsed.dns == settings.dns
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert parsed.health_listen == f"0.0.0.0:{ports['health']}"
        assert parsed.metrics_listen == f"0.0.0.0:{ports['metrics']}"


def test_kuberay_may_be_elsewhere_and_called_otherwise() -> None:
    parser = pytest.importorskip("rl_operator.runtime.main")._parser()
    values = ("kuberay.namespace=ray", 'kuberay.labels={"app.kubernetes.io/name":"kuberay","a":"b"}')
    container = one(render(*values), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    parsed = parser.parse_args(container["args"])
    assert parsed.kuberay_namespace == "ray"
    assert parsed.kuberay_labels == {
        "a": "b",
        "app.kubernetes.io/component": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay",
    }


def test_probes_ask_what_the_operator_serves() -> None:
    container = one(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    probes = {
        name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert {probe["port"] for probe in probes.values()} == {"health"}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]


def test_an_upgrade_keeps_an_operator_or_stops_the_old_one_first() -> None:
    def strategy(*values: str) -> Any:
        return one(render(*values), "Deployment")["spec"]["strategy"]

    assert strategy()["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert strategy("leaderElection.enabled=false") == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("value", "gone"),
    [
        ("crds.install=false", {"CustomResourceDefinition"}),
        ("networkPolicy.enabled=false", {"NetworkPolicy"}),
        ("metrics.service=false", {"Service"}),
        ("defaultProfile.create=false", {"Job", "ConfigMap"}),
    ],
)
def test_switches_that_are_on(value: str, gone: set[str]) -> None:
    assert kinds(render()) - kinds(render(value)) == gone


@pytest.mark.parametrize(
    ("value", "added"),
    [
        ("replicas=2", {"PodDisruptionBudget"}),
        ("metrics.podMonitor.enabled=true", {"PodMonitor"}),
        ("metrics.serviceMonitor.enabled=true", {"ServiceMonitor"}),
        ("metrics.servicePodMonitor.enabled=true", {"PodMonitor"}),
        ("alerts.enabled=true", {"PrometheusRule"}),
    ],
)
def test_switches_that_are_off(value: str, added: set[str]) -> None:
    assert kinds(render(value)) - kinds(render()) == added


def test_no_budget_for_one_replica_or_where_it_is_not_wanted() -> None:
    assert "PodDisruptionBudget" not in kinds(render("replicas=2", "podDisruptionBudget.enabled=false"))


def test_monitors_and_services_find_the_operator() -> None:
    objects = render(*EVERYTHING)
    pod = one(objects, "Deployment")["spec"]["template"]
    job = next(o for o in objects if o["kind"] == "Job")["spec"]["template"]
    service = one(objects, "Service", "rltrain-metrics")
    selectors = [
        one(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        one(objects, "PodMonitor")["spec"]["selector"]["matchLabels"],
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= pod["metadata"]["labels"].items()
        assert not selector.items() <= job["metadata"]["labels"].items()
    monitor = one(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= service["metadata"]["labels"].items()
    # Else Prometheus would put the operator's namespace over that of a run.
    for kind, field in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        assert [each["honorLabels"] for each in one(objects, kind)["spec"][field]] == [True]


def test_pods_of_services_are_found_where_services_are_watched() -> None:
    def spec(*values: str) -> Any:
        found = render("metrics.servicePodMonitor.enabled=true", *values)
        return one(found, "PodMonitor", "rltrain-services")["spec"]

    assert spec()["namespaceSelector"] == {"any": True}
    assert spec('watch.namespaces=["team-a","team-b"]')["namespaceSelector"] == {
        "matchNames": ["team-a", "team-b"]
    }
    selector = spec()["selector"]
    assert selector["matchExpressions"] == [{"key": "rltrain.dev/service", "operator": "Exists"}]
    pods = pytest.importorskip("rl_operator.model.names").labels_of("run", 1, "head")
    assert selector["matchLabels"].items() <= pods.items()
    # A pod of a tenant's says what it likes, but not that it is another namespace's.
    assert [each.get("honorLabels", False) for each in spec()["podMetricsEndpoints"]] == [False]


def test_network_policy_lets_in_probes_and_metrics_and_out_what_is_needed() -> None:
    spec = one(render(), "NetworkPolicy")["spec"]
    assert [port["port"] for rule in spec["ingress"] for port in rule["ports"]] == ["health", "metrics"]
    assert spec["ingress"][1]["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ], "not every pod of the cluster"
    nobody = one(render("networkPolicy.metricsFrom=[]"), "NetworkPolicy")["spec"]
    assert [port["port"] for rule in nobody["ingress"] for port in rule["ports"]] == ["health"]
    ports = [[port["port"] for port in rule.get("ports", [])] for rule in spec["egress"]]
    assert ports == [[53, 53], [443, 6443], []]
    assert spec["egress"][0] == pytest.importorskip("rl_operator.model.settings").DNS
    heads = spec["egress"][2]["to"][0]["podSelector"]["matchLabels"]
    pod_labels = pytest.importorskip("rl_operator.model.names").labels_of("run", 1, "head")
    assert heads.items() <= pod_labels.items()


def test_the_default_profile_is_valid_and_default() -> None:
    objects = render("defaultProfile.name=shared")
    (job,) = [o for o in objects if o["kind"] == "Job"]
    config = one(objects, "ConfigMap", job["metadata"]["name"])
    profile, problems = check_document(json.loads(config["data"]["profile.json"]))
    assert problems == []
    assert profile is not None
    assert profile.name == "shared"
    assert profile.spec.default is True
    # Models can be downloaded; what is within the cluster, and where nodes get their credentials, stays out of reach.
    assert [rule.ports for rule in profile.spec.allow.egress] == [(443,), (443,)]
    assert "10.0.0.0/8" in profile.spec.allow.egress[0].forbidden
    assert profile.spec.images.cpu == "rltrain-trainer:0.1.0-cpu"
    compile(config["data"]["apply_profile.py"], "apply_profile.py", "exec")


def test_the_job_has_another_name_when_it_applies_something_else() -> None:
    def name(*values: str) -> str:
        return next(str(o["metadata"]["name"]) for o in render(*values) if o["kind"] == "Job")

    assert name() == name("replicas=2")
    assert (
        len({name(), name("trainerImage.tag=1.2.3"), name("image.tag=1.2.3"), name("defaultProfile.name=x")})
        == 4
    )


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("replicas=-1", "at '/replicas': minimum: got -1, want 0"),
        ("log.level=loud", "at '/log/level': value must be one of 'debug', 'info', 'warning', 'error'"),
        ("watch.namespaces=team-a", "at '/watch/namespaces': got string, want array"),
        ('watch.namespaces=["Team A"]', "at '/watch/namespaces/0': 'Team A' does not match pattern"),
        ("colour=red", "additional properties 'colour' not allowed"),
        ("image.tags=x", "at '/image': additional properties 'tags' not allowed"),
        ("image.digest=abc", "at '/image/digest': 'abc' does not match pattern"),
        ("trainerImage.digests.gpu=abc", "at '/trainerImage/digests/gpu': 'abc' does not match pattern"),
        ("image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of"),
        ("resources.limits.memory=much", "at '/resources/limits/memory': 'much' does not match pattern"),
        ("defaultProfile.spec.pools=[]", "at '/defaultProfile/spec/pools': minItems: got 0, want 1"),
        ("networkPolicy.apiServerPorts=[0]", "at '/networkPolicy/apiServerPorts/0': minimum: got 0, want 1"),
        ("metrics.podMonitor.interval=often", "at '/metrics/podMonitor/interval': 'often' does not match"),
    ],
)
def test_wrong_values_are_refused(value: str, sentence: str) -> None:
    assert sentence in refusal(value)


def test_two_operators_need_an_election() -> None:
    assert "at '/replicas': maximum: got 2, want 1" in refusal("leaderElection.enabled=false", "replicas=2")


def test_every_value_is_in_the_schema_and_explained() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)

    def compare(value: Any, part: Any, path: str) -> None:
        if isinstance(value, dict) and part.get("additionalProperties") is False:
            assert set(part["properties"]) == set(value), path
            for name, inner in value.items():
                compare(inner, part["properties"][name], f"{path}.{name}")

    for name, value in values.items():
        compare(value, schema["properties"][name], name)


def test_names_follow_the_release() -> None:
    assert one(render(release="ops"), "Deployment", "ops-rltrain")
    assert one(render("fullnameOverride=trainer"), "Deployment", "trainer")
    digest = "sha256:" + "0" * 64
    container = one(render(f"image.digest={digest}"), "Deployment")["spec"]["template"]["spec"]["containers"][
        0
    ]
    assert container["image"] == f"rltrain-operator@{digest}"


def test_runs_get_trainers_by_digest() -> None:
    cpu, gpu = ("sha256:" + digit * 64 for digit in "12")
    objects = render(
        "trainerImage.repository=registry.example/trainer",
        f"trainerImage.digests.cpu={cpu}",
        f"trainerImage.digests.gpu={gpu}",
    )
    wanted = {"cpu": f"registry.example/trainer@{cpu}", "gpu": f"registry.example/trainer@{gpu}"}
    arguments = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {f"--image-{kind}={image}" for kind, image in wanted.items()} <= set(arguments)
    (config,) = [o for o in objects if o["kind"] == "ConfigMap" and "profile.json" in o["data"]]
    assert json.loads(config["data"]["profile.json"])["spec"]["images"] == wanted
    half = render(f"trainerImage.digests.gpu={gpu}", "trainerImage.tag=v7")
    arguments = one(half, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--image-cpu=rltrain-trainer:v7-cpu", f"--image-gpu=rltrain-trainer@{gpu}"} <= set(arguments)


def test_lint_finds_nothing() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "manifests", tmp_path], check=True, timeout=60)
    written = (ROOT / "manifests" / "rltrain.yaml").read_text(encoding="utf-8")
    assert written == (tmp_path / "rltrain.yaml").read_text(encoding="utf-8"), "run: make manifests"
    namespace, *objects = yaml_documents(written)
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    rendered = render()
    assert [(o["kind"], o["metadata"]["name"]) for o in objects] == [
        (o["kind"], o["metadata"]["name"]) for o in rendered
    ]
    assert [o.get("spec") or o.get("rules") for o in objects if o["kind"] != "Deployment"] == [
        o.get("spec") or o.get("rules") for o in rendered if o["kind"] != "Deployment"
    ]
    assert "helm.sh/" not in written
    assert "Helm\n" not in written


def test_missing_helm_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chart_rendering.HELM", ROOT / ".tools" / "bin" / "no-helm")
    with pytest.raises(AssertionError, match="run make tools"):
        helm("version")
    assert HELM.name == "helm"


def test_what_profiles_do_not_allow_is_refused_as_it_is_applied() -> None:
    objects, name = render(), "rltrain-profiles"
    policy = one(objects, "ValidatingAdmissionPolicy", name)
    binding = one(objects, "ValidatingAdmissionPolicyBinding", name)
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["paramKind"]["kind"] == "RLTrainingProfile"
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert binding["spec"]["paramRef"] == {"selector": {}, "parameterNotFoundAction": "Allow"}
    assert "matchResources" not in binding["spec"]
    ignoring = one(render("admission.failurePolicy=Ignore"), "ValidatingAdmissionPolicy", name)
    assert ignoring["spec"]["failurePolicy"] == "Ignore"
    some = one(render('watch.namespaces=["team-a"]'), "ValidatingAdmissionPolicyBinding", name)
    (expression,) = some["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (expression["operator"], expression["values"]) == ("In", ["team-a"])
    assert name not in {each["metadata"]["name"] for each in render("admission.profiles=false")}
    assert "failurePolicy" in refusal("admission.failurePolicy=Perhaps")
