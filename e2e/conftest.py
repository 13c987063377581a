"""Fixtures of the end-to-end scenarios: the operator installed by helm, namespaces, claims, runs, and their last check.

`scripts/e2e` prepares the cluster and the images and runs them, several scenarios at a time; KUBECONFIG names the cluster.
"""

from __future__ import annotations

import fcntl
import math
import os
import random
import subprocess
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_client import Cluster, wait_for
from enforcement import enforced_policies
from policy_service import PolicyService, service_document
from training_run import CLAIM, REPOSITORY, TrainingRun, run_document
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Scenarios of these files, or of these names, go one after another, beside others.
TOGETHER = {
    "the operator": ("test_operator.py",),
    # What one does with it would disturb another. Two of them have too many pods for what others leave of the first node.
    "the spare node": (
        *("test_nodes.py", "test_drain.py", "test_gang.py", "test_policies.py", "test_task_pods.py"),
        "test_two_runs_in_two_namespaces_one_with_two_learners_and_two_samplers",
    ),
    "tenants": ("test_tenants.py",),
}
GROUPS = {each: name for name, those in TOGETHER.items() for each in those}
ARTIFACTS = REPOSITORY / "e2e" / "artifacts"
CHART = REPOSITORY / "charts" / "rltrain"
LOCK = REPOSITORY / ".tools" / "e2e.lock"
SYSTEM = "rltrain-system"
VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
TRAINER_IMAGE = os.environ.get("E2E_TRAINER_IMAGE", f"rltrain-trainer:{VERSION}-cpu")
OPERATOR_IMAGE = os.environ.get("E2E_OPERATOR_IMAGE", f"rltrain-operator:{VERSION}")
OBJECT_STORE_IMAGE = os.environ.get("E2E_OBJECT_STORE_IMAGE", f"rltrain-e2e-object-store:{VERSION}")
GATEWAY_IMAGE = os.environ.get("E2E_GATEWAY_IMAGE", f"rltrain-e2e-gateway:{VERSION}")
GPU_IMAGE = os.environ.get("E2E_GPU_IMAGE", f"rltrain-trainer:{VERSION}-gpu")
UNTIL = float(os.environ.get("E2E_UNTIL", "inf"))
"""Seconds since the epoch, after which no scenario begins: .ci/run has 90 minutes, however slow the machine is."""
# A node for one scenario alone, which takes it away; no other pod tolerates its taint.
SPARE = "rltrain.dev/e2e-spare"
PROFILE = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingProfile",
    "metadata": {"name": "e2e"},
    "spec": {
        "pools": [
            {"name": "cpu"},
            {"name": "gpu", "acceleratorResource": "nvidia.com/gpu", "acceleratorsPerNode": 8},
            {
                "name": "spare",
                "nodeSelector": {SPARE: "true"},
                "tolerations": [{"key": SPARE, "operator": "Exists", "effect": "NoSchedule"}],
            },
        ],
        "images": {"cpu": TRAINER_IMAGE, "gpu": GPU_IMAGE},
        "allow": {
            "workloadPriorityClasses": ["e2e-low", "e2e-high"],
            "egress": [{"pods": {"app.kubernetes.io/name": "objects"}, "ports": [7070]}],
        },
    },
}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ENFORCING] = ExitStack()
    config.addinivalue_line(
        "markers", "tenants: attempts of one team against another, in make e2e-tenants only"
    )
    config.addinivalue_line(
        "markers", "vllm: needs an image with vLLM's build for CPUs, in make e2e-vllm only"
    )
    config.addinivalue_line("markers", "alone: a scenario that no other one may run beside")
    config.addinivalue_line("markers", "long: a scenario that takes minutes")
    os.environ["PATH"] = f"{REPOSITORY / '.tools' / 'bin'}:{os.environ['PATH']}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, so that no process waits long for another; in the end those that nobody may run beside. Where time is
    perhaps too short for all (`E2E_UNTIL`), each commit has the files in another order: others are left out each time."""
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    files = sorted({item.path.name for item in items})
    random.Random(head.stdout).shuffle(files)

    def place(item: pytest.Item) -> tuple[bool, int]:
        short = item.get_closest_marker("long") is None
        turn = short if math.isinf(UNTIL) else files.index(item.path.name)
        return item.get_closest_marker("alone") is not None, turn

    items.sort(key=place)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before a fixture begins anything."""
    skip_when_it_is_late()


def skip_when_it_is_late() -> None:
    if time.time() > UNTIL:
        pytest.skip("no time was left for it; make e2e by itself takes as long as it takes")


