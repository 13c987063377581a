"""The objects of a policy service, and that its application takes what it is told."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml
from operator_worlds import make_profile
from service_worlds import FOLLOWED, checkpoint, make_service_plan

from rl_api.service import GateSpec
from rl_api.service_status import FollowedRun
from rl_operator.model.names import Manifest
from rl_operator.model.tokens import CONTROL, RAY, derive_token
from rl_operator.render.service import ray_service, service_objects, service_secret
from rl_operator.render.service_config import ServeConfig, gate_config, policy_config


def rendered(spec: dict[str, Any] | None = None, followed: FollowedRun | None = FOLLOWED) -> Manifest:
    found: Manifest = ray_service(make_service_plan(spec), followed, checkpoint(20))["spec"]
    return found


def pods(spec: dict[str, Any] | None = None) -> tuple[Manifest, Manifest]:
    cluster = rendered(spec)["rayClusterConfig"]
    return cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]


def serve_config(spec: dict[str, Any] | None = None, followed: FollowedRun | None = FOLLOWED) -> Manifest:
    found: Manifest = yaml.safe_load(rendered(spec, followed)["serveConfigV2"])
    return found


@pytest.mark.parametrize(
    ("spec", "followed"),
    [
        ({}, FOLLOWED),
        ({"from": {"checkpoint": "s3://policies/chat"}}, None),
        ({"limits": {"requestsPerSecond": 5.5, "queue": 0, "timeout": "90s"}}, FOLLOWED),
        ({"auth": {"secret": "keys"}, "limits": {"requestsPerSecondPerKey": 1}}, FOLLOWED),
        ({"promotion": {"answers": "stamp", "gate": {"probe": {"configMap": "probe"}}}}, FOLLOWED),
        ({}, FOLLOWED.model_copy(update={"claim": None, "folder": "s3://bucket/run"})),
    ],
)
def test_the_application_takes_what_it_is_told(spec: dict[str, Any], followed: FollowedRun | None) -> None:
    arguments = pytest.importorskip("rl_serve.arguments")
    control, policy = serve_config(spec, followed)["applications"]
    assert control["args"] == policy["args"]
    found = arguments.parse_arguments(policy["args"])
    assert found.service == "chat"
    told = arguments.parse_user_config(policy["deployments"][0]["user_config"])
    assert (told.source, told.digest, told.version) == (
        checkpoint(20).source,
        checkpoint(20).digest,
        checkpoint(20).version,
    )
    assert arguments.parse_user_config({"policy": None}) is None


@pytest.mark.parametrize(
    "gate",
    [
        {"heldOut": {}, "latency": {}, "agreement": {}},
        {"probe": {"configMap": "probe", "scorer": "number", "maxDrop": 0.2, "minScore": 0.5}},
        {"heldOut": {"samples": 7, "confidence": 0.5, "maxDrop": 1}},
    ],
)
def test_the_gate_takes_what_it_is_told(gate: dict[str, Any]) -> None:
    criteria = pytest.importorskip("rl_serve.gate.criteria")
    found = criteria.parse_gate(gate_config(GateSpec.model_validate(gate)))
    for name, value in gate.items():
        part = getattr(found, {"heldOut": "held_out"}.get(name, name))
        assert part is not None
        for field, number in value.items():
            if field not in ("configMap", "scorer"):
                assert (
                    getattr(part, {"maxDrop": "max_drop", "minScore": "min_score"}.get(field, field))
                    == number
                )
    assert (found.probe is None) == ("probe" not in gate)


def test_the_builders_are_there() -> None:
    application = pytest.importorskip("rl_serve.application")
    for one in serve_config()["applications"]:
        module, _, name = one["import_path"].partition(":")
        assert module == application.__name__
        assert callable(getattr(application, name))


def test_a_copy_of_vllm_has_all_its_accelerators_in_one_pod() -> None:
    arguments = pytest.importorskip("rl_serve.arguments")
    spec = {
        "engine": "vllm",
        "tensorParallelSize": 4,
        "pipelineParallelSize": 2,
        "promotion": {"answers": "stamp"},
    }
    gpus = make_profile(
        default=True, pools=[{"name": "h100", "acceleratorResource": "nvidia.com/gpu"}, {"name": "cpu"}]
    )
    cluster = ray_service(make_service_plan(spec, gpus), FOLLOWED, checkpoint(20))["spec"]
    (group,) = cluster["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    (told,) = {
        str(one["args"]): one["args"] for one in yaml.safe_load(cluster["serveConfigV2"])["applications"]
    }.values()
    found = arguments.parse_arguments(told)
    assert (found.engine, found.tensor_parallel_size, found.pipeline_parallel_size) == ("vllm", 4, 2)
    assert found.resources.gpus == 8
    assert "tensorParallelSize" not in serve_config()["applications"][0]["args"], (
        "older images do not know it"
    )


PREFILL = {
    "engine": "vllm",
    "tensorParallelSize": 2,
    "promotion": {"answers": "stamp"},
    "resources": {"cpu": 3},
    "prefill": {"replicas": 2, "resources": {"cpu": 5}, "minPromptTokens": 1000},
}
GPUS = make_profile(
    default=True, pools=[{"name": "h100", "acceleratorResource": "nvidia.com/gpu"}, {"name": "cpu"}]
)


def prefilled(**prefill: Any) -> Manifest:
    plan = make_service_plan({**PREFILL, "prefill": {**PREFILL["prefill"], **prefill}}, GPUS)
    found: Manifest = ray_service(plan, FOLLOWED, checkpoint(20))["spec"]
    return found


def test_copies_for_prompts_are_a_group_and_a_deployment_of_their_own() -> None:
    arguments = pytest.importorskip("rl_serve.arguments")
    application = pytest.importorskip("rl_serve.application")
    spec = prefilled()
    copies, prefill = spec["rayClusterConfig"]["workerGroupSpecs"]
    assert (copies["groupName"], copies["replicas"]) == ("replica", 1)
    assert (prefill["groupName"], prefill["replicas"], prefill["minReplicas"]) == ("prefill", 2, 2)
    assert "prefill" in prefill["rayStartParams"]["resources"]
    assert prefill["rayStartParams"]["num-gpus"] == "2"
    template = prefill["template"]
    assert template["metadata"]["labels"]["rltrain.dev/role"] == "prefill"
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": 8000}
    control, policy = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert control["args"] == policy["args"]
    first, second = policy["deployments"]
    assert (first["name"], second["name"]) == (application.POLICY, application.PREFILL)
    assert first["user_config"] == second["user_config"], "both load the same policy"
    assert second["num_replicas"] == 2
    found = arguments.parse_arguments(policy["args"])
    assert (found.resources.cpus, found.resources.gpus) == (3, 2)
    assert (found.prefill.resources.cpus, found.prefill.resources.gpus) == (5, 2)
    assert found.prefill.min_prompt_tokens == 1000
    assert "prefill" not in serve_config()["applications"][0]["args"], "older images do not know it"


def test_another_number_of_copies_for_prompts_takes_another_cluster() -> None:
    one, other = (prefilled(replicas=count)["rayClusterConfig"]["workerGroupSpecs"] for count in (2, 3))
    assert one[0] == other[0]
    assert one[1]["template"] != other[1]["template"], "KubeRay compares templates, and no numbers of pods"


def test_another_policy_is_told_to_copies_for_prompts_as_well() -> None:
    config = ServeConfig.read(prefilled()["serveConfigV2"])
    assert config is not None
    other = policy_config(checkpoint(30))
    changed = yaml.safe_load(config.serving(other))["applications"][1]["deployments"]
    assert [one["user_config"]["policy"] for one in changed] == [other, other]


def test_copies_reach_each_other_at_any_port() -> None:
    policy = next(
        one for one in service_objects(make_service_plan(PREFILL, GPUS)) if one["kind"] == "NetworkPolicy"
    )
    own = {"podSelector": policy["spec"]["podSelector"]}
    assert {"from": [own]} in policy["spec"]["ingress"]
    assert {"to": [own]} in policy["spec"]["egress"]


def test_another_policy_changes_user_config_alone() -> None:
    plan = make_service_plan()
    one, other = (ray_service(plan, FOLLOWED, checkpoint(step))["spec"] for step in (20, 30))
    assert one["rayClusterConfig"] == other["rayClusterConfig"]
    configs = [yaml.safe_load(each["serveConfigV2"]) for each in (one, other)]
    for config in configs:
        del config["applications"][1]["deployments"][0]["user_config"]
    assert configs[0] == configs[1]


def test_copies_by_number_or_by_demand() -> None:
    (fixed,) = serve_config({"replicas": {"min": 2}})["applications"][1]["deployments"]
    assert fixed["num_replicas"] == 2
    (moving,) = serve_config({"replicas": {"min": 1, "max": 3}})["applications"][1]["deployments"]
    assert (moving["autoscaling_config"]["min_replicas"], moving["autoscaling_config"]["max_replicas"]) == (
        1,
        3,
    )
    group = rendered({"replicas": {"min": 1, "max": 3}})["rayClusterConfig"]["workerGroupSpecs"][0]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 1, 3)


def test_pods_are_restricted_and_hold_no_credentials() -> None:
    for template in pods({"auth": {"secret": "keys"}, "secrets": ["hub"]}):
        spec = template["spec"]
        (container,) = spec["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert (values["RAY_AUTH_MODE"], values["NVIDIA_VISIBLE_DEVICES"]) == ("token", "void")


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_proxies_choose_among_all_copies(engine: str) -> None:
    proxy = pytest.importorskip("rl_serve.proxy")
    for template in pods({"engine": engine, "image": "a/b:1", "promotion": {"answers": "stamp"}}):
        (container,) = template["spec"]["containers"]
        values = {one["name"]: one.get("value") for one in container["env"]}
        assert values["RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING"] == "0"
        assert values["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "20"
        module, _, name = values["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].partition(":")
        assert module == proxy.__name__
        classes = [one.cls for one in getattr(proxy, name)()]
        assert (proxy.Prefixes in classes) == (engine == "vllm")
        assert classes[:2] == [proxy.Guard, proxy.Renewal]


def test_the_head_alone_has_policies_secrets_and_the_token() -> None:
    head, replica = pods(
        {"secrets": ["hub"], "auth": {"secret": "keys"}, "promotion": {"gate": {"probe": {"configMap": "p"}}}}
    )
    there = {volume["name"] for volume in head["spec"]["volumes"]}
    assert {"policies", "secret-00", "token", "probe", "keys"} <= there
    assert {volume["name"] for volume in replica["spec"]["volumes"]} == {"tmp", "shm", "keys"}
    mount = next(one for one in head["spec"]["containers"][0]["volumeMounts"] if one["name"] == "policies")
    assert mount["subPath"] == "sums-run-uid"
    assert "readOnly" not in mount  # the head keeps a pin beside the checkpoints that it needs
    values = {one["name"]: one.get("value") for one in head["spec"]["containers"][0]["env"]}
    assert values["RLTRAIN_SERVICE_UID"] == "service-uid"
    assert checkpoint(20).source.startswith(mount["mountPath"])


def test_no_traffic_before_the_proxy_is_there() -> None:
    _, replica = pods()
    probe = replica["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/-/healthz", "port": 8000}


def test_the_token_is_of_this_service_alone() -> None:
    plan = make_service_plan()
    data = {
        name: base64.b64decode(text).decode() for name, text in service_secret(plan, b"key")["data"].items()
    }
    assert data == {
        "token": derive_token(b"key", "service-uid", 0, CONTROL),
        "auth_token": derive_token(b"key", "service-uid", 0, RAY),
    }
    assert rendered()["rayClusterConfig"]["authOptions"] == {"mode": "token", "secretName": plan.secret}


def test_who_may_ask() -> None:
    def ingress(spec: dict[str, Any]) -> list[Manifest]:
        policy = next(
            one for one in service_objects(make_service_plan(spec)) if one["kind"] == "NetworkPolicy"
        )
        found: list[Manifest] = policy["spec"]["ingress"]
        return found

    own, clients, kuberay = ingress({})
    assert own == {"from": [{"podSelector": {"matchLabels": {"rltrain.dev/service": "chat"}}}]}
    assert clients["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert clients["from"][0] == {"podSelector": {}}
    assert len(clients["from"]) == 2  # the operator
    assert [one["port"] for one in kuberay["ports"]] == [8265, 8000]
    wider = ingress({"clients": {"matchLabels": {"team": "web"}}})[1]["from"]
    assert {"namespaceSelector": {"matchLabels": {"team": "web"}}} in wider


def test_names_are_none_of_a_run() -> None:
    plan = make_service_plan()
    names = [one["metadata"]["name"] for one in (*service_objects(plan), service_secret(plan, b"key"))]
    assert all("." in name for name in names)  # a run's name has none
    for one in (*service_objects(plan), ray_service(plan, FOLLOWED, None)):
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("RLPolicyService", "service-uid")
        assert "rltrain.dev/run" not in one["metadata"]["labels"]


STEPS = {"promotion": {"strategy": "incremental", "incremental": {"gatewayClass": "internal"}}}


def test_traffic_in_steps_brings_all_copies_up_and_no_autoscaler() -> None:
    spec = rendered(STEPS | {"replicas": {"min": 2}})
    assert spec["upgradeStrategy"] == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": "internal",
            "maxSurgePercent": 100,
            "stepSizePercent": 20,
            "intervalSeconds": 30,
        },
    }
    cluster = spec["rayClusterConfig"]
    assert cluster["workerGroupSpecs"][0]["minReplicas"] == 2  # KubeRay begins the second cluster with these
    assert cluster["enableInTreeAutoscaling"] is True
    options, template = cluster["autoscalerOptions"], cluster["headGroupSpec"]["template"]
    assert options["securityContext"]["allowPrivilegeEscalation"] is False
    [mount] = options["volumeMounts"]
    volume = next(one for one in template["spec"]["volumes"] if one["name"] == mount["name"])
    [item] = volume["downwardAPI"]["items"]
    script = template["metadata"]["annotations"]["rltrain.dev/autoscaler"]
    assert item["path"] == "ray"
    assert "rltrain.dev/autoscaler" in item["fieldRef"]["fieldPath"]
    path = next(one["value"] for one in options["env"] if one["name"] == "PATH")
    assert path.split(":")[0] == mount["mountPath"]
    assert "sleep" in script
    assert template["spec"]["automountServiceAccountToken"] is False


def test_the_way_back_takes_no_steps() -> None:
    steps = {"gatewayClass": "internal", "stepPercent": 5, "interval": "90.5s", "halted": True}
    plan = make_service_plan({"promotion": {"strategy": "incremental", "incremental": steps}})
    found = [
        ray_service(plan, FOLLOWED, checkpoint(20), hurried=hurried)["spec"]["upgradeStrategy"][
            "clusterUpgradeOptions"
        ]
        for hurried in (False, True)
    ]
    assert [(one["stepSizePercent"], one["intervalSeconds"]) for one in found] == [(0, 91), (100, 1)]
