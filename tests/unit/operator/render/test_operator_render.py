from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from operator_worlds import GPU_POOLS, SETTINGS, container, groups, make_plan, make_profile, make_run, refused

from rl_api import load_run
from rl_api.documents import load_documents
from rl_operator.model.names import attempt_name, secret_name, shorten
from rl_operator.plan.effective import Effective, plan
from rl_operator.render.objects import all_objects
from rl_operator.render.raycluster import ray_cluster
from rl_operator.render.rayjob import ray_job

REPOSITORY = Path(__file__).resolve().parents[4]
DATA = Path(__file__).parent / "data"
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))


class TestNames:
    def test_short_ones_stay(self) -> None:
        assert attempt_name("quickstart", 12) == "quickstart-12"
        assert secret_name("quickstart") == "quickstart-status"

    def test_long_ones_keep_apart(self) -> None:
        one, other = attempt_name("a" * 46 + "x", 1), attempt_name("a" * 46 + "y", 1)
        assert len(one) == len(other) == 47
        assert one != other
        assert one.endswith("-1")
        assert attempt_name("a" * 47, 123)[-4:] == "-123"

    def test_no_hyphen_before_the_hash(self) -> None:
        assert "--" not in shorten("a" * 9 + "-" * 9, 17)


class TestSnapshot:
    def test_one_rayjob_as_yaml(self) -> None:
        """After a change that is meant: write `text` into the file, and read the difference."""
        spec = {
            "sampler": {"pools": ["spot"], "resources": {"cpu": 2.5, "memory": "24Gi", "accelerators": 1}},
            "learner": {"pools": ["h100"], "threads": 4},
            "scheduling": {"queue": "team-a", "priorityClass": "research"},
        }
        effective = make_plan(spec, make_profile(default=True, pools=GPU_POOLS))
        text = yaml.safe_dump(ray_job(effective, 3), sort_keys=False, width=110)
        assert text == (DATA / "rayjob.yaml").read_text()


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


class TestConfig:
    def test_the_trainer_can_read_it(self, tmp_path: Path) -> None:
        effective = make_plan({"suspend": True})
        config = all_objects(effective, 2, "token")[3]
        file = tmp_path / "run.yaml"
        file.write_text(config["data"]["run.yaml"])
        run = load_run(str(file), target="cluster")
        assert run.spec == effective.spec
        assert run.spec.server.port == 8090
        assert run.spec.suspend is False
        assert config["immutable"] is True
        assert config["metadata"]["name"] == "sums-2"

    def test_a_port_of_the_users_own(self) -> None:
        effective = make_plan({"server": {"port": 9000}})
        assert {"name": "status", "containerPort": 9000} in container(groups(effective)["head"])["ports"]
        policy = all_objects(effective, 1, "token")[1]
        assert [port["port"] for port in policy["spec"]["ingress"][1]["ports"]] == [8265, 9000]

    def test_the_token_is_in_the_secret_only(self) -> None:
        objects = all_objects(make_plan(), 1, "s3cret-token")
        assert objects[0]["data"] == {"token": "czNjcmV0LXRva2Vu"}
        assert "s3cret-token" not in yaml.safe_dump(objects)


