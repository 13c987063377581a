"""A run for which an inference server outside of it samples: its samplers only ask, and reach that server alone."""

from __future__ import annotations

from typing import Any

from operator_worlds import GPU_POOLS, SETTINGS, container, groups, make_plan, make_profile, make_run, merge

from rl_operator.plan.effective import Effective, plan
from rl_operator.render.network import network_policy
from rl_operator.render.objects import run_objects
from rl_operator.render.pods import NO_DEVICES

URL = "http://inference.serving:8000"
SERVER = {
    "url": URL,
    "folder": "/mnt/weights/",
    "persistentVolumeClaim": "weights",
    "secret": "inference-key",
    "apiKeyVariable": "KEY",
}
ENDPOINT = {"sampler": {"engine": "endpoint", "replicas": 1, "endpoint": SERVER}}
PODS = {"namespaces": {"kubernetes.io/metadata.name": "serving"}, "pods": {"app": "vllm"}, "ports": [8000]}
ALLOWED = [{"url": URL, "egress": [PODS]}, {"url": "http://other:8000", "egress": [{"cidr": "10.0.0.0/8"}]}]


def served(change: dict[str, Any] | None = None, **profile: Any) -> Effective:
    given = {"default": True, "pools": GPU_POOLS, "allow": {"endpoints": ALLOWED}, **profile}
    return make_plan(merge(ENDPOINT, change or {}), make_profile(**given))


def test_its_samplers_have_no_accelerators_and_go_where_none_are() -> None:
    run = served()
    assert run.role("sampler").pool.name == "cpu"
    assert (run.role("sampler").accelerators, run.role("sampler").pod.accelerators) == (0, 0)
    assert (run.role("learner").pool.name, run.role("learner").accelerators) == ("h100", 1)
    sampler = groups(run)["sampler"]
    assert sampler["rayStartParams"]["num-gpus"] == "0"
    assert not any("nvidia.com" in name for name in container(sampler)["resources"]["limits"])
    environment = {one["name"]: one.get("value") for one in container(sampler)["env"]}
    assert environment.items() >= NO_DEVICES.items()
    # What counts against the limits of a run is the learner's one.
    assert isinstance(served(limits={"maxAccelerators": 1}), Effective)


def test_samplers_mount_a_folder_of_the_runs_own_and_the_server_is_told_where_it_is() -> None:
    for seen, expected in (({}, "/mnt/weights"), ({"serverFolder": "/models/live"}, "/models/live")):
        run = served({"sampler": {"endpoint": seen}})
        assert (
            run.document["spec"]["sampler"]["endpoint"]["serverFolder"] == f"{expected}/sums-12345678.weights"
        )
        assert run.document["spec"]["sampler"]["endpoint"]["folder"] == "/mnt/weights/"
        for role, group in groups(run).items():
            spec, here = group["template"]["spec"], role == "sampler"
            mounts = [one for one in container(group)["volumeMounts"] if one["name"] == "weights"]
            mount = {"name": "weights", "mountPath": "/mnt/weights", "subPath": "sums-12345678.weights"}
            assert mounts == ([mount] if here else [])
            claims = [one["persistentVolumeClaim"] for one in spec["volumes"] if one["name"] == "weights"]
            assert claims == ([{"claimName": "weights"}] if here else [])


def test_a_claim_for_checkpoints_and_weights_shows_samplers_no_checkpoints() -> None:
    run = served({"checkpoint": {"storage": {"persistentVolumeClaim": "weights"}}})
    seen = {
        role: {one["subPath"] for one in container(group)["volumeMounts"] if "subPath" in one}
        for role, group in groups(run).items()
    }
    (own,) = seen["head"]
    (weights,) = seen["sampler"]
    assert not f"{weights}/".startswith(f"{own}/") and not f"{own}/".startswith(f"{weights}/")


def test_the_key_is_a_variable_of_samplers_alone_and_stands_nowhere() -> None:
    run = served({"secrets": ["hub"], "task": {"secrets": ["judge"]}})
    found = {
        role: [one["secret"]["secretName"] for one in group["template"]["spec"]["volumes"] if "secret" in one]
        for role, group in groups(run).items()
    }
    assert [name for name in found["sampler"] if name in ("hub", "judge", "inference-key")] == [
        "judge",
        "inference-key",
    ]
    assert all("inference-key" not in names for role, names in found.items() if role != "sampler")


def test_samplers_alone_reach_the_server_and_nothing_that_another_runs_server_needs() -> None:
    run = served()
    assert len(network_policy(run)["spec"]["egress"]) == 2, "DNS and the run's own pods"
    of_all, of_samplers = [one for one in run_objects(run) if one["kind"] == "NetworkPolicy"]
    assert (of_all["metadata"]["name"], of_samplers["metadata"]["name"]) == ("sums", "sums.server")
    assert of_samplers["metadata"]["ownerReferences"] == of_all["metadata"]["ownerReferences"]
    assert of_samplers["spec"] == {
        "podSelector": {"matchLabels": {"rltrain.dev/run": "sums", "rltrain.dev/role": "sampler"}},
        "policyTypes": ["Egress"],
        "egress": [
            {
                "to": [
                    {
                        "podSelector": {"matchLabels": {"app": "vllm"}},
                        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "serving"}},
                    }
                ],
                "ports": [{"protocol": "TCP", "port": 8000}],
            }
        ],
    }


def test_a_way_to_the_server_that_the_profile_takes_away_is_closed() -> None:
    run = served(allow={"endpoints": [{"url": URL}], "egress": [PODS]})
    (policy,) = [one for one in run_objects(run) if one["metadata"]["name"] == "sums.server"]
    assert policy["spec"]["egress"] == []


def test_other_runs_have_no_such_policy() -> None:
    run = make_plan({}, make_profile(default=True, allow={"endpoints": ALLOWED}))
    assert [one["kind"] for one in run_objects(run)].count("NetworkPolicy") == 1


def test_a_pool_that_keeps_its_accelerators_for_others_keeps_them_from_its_samplers_too() -> None:
    profile = make_profile(default=True, pools=GPU_POOLS[:1], allow={"endpoints": ALLOWED})
    found = plan(make_run(ENDPOINT), [profile], SETTINGS)
    assert not isinstance(found, Effective)
    assert "found pool h100 for pods of the sampler that ask for no accelerator" in found.message