class Scenarios(LoadScopeScheduling):
    """The next scenario to whoever is free; those of a group go together."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, name = nodeid.partition("::")
        return GROUPS.get(Path(file).name) or GROUPS.get(name, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Scenarios(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Policies enforced and the operator installed: once, before the processes begin that run the scenarios."""
    if "PYTEST_XDIST_WORKER" in os.environ or session.config.option.collectonly:
        return
    cluster = Cluster()
    served = cluster.kubectl("get", "crd", "rayjobs.ray.io", check=False)
    if served.returncode:
        pytest.exit(
            f"no cluster with KubeRay in the current kube context: {served.stderr.strip()}; scripts/cluster up makes one",
            2,
        )
    try:
        enforced = enforced_policies(cluster, OPERATOR_IMAGE, ARTIFACTS / "network-policies.log")
        session.config.stash[_ENFORCED] = session.config.stash[_ENFORCING].enter_context(enforced)
        install_operator(cluster)
    except AssertionError as error:
        pytest.exit(str(error), 1)
    cluster.apply(PROFILE)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_ENFORCING].close()


def install_operator(
    cluster: Cluster,
    *values: str,
    chart: Path = CHART,
    image: str = OPERATOR_IMAGE,
) -> None:
    """Install or upgrade the chart with helm, as a platform engineer does it; `values` are helm's `name=value`."""
    repository, _, tag = image.rpartition(":")
    if chart == CHART:
        values = ("gang.schedulers={kubernetes}", *values)
    # The image may have changed below an unchanged tag, so that pods are made anew each time.
    installed = f"podAnnotations.rltrain\\.dev/installed={time.time():.0f}"
    command = ["upgrade", "--install", "rltrain", str(chart)]
    command += ["--create-namespace", "--wait", "--timeout", "360s"]
    fixed = (f"image.repository={repository}", f"image.tag={tag}", "resources.requests.cpu=20m")
    for value in (*fixed, *values):
        command += ["--set", value]
    command += ["--set-string", installed]
    done = cluster.helm(SYSTEM, *command)
    if done.returncode:
        # A broken installation is seen in the log of the pod, which helm does not show.
        cluster.save(ARTIFACTS / "operator", [SYSTEM])
        raise AssertionError(
            f"helm could not install the operator: {done.stderr.strip()}; see e2e/artifacts/operator"
        )


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster of the current context, with KubeRay."""
    return Cluster()


@contextmanager
def open_namespace(cluster: Cluster, request: pytest.FixtureRequest, words: str) -> Iterator[str]:
    """A namespace that takes pods of the restricted standard only, with a claim; its state is kept on failure."""
    words = words.removeprefix("test_").replace("_", "-").split("[")[0]
    name = f"e2e-{words[:40].strip('-')}-{uuid.uuid4().hex[:5]}"
    failed_before = request.session.testsfailed
    report, failed = None, True
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    try:
        cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            *claim(cluster, name),
        )
        yield name
        report = request.node.stash.get(_REPORT, None)
        failed = (report is not None and report.failed) or request.session.testsfailed > failed_before
    finally:
        if failed:
            cluster.save(ARTIFACTS / words, [name, SYSTEM])
            if report is not None:
                (ARTIFACTS / words / "failure.txt").write_text(report.longreprtext)
        cluster.kubectl(
            "delete", "rltrainingruns,rlpolicyservices", "--all", "-n", name, "--timeout=180s", check=False
        )
        both = (f"namespace/{name}", f"persistentvolume/{name}-{CLAIM}")
        cluster.kubectl("delete", *both, "--ignore-not-found", "--wait=false")


def claim(cluster: Cluster, namespace: str) -> Iterator[dict[str, Any]]:
    """A claim for checkpoints: of the default storage class, or on the node that scripts/cluster prepared."""
    request: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    prepared = cluster.list("nodes", selector="rltrain.dev/e2e-storage=true")
    if prepared:
        on_that_node = {"key": "rltrain.dev/e2e-storage", "operator": "In", "values": ["true"]}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"{namespace}-{CLAIM}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": {"name": CLAIM, "namespace": namespace},
                # One folder for all: each run has a folder of its own in it.
                "hostPath": {"path": "/var/lib/rltrain-e2e"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_that_node]}]}},
            },
        }
        yield volume
        request |= {"storageClassName": "", "volumeName": f"{namespace}-{CLAIM}"}
    metadata = {"name": CLAIM, "namespace": namespace}
    yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": request}


@pytest.fixture(autouse=True)
def turn(request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]) -> Iterator[None]:
    """Scenarios run beside each other, but for one that is marked `alone`: the processes share a lock."""
    start = time.monotonic()
    with in_turn(alone=request.node.get_closest_marker("alone") is not None):
        record_property("waited", time.monotonic() - start)
        skip_when_it_is_late()
        yield


@contextmanager
def in_turn(*, alone: bool = False) -> Iterator[None]:
    """Nothing that wants to be alone runs meanwhile; `alone`: nothing at all does."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the scenario's own."""
    with open_namespace(cluster, request, request.node.name) as name:
        yield name