class TestPods:
    def test_they_pass_the_restricted_standard(self) -> None:
        for role, group in groups(make_plan()).items():
            spec = group["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert spec["automountServiceAccountToken"] is False
            security = container(group)["securityContext"]
            assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert group["template"]["metadata"]["labels"]["rltrain.dev/role"] == role

    def test_only_the_head_has_the_checkpoints_and_the_token(self) -> None:
        found = groups(make_plan())
        head = found["head"]["template"]["spec"]
        assert head["restartPolicy"] == "Never"
        mounts = {mount["mountPath"]: mount for mount in container(found["head"])["volumeMounts"]}
        assert mounts["/var/lib/rltrain"]["subPath"] == "sums-12345678"
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "ckpt"}} in head["volumes"]
        for role in ("learner", "sampler"):
            assert container(found[role])["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]
            names = [variable["name"] for variable in container(found[role])["env"]]
            assert "RLTRAIN_STATUS_TOKEN" not in names
            assert "RLTRAIN_FENCE" not in names, "only the driver writes"

    def test_secrets_of_the_run_reach_every_pod(self) -> None:
        for group in groups(make_plan({"secrets": ["hub", "object-store"]})).values():
            sources = [{"secretRef": {"name": "hub"}}, {"secretRef": {"name": "object-store"}}]
            assert container(group)["envFrom"] == sources
        assert all("envFrom" not in container(group) for group in groups(make_plan()).values())

    def test_without_a_claim_the_disk_is_the_pods_own(self) -> None:
        storage = {"persistentVolumeClaim": None, "s3": "s3://bucket/folder"}
        head = groups(make_plan({"checkpoint": {"storage": storage}}))["head"]
        assert {"name": "data", "emptyDir": {}} in head["template"]["spec"]["volumes"]
        assert all("subPath" not in mount for mount in container(head)["volumeMounts"])
        assert make_plan({"checkpoint": None}).claim is None

    @pytest.mark.parametrize("named", ["s3://bucket/folder", "s3://bucket/folder/"])
    def test_runs_that_name_the_same_object_store_do_not_meet_there(self, named: str) -> None:
        own = make_plan({"checkpoint": {"storage": {"persistentVolumeClaim": None, "s3": named}}})
        run = make_run()
        del run["spec"]["checkpoint"]
        defaults = {"checkpoint": {"storage": {"s3": named}}}
        of_the_profile = plan(run, [make_profile(default=True, defaults=defaults)], SETTINGS)
        for effective in (own, of_the_profile):
            assert isinstance(effective, Effective)
            storage = effective.document["spec"]["checkpoint"]["storage"]
            assert storage["s3"] == "s3://bucket/folder/sums-12345678"

    def test_every_head_of_every_attempt_has_a_fence_of_its_own(self) -> None:
        for attempt in (1, 2):
            spec = ray_job(make_plan(), attempt)["spec"]["rayClusterSpec"]["headGroupSpec"]
            env = container(spec)["env"]
            names = [one["name"] for one in env]
            assert env[names.index("RLTRAIN_FENCE")]["value"] == f"12345678-90ab/{attempt}/$(RLTRAIN_POD)"
            # The kubelet knows a variable in those that come after it.
            pod = {"name": "RLTRAIN_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
            assert env.index(pod) < names.index("RLTRAIN_FENCE")


class TestProfiles:
    def test_defaults_are_under_the_runs_own_values(self) -> None:
        defaults = {"retry": {"limit": 7}, "learner": {"tokensPerMicroBatch": 512, "threads": 8}}
        effective = make_plan(
            {"learner": {"threads": 2}}, make_profile(default=True, defaults=defaults, queue="batch")
        )
        assert effective.spec.retry.limit == 7
        assert effective.spec.learner.tokens_per_micro_batch == 512
        assert effective.spec.learner.threads == 2, "the run's own"
        assert effective.spec.scheduling.queue == "batch"
        assert effective.spec.profile == "shared"

    def test_the_runs_storage_replaces_the_profiles(self) -> None:
        defaults = {"checkpoint": {"keep": 9, "storage": {"s3": "s3://bucket/folder"}}}
        own = {"checkpoint": {"storage": {"persistentVolumeClaim": "disk"}}}
        effective = make_plan(own, make_profile(default=True, defaults=defaults))
        assert effective.claim == "disk"
        assert effective.spec.checkpoint is not None
        assert effective.spec.checkpoint.keep == 9

    def test_a_profile_by_name(self) -> None:
        profiles = [make_profile("a", default=True), make_profile("b", queue="q")]
        found = plan(make_run({"profile": "b"}), profiles, SETTINGS)
        assert isinstance(found, Effective)
        assert found.spec.scheduling.queue == "q"

    @pytest.mark.parametrize(
        ("spec", "profiles", "reason", "sentence"),
        [
            (
                {"profile": "none"},
                [make_profile("b"), make_profile("a")],
                "ProfileMissing",
                "(there are: a, b)",
            ),
            ({"profile": "none"}, [], "ProfileMissing", "(there are: none)"),
            ({"profile": 5}, [], "ProfileMissing", "found 5"),
            (
                {},
                [make_profile("b", default=True), make_profile("a", default=True)],
                "ProfileMissing",
                "a, b",
            ),
            (
                {"profile": "a"},
                [make_profile("a", pools=[])],
                "ProfileInvalid",
                "RLTrainingProfile a: spec.pools",
            ),
        ],
    )
    def test_missing_and_broken_ones(
        self, spec: dict[str, Any], profiles: list[dict[str, Any]], reason: str, sentence: str
    ) -> None:
        found = refused(spec, *profiles)
        assert found.reason == reason
        assert sentence in found.message

    def test_the_hash_follows_the_spec_and_not_the_wish_to_suspend(self) -> None:
        assert make_plan().digest == make_plan({"suspend": True}).digest
        assert make_plan().digest != make_plan({"seed": 1}).digest
        changed = make_profile(default=True, defaults={"retry": {"limit": 9}})
        assert make_plan({}, make_profile(default=True)).digest != make_plan({}, changed).digest


LIMITED = make_profile(
    default=True,
    pools=[GPU_POOLS[0] | {"limits": {"maxReplicas": 3, "maxAccelerators": 6}}, {"name": "cpu"}],
    limits={"maxSamplers": 4, "maxLearners": 2, "maxAccelerators": 7},
)


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (
            {"sampler": {"replicas": 5, "pools": ["cpu"]}},
            ["spec.sampler.replicas: found 5, allowed: at most 4, the limit of profile shared"],
        ),
        (
            {"learner": {"replicas": 4, "pools": ["cpu"]}},
            ["spec.learner.replicas: found 4, allowed: at most 2, the limit of profile shared"],
        ),
        (
            {"sampler": {"replicas": 4, "tensorParallelSize": 2}},
            [
                "found 9 accelerators (learner: 1 * 1, sampler: 4 * 2), allowed: at most 7, the limit of profile",
                "spec.sampler.replicas: found 4, allowed: at most 3, the limit of pool h100",
                "found 9 accelerators of pool h100 (learner: 1 * 1, sampler: 4 * 2), allowed: at most 6",
            ],
        ),
    ],
)
def test_limits(spec: dict[str, Any], sentences: list[str]) -> None:
    found = refused(spec, LIMITED)
    assert found.reason == "LimitExceeded"
    for sentence in sentences:
        assert sentence in found.message


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            {"sampler": {"pools": ["tpu"]}},
            "spec.sampler.pools[0]: found 'tpu', allowed: a pool of profile shared: h100, cpu",
        ),
        ({"learner": {"pools": ["tpu"]}}, "spec.learner.pools[0]: found 'tpu'"),
        (
            {"sampler": {"pools": ["cpu"], "resources": {"accelerators": 2}}},
            "spec.sampler.resources.accelerators: found 2, allowed: 0 on pool cpu, without accelerators",
        ),
        (
            {"sampler": {"tensorParallelSize": 16}},
            "spec.sampler.tensorParallelSize: found 16, allowed: at most 8, what a node of pool h100 has",
        ),
        (
            {"sampler": {"engine": "vllm", "resources": {"accelerators": 0}}},
            "spec.sampler.resources.accelerators: found 0, allowed: at least 1 with engine vllm",
        ),
        ({"server": {"port": 8265}}, "spec.server.port: found 8265, allowed: a port that Ray does not use"),
        ({"checkpoint": {"storage": None}}, "spec.checkpoint.storage: missing, required on a cluster"),
    ],
)
def test_what_cannot_be_placed(spec: dict[str, Any], sentence: str) -> None:
    found = refused(spec, make_profile(default=True, pools=GPU_POOLS))
    assert found.reason == "InvalidSpec"
    assert sentence in found.message


