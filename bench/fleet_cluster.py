"""The cluster that bench/fleet.py measures on: a real API server and Kueue, kwok's nodes, and KubeRay as it is played.

Nothing schedules here: who plays KubeRay also says on which node each pod is, one that has the accelerators free.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import kube_load
from kube_load import Client

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("integration", "support")]

from kueue_process import QueuedCluster, find_kueue  # noqa: E402
from operator_process import OperatorProcess, Program  # noqa: E402

ACCELERATOR: Final = "nvidia.com/gpu"
PER_NODE: Final = 8
QUEUE, FLAVOR = "queue", "h100"
URGENT, LONG = "urgent", "long"
PRIORITIES: Final = {URGENT: 1000, LONG: 10}
CONNECTIONS: Final = 32
PLAYERS: Final = 8
NODES_SECONDS: Final = 300.0
WEBHOOK_SECONDS: Final = 30.0
_FAKE: Final = "kwok.x-k8s.io/node"
_PLENTY: Final = {"cpu": "1M", "memory": "1000Ti", "ephemeral-storage": "1000Ti"}

JSON = dict[str, Any]


async def until(
    done: Callable[[], bool],
    what: Callable[[], str],
    seconds: float,
    watched: Sequence[asyncio.Task[None]] = (),
) -> None:
    """Wait for something, and say now and then how it goes.

    Raises:
        RuntimeError: it took too long, or who plays KubeRay or watches has failed.
    """
    deadline, said = time.monotonic() + seconds, 0.0
    while not done():
        for one in watched:
            if one.done():
                await one
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:.0f} s: {what()}")
        if time.monotonic() - said > 5.0:
            said = time.monotonic()
            print(f"  {what()}", file=sys.stderr, flush=True)
        await asyncio.sleep(0.05)


def equipped(who: str) -> bool:
    """Whether Kueue and kwok are here; a sentence says so where they are not."""
    kueue = find_kueue()
    if kueue is not None and (kueue.parent / "kwok").exists():
        return True
    print(
        f"{who}: no Kueue or no kwok here: scripts/tools kueue-crds kueue kwok builds them", file=sys.stderr
    )
    return False


class FleetCluster:
    """An API server, Kueue and nodes; with a queue in each namespace, which has its share of the accelerators."""

    def __init__(
        self, folder: Path, binary: Path, namespaces: int, nodes: int, gates: dict[str, bool] | None = None
    ) -> None:
        """Prepare; used as a context, which starts and stops it."""
        folder.mkdir()
        self.folder, self.count = folder, nodes
        self.namespaces = [f"team-{number:02d}" for number in range(namespaces)]
        self._cluster = QueuedCluster(folder, binary, gates)
        self.kube = self._cluster.kube
        stages = (ROOT / "e2e" / "cluster" / "kwok.yaml").read_text()
        # A driver is asked where its pod is: here all are behind one port, wherever they are.
        file = folder / "kwok.yaml"
        file.write_text(stages.replace("      startTime:", "      podIP: 10.0.0.1\n      startTime:"))
        command = [
            str(binary.parent / "kwok"),
            f"--kubeconfig={self.kube.kubeconfig}",
            "--manage-all-nodes=false",
        ]
        command += [f"--manage-nodes-with-annotation-selector={_FAKE}=fake", f"--config={file}"]
        # Nobody here looks whether a node is alive.
        command += ["--node-lease-duration-seconds=0"]
        self._kwok = Program(command, self.kube.kubeconfig, folder / "kwok.log")

    def __enter__(self) -> FleetCluster:
        try:
            self._cluster.__enter__()
            self.kube.apply(*self._queues())
            self._kwok.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kwok.kill()
        self._cluster.__exit__()

    @property
    def programs(self) -> dict[str, int]:
        """Process ids of what every cluster has."""
        servers = {name: self.kube.pid(name) for name in ("etcd", "kube-apiserver")}
        return servers | {"Kueue": self._cluster.kueue.pid, "kwok": self._kwok.pid}

    def client(self) -> Client:
        return Client(self.kube.server, self.kube.token, self.kube.certificate, CONNECTIONS + PLAYERS * 4)

    def operator(self, url: str) -> OperatorProcess:
        options = ["--log-level=warning", f"--driver-url={url}"]
        operator = OperatorProcess(self.kube.kubeconfig, self.folder / "operator.log", *options)
        operator.start()
        operator.until_works()
        return operator

    async def add_nodes(self, client: Client) -> list[str]:
        """All nodes, when they are ready."""
        room = {
            "cpu": "192",
            "memory": "2Ti",
            "pods": "110",
            "ephemeral-storage": "8Ti",
            ACCELERATOR: str(PER_NODE),
        }
        names = [f"node-{number:04d}" for number in range(self.count)]
        ready: set[str] = set()

        def saw(_: str, node: JSON) -> None:
            conditions = node.get("status", {}).get("conditions", ())
            if any(one["type"] == "Ready" and one["status"] == "True" for one in conditions):
                ready.add(node["metadata"]["name"])

        async def add(name: str) -> None:
            metadata = {"name": name, "labels": {"pool": FLAVOR}, "annotations": {_FAKE: "fake"}}
            node = {"metadata": metadata, "status": {"allocatable": room, "capacity": room}}
            await client.send("POST", "/api/v1/nodes", json.dumps(node))

        watch = await client.watch("/api/v1/nodes", saw, whole=True)
        await kube_load.bounded(CONNECTIONS, [lambda name=name: add(name) for name in names])
        await until(
            lambda: len(ready) == len(names),
            lambda: f"{len(ready)} of {len(names)} nodes are ready",
            NODES_SECONDS,
        )
        client.watches.remove(watch)
        watch.cancel()
        return names

    def _queues(self) -> list[JSON]:
        def kueue(kind: str, name: str, namespace: str = "", **body: Any) -> JSON:
            metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
            return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, **body}

        quota = _PLENTY | {ACCELERATOR: str(self.count * PER_NODE // len(self.namespaces))}
        resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
        group = {"coveredResources": list(quota), "flavors": [{"name": FLAVOR, "resources": resources}]}
        spec = {"namespaceSelector": {}, "cohortName": "fleet", "resourceGroups": [group]}
        spec["preemption"] = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
        pools = [{"name": FLAVOR, "acceleratorResource": ACCELERATOR}, {"name": "cpu"}]
        profile = {"default": True, "queue": QUEUE, "pools": pools}
        profile["allow"] = {"workloadPriorityClasses": list(PRIORITIES)}
        documents = [kueue("ResourceFlavor", FLAVOR, spec={"nodeLabels": {"pool": FLAVOR}})]
        documents += [kueue("WorkloadPriorityClass", name, value=value) for name, value in PRIORITIES.items()]
        for name in self.namespaces:
            documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            documents.append(kueue("ClusterQueue", name, spec=spec))
            documents.append(kueue("LocalQueue", QUEUE, name, spec={"clusterQueue": name}))
        about = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingProfile",
            "metadata": {"name": "fleet"},
        }
        return [*documents, {**about, "spec": profile}]


class Rays:
    """KubeRay as it is played: a RayJob that may run gets its RayCluster and pods; one that may not loses them."""

    def __init__(
        self,
        client: Client,
        nodes: list[str],
        begun: Callable[[str, str], None],
        ended: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """Prepare.

        Args:
            client: what it writes with.
            nodes: where pods may be.
            begun: hears of each RayJob that runs, when all of its pods are made.
            ended: hears of each whose pods are told to go.
        """
        self._client, self._begun, self._ended = client, begun, ended
        self._room = dict.fromkeys(nodes, PER_NODE)
        self._nodes = deque(nodes)
        self._held: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._wanted: dict[tuple[str, str], JSON | None] = {}
        self._playing: dict[tuple[str, str], str] = {}
        self._stopped: dict[tuple[str, str], JSON] = {}
        self._news: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._busy: set[tuple[str, str]] = set()
        self.pods = 0

    def saw(self, change: str, job: JSON) -> None:
        """A change of a RayJob."""
        place = job["metadata"]["namespace"], job["metadata"]["name"]
        runs = change != "DELETED" and not job["spec"].get("suspend")
        wanted = job if runs else None
        if _uid(self._wanted.get(place)) == _uid(wanted):
            return
        self._wanted[place] = wanted
        if wanted is None and change != "DELETED":
            self._stopped[place] = job
        self._news.put_nowait(place)

    async def play(self) -> None:
        """Do what is to be done, without an end; several may play."""
        while True:
            place = await self._news.get()
            if place in self._busy:  # somebody is at it, and looks again
                continue
            self._busy.add(place)
            try:
                while _uid(job := self._wanted.get(place)) != self._playing.get(place, ""):
                    await (
                        self._stop(place) if place in self._playing or job is None else self._run(place, job)
                    )
            finally:
                self._busy.discard(place)

    async def succeed(self, place: tuple[str, str]) -> None:
        """The program of a RayJob has ended well: it says so, and its cluster goes."""
        uid = self._playing[place]
        self._leave(place)  # others may come when it has said so
        await self._say(place, {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"})
        await self._stop(place)
        self._playing[place] = uid  # it is not run again

    async def _run(self, place: tuple[str, str], job: JSON) -> None:
        namespace, name = place
        self._playing[place] = _uid(job)
        spec, cluster = job["spec"]["rayClusterSpec"], f"{name}-cluster"
        labels = job["metadata"].get("labels", {}) | {"ray.io/cluster": cluster}
        labels = {key: value for key, value in labels.items() if not key.startswith("kueue.")}
        groups = [(spec["headGroupSpec"], 1)]
        groups += [(group, group["replicas"]) for group in spec.get("workerGroupSpecs", ())]
        pods = [
            (group["template"], index) for index, (group, count) in enumerate(groups) for _ in range(count)
        ]
        # All at once: pods of two runs would leave no node with room for a large one.
        held = self._held[place] = [self._node(_accelerators(template["spec"])) for template, _ in pods]
        about = {"apiVersion": "ray.io/v1", "kind": "RayCluster"}
        made = await self._cluster(
            place, job, {**about, "metadata": _metadata(cluster, labels, job), "spec": spec}
        )
        if made is None:
            return
        for number, ((template, index), (node, _)) in enumerate(zip(pods, held, strict=True)):
            metadata = _metadata(f"{cluster}-{index}-{number}", labels, made)
            metadata["labels"] = metadata["labels"] | template.get("metadata", {}).get("labels", {})
            pod = {"metadata": metadata, "spec": template["spec"] | {"nodeName": node}}
            await self._make(f"/api/v1/namespaces/{namespace}/pods", pod)
        self.pods += len(pods)
        head = {"state": "ready", "head": {"serviceName": f"{name}-head-svc"}}
        await self._say(
            place,
            {
                "jobDeploymentStatus": "Running",
                "jobStatus": "RUNNING",
                "rayClusterName": cluster,
                "rayClusterStatus": head,
            },
        )
        self._begun(namespace, name)

    async def _stop(self, place: tuple[str, str]) -> None:
        namespace, name = place
        self._ended(namespace, name)
        cluster = f"{name}-cluster"
        selector = f"labelSelector=ray.io/cluster={cluster}"
        await self._client.send("DELETE", f"/api/v1/namespaces/{namespace}/pods?{selector}")
        self._playing.pop(place, None)
        self._leave(place)
        where = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{cluster}"
        await self._client.send("DELETE", where, expected=False)
        if self._stopped.pop(place, None) is not None:
            await self._say(
                place, {"jobDeploymentStatus": "Suspended", "jobStatus": "", "rayClusterName": ""}
            )

    def _leave(self, place: tuple[str, str]) -> None:
        for node, accelerators in self._held.pop(place, ()):
            self._room[node] += accelerators

    def _node(self, accelerators: int) -> tuple[str, int]:
        """A node with so many accelerators free, and how many of them are taken now."""
        for _ in range(len(self._nodes)):
            node = self._nodes[0]
            if self._room[node] >= accelerators:
                self._room[node] -= accelerators
                return node, accelerators
            self._nodes.rotate(-1)
        raise RuntimeError(f"no node has {accelerators} accelerators free: Kueue admitted more than there is")

    async def _cluster(self, place: tuple[str, str], job: JSON, manifest: JSON) -> JSON | None:
        """The RayCluster of a RayJob, of which Kueue's webhook may not have heard yet; None: nobody wants it any more."""
        where, deadline = (
            f"/apis/ray.io/v1/namespaces/{place[0]}/rayclusters",
            time.monotonic() + WEBHOOK_SECONDS,
        )
        while _uid(self._wanted.get(place)) == _uid(job):
            made: JSON = json.loads(
                await self._client.send("POST", where, json.dumps(manifest), expected=False)
            )
            if made["kind"] == "RayCluster":
                return made
            if time.monotonic() > deadline:
                raise RuntimeError(f"no RayCluster for RayJob {place[0]}/{place[1]}: {made.get('message')}")
            await asyncio.sleep(0.2)
        return None

    async def _make(self, where: str, manifest: JSON) -> JSON:
        made: JSON = json.loads(await self._client.send("POST", where, json.dumps(manifest)))
        return made

    async def _say(self, place: tuple[str, str], status: JSON) -> None:
        where = f"/apis/ray.io/v1/namespaces/{place[0]}/rayjobs/{place[1]}/status"
        kind = "application/merge-patch+json"
        # Whom it is said of may be gone by now.
        await self._client.send("PATCH", where, json.dumps({"status": status}), kind, expected=False)


def _metadata(name: str, labels: dict[str, str], owner: JSON) -> JSON:
    reference = {"apiVersion": "ray.io/v1", "kind": owner["kind"], "name": owner["metadata"]["name"]}
    reference |= {"uid": owner["metadata"]["uid"], "controller": True}
    return {"name": name, "labels": dict(labels), "ownerReferences": [reference]}


def _uid(job: JSON | None) -> str:
    return str(job["metadata"]["uid"]) if job is not None else ""


def _accelerators(pod: JSON) -> int:
    found = (one.get("resources", {}).get("limits", {}).get(ACCELERATOR, 0) for one in pod["containers"])
    return sum(map(int, found))