@contextmanager
def trainer(cluster: Cluster, namespace: str, record: Callable[[str, Any], None]) -> Iterator[Train]:
    """Applies small runs: `train("name", {"stop": {"maxSteps": 5}})`; the second argument is laid over the spec.

    Afterwards the metrics of every run that has ended or is suspended are read: no step and no prompt may be lost or trained
    on twice.
    """
    runs: list[TrainingRun] = []

    def apply(name: str, spec: dict[str, Any] | None = None, where: str | None = None) -> TrainingRun:
        document = run_document(name, where or namespace, {"profile": "e2e"} | (spec or {}))
        cluster.apply(document)
        run = TrainingRun(cluster, name, where or namespace)
        runs.append(run)
        wait_for("the operator writes a status", lambda: run.status, 60, run.describe)
        return run

    yield apply
    prompts = 0
    for run in runs:
        try:
            prompts += run.check_metrics(TRAINER_IMAGE)
        except AssertionError:
            cluster.save(ARTIFACTS / f"metrics-of-{run.name}", [run.namespace])
            raise
    record("prompts", prompts)


@pytest.fixture
def train(cluster: Cluster, namespace: str, record_property: Callable[[str, Any], None]) -> Iterator[Train]:
    """Applies small runs in the scenario's namespace: see `trainer`."""
    with trainer(cluster, namespace, record_property) as apply:
        yield apply


@pytest.fixture
def train_elsewhere(
    cluster: Cluster, request: pytest.FixtureRequest, record_property: Callable[[str, Any], None]
) -> Iterator[Train]:
    """Applies small runs in a second namespace."""
    with ExitStack() as stack:
        name = stack.enter_context(open_namespace(cluster, request, f"{request.node.name[:30]}-other"))
        yield stack.enter_context(trainer(cluster, name, record_property))


def spare_nodes(cluster: Cluster) -> list[str]:
    """Nodes on which only those are that tolerate it."""
    nodes = cluster.list("nodes", selector=f"{SPARE}=true")
    tainted = [node for node in nodes if any(one["key"] == SPARE for one in node["spec"].get("taints", []))]
    return [node["metadata"]["name"] for node in tainted]


@pytest.fixture
def elsewhere(cluster: Cluster) -> dict[str, list[str]]:
    """Where those pods of a role go that the first node has no room for, beside another scenario: `{"pools": [...]}`; empty:
    this cluster has no spare node, and is taken to have room."""
    return {"pools": ["spare"]} if spare_nodes(cluster) else {}


@pytest.fixture
def spare_node(cluster: Cluster) -> Iterator[str]:
    """A node that may be drained or lost, and on which only those are that tolerate it; it takes pods again afterwards."""
    spare = spare_nodes(cluster)
    if not spare:
        pytest.skip("the cluster has no spare node; scripts/cluster up 2 makes one")
    name = spare[0]
    others = [node["metadata"]["name"] for node in cluster.list("nodes") if node["metadata"]["name"] != name]
    yield name
    cluster.kubectl("uncordon", name)
    for other in others:
        cluster.kubectl("label", "node", other, f"{SPARE}-")


@pytest.fixture
def serve(cluster: Cluster, namespace: str) -> Iterator[Callable[..., PolicyService]]:
    """Applies services in the scenario's namespace: `serve("name", {"from": {"run": "teacher"}})`."""

    def apply(name: str, spec: dict[str, Any]) -> PolicyService:
        cluster.apply(service_document(name, namespace, spec))
        return PolicyService(cluster, name, namespace)

    yield apply
    cluster.kubectl("delete", "rlpolicyservices", "--all", "-n", namespace, "--timeout=180s", check=False)


Train = Callable[..., TrainingRun]
_REPORT = pytest.StashKey[pytest.TestReport]()
_ENFORCING = pytest.StashKey[ExitStack]()
_ENFORCED = pytest.StashKey[str]()
_times: dict[str, tuple[str, float]] = {}
ORDER = ("skipped", "passed", "failed")
_prompts: list[int] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" or report.failed:
        item.stash[_REPORT] = report
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("::")[2].removeprefix("test_")
    outcome, seconds = _times.get(name, ("passed", 0.0))
    # What a scenario took is with its preparation and its checks afterwards.
    if report.when == "setup":  # without the wait for its turn
        seconds -= sum(value for key, value in report.user_properties if key == "waited")
    _times[name] = (report.outcome if report.outcome != "passed" else outcome, seconds + report.duration)
    if report.when == "teardown":
        _prompts.extend(value for key, value in report.user_properties if key == "prompts" and value)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    terminalreporter.section("scenarios")
    if _ENFORCED in config.stash:
        terminalreporter.write_line(f"network policies were enforced by {config.stash[_ENFORCED]}")
    # What one looks for comes last: of a long output often the end alone is kept.
    for name, (outcome, seconds) in sorted(_times.items(), key=lambda each: ORDER.index(each[1][0])):
        terminalreporter.write_line(f"{outcome:8}{seconds:7.0f} s  {name.replace('_', ' ')}")
    if _prompts:
        terminalreporter.write_line(
            f"{sum(_prompts):,} prompts of {len(_prompts)} scenarios' runs were trained on, each exactly once"
        )
    if any(outcome == "failed" for outcome, _ in _times.values()):
        terminalreporter.write_line(f"logs, events and objects: {Path('e2e/artifacts')}")