def test_many_problems_make_a_message_of_bounded_length() -> None:
    spec = {"sampler": {f"wrong{number}" + "x" * 50: 1 for number in range(60)}}
    message = refused(spec).message
    assert len(message) < 2100
    assert message.endswith("(60 problems)")


class TestCluster:
    def test_kuberay_takes_it(self) -> None:
        """The rules of KubeRay's own validation that bear on what is rendered."""
        for effective in (make_plan(), make_plan({}, make_profile(default=True, pools=GPU_POOLS))):
            spec = ray_job(effective, 1)["spec"]
            assert spec["submissionMode"] == "HTTPMode"
            assert spec["shutdownAfterJobFinishes"] is True
            assert "deletionStrategy" not in spec
            names = [group["groupName"] for group in spec["rayClusterSpec"]["workerGroupSpecs"]]
            assert len(set(names)) == len(names) < 17
            assert "head" not in names
            for group in spec["rayClusterSpec"]["workerGroupSpecs"]:
                assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
                assert "resources" not in group
                assert all(isinstance(value, str) for value in group["rayStartParams"].values())
                assert container(group)["name"] == "ray"

    def test_ray_resources_mark_the_roles(self) -> None:
        found = groups(make_plan())
        assert found["sampler"]["rayStartParams"]["resources"] == '"{\\"sampler\\":1}"'
        sampler = found["sampler"]
        assert (sampler["replicas"], sampler["minReplicas"], sampler["maxReplicas"]) == (1, 1, 2)

    def test_interactive(self) -> None:
        effective = make_plan({"workload": "Cluster", "scheduling": {"queue": "q"}})
        cluster = ray_cluster(effective, 1)
        assert cluster["kind"] == "RayCluster"
        assert cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
        assert cluster["spec"] == ray_job(effective, 1)["spec"]["rayClusterSpec"]


class TestNetwork:
    def test_who_may_come_in(self) -> None:
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

    def test_what_must_not_be_moved(self) -> None:
        effective = make_plan()
        spec = all_objects(effective, 1, "token")[2]["spec"]
        assert spec["minAvailable"] == 1 + effective.spec.learner.replicas
        assert spec["selector"]["matchExpressions"][0]["values"] == ["head", "learner"]
