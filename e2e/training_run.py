"""RLTrainingRuns of the scenarios: small ones made of the quickstart, and a handle on one that was applied."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_client import KINDS, Cluster, wait_for
from object_store import BUCKET, SECRET

from rl_api.documents import load_documents

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"
CLAIM = "checkpoints"
# More steps than any scenario waits for: it lowers the number when it has seen what it wants (`wind_up`).
ENDLESS = {"stop": {"maxSteps": 2000}}
# Of the message of a run that ended while no operator was there to read its last step.
UNREAD = "nobody was there to read its last figures"
# Of a core: what a pod reserves, and not what it may use. Scenarios beside each other find room on one node of two cores,
# also where a run has more pods than most.
RESERVED = 0.1
# About half a second per step where head, sampler and learner share two cores.
SMALL: dict[str, Any] = {
    "warmStart": None,
    "task": {"evaluation": None},
    "algorithm": {"groupSize": 8, "promptsPerStep": 32},
    "sampler": {"replicas": 1, "maxSequences": 128, "resources": {"cpu": RESERVED}},
    "learner": {"replicas": 1, "resources": {"cpu": RESERVED}},
    "buffer": {"capacity": 128, "maxStaleness": 1},
    # Where all samplers are lost at once, learners wait for one as long as a busy machine takes to start its pod.
    "placement": {"timeout": "5m"},
    "checkpoint": {"everySteps": 5, "keep": 2, "storage": {"persistentVolumeClaim": CLAIM}},
    "stop": {"maxSteps": 20, "targetReward": None, "maxDuration": None},
}


def run_document(name: str, namespace: str, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """The cluster quickstart made small, with a spec merged over it."""
    return example_run("quickstart-cluster.yaml", name, namespace, SMALL, overrides or {})


def example_run(file: str, name: str, namespace: str, *overrides: dict[str, Any]) -> dict[str, Any]:
    """The run of an example, with one spec after another merged over its own."""
    # Not PyYAML itself: it takes 5e-4 for a text.
    documents = [document for _, document in load_documents((EXAMPLES / file).read_text(), file)]
    document = next(each for each in documents if each["kind"] == "RLTrainingRun")
    document["metadata"] = {"name": name, "namespace": namespace}
    document["spec"].pop("image", None)
    for over in overrides:
        document["spec"] = merged(document["spec"], over)
    return document


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings are merged, None removes a key, everything else replaces."""
    result = dict(base)
    for key, value in over.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


class TrainingRun:
    """An RLTrainingRun on the cluster."""

    def __init__(self, cluster: Cluster, name: str, namespace: str):
        self.cluster, self.name, self.namespace = cluster, name, namespace
        found = cluster.get("rltrainingrun", name, namespace)
        assert found is not None, f"run {name} is not there"
        self.uid: str = found["metadata"]["uid"]

    @property
    def status(self) -> dict[str, Any]:
        """Its status; empty when there is none yet, or no run."""
        found = self.cluster.get("rltrainingrun", self.name, self.namespace) or {}
        status: dict[str, Any] = found.get("status") or {}
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        """One condition; empty when it is not set."""
        conditions = self.status.get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def wait_for_condition(self, kind: str, seconds: float, status: str = "True") -> dict[str, Any]:
        """The condition, once it has that status; a run that fails meanwhile ends the wait."""

        def look() -> dict[str, Any] | None:
            conditions = {each["type"]: each for each in self.status.get("conditions", [])}
            failed = conditions.get("Failed", {})
            if kind != "Failed" and failed.get("status") == "True":
                raise AssertionError(
                    f"run {self.name} failed while {kind} was awaited: {failed.get('message')}"
                )
            found = conditions.get(kind)
            return found if found and found["status"] == status else None

        return wait_for(f"run {self.name} has condition {kind}={status}", look, seconds, self.describe)

    def wait_for_message(self, *parts: str, seconds: float) -> str:
        """The first message of a condition that holds all parts."""

        def look() -> str | None:
            for each in self.status.get("conditions", []):
                message: str = each.get("message", "")
                if all(part.lower() in message.lower() for part in parts):
                    return message
            return None

        return wait_for(f"run {self.name} says {' ... '.join(parts)}", look, seconds, self.describe)

    @property
    def step(self) -> int:
        """Steps done, as its status says."""
        return int((self.status.get("progress") or {}).get("step", 0))

    def suspend(self) -> int:
        """Suspends it; the step at which it has saved."""
        self.patch({"suspend": True})
        self.wait_for_condition("Suspended", 180)
        return int(self.status["checkpoint"]["step"])

    def wait_for_step(self, step: int, seconds: float) -> int:
        """The step in its status, once it has reached that one."""

        def look() -> int | None:
            failed = self.condition("Failed")
            assert failed.get("status") != "True", failed.get("message")
            return self.step if self.step >= step else None

        return wait_for(f"run {self.name} reaches step {step}", look, seconds, self.describe)

    def wait_for_checkpoint(self, seconds: float, after: int = 0) -> int:
        """The step of the newest checkpoint in its status, once that is above `after`."""

        def look() -> int | None:
            step = int((self.status.get("checkpoint") or {}).get("step", 0))
            return step if step > after else None

        return wait_for(f"run {self.name} has a checkpoint", look, seconds, self.describe)

    def wait_for_roles(self, ready: Mapping[str, int], seconds: float = 60) -> None:
        """Returns when its status shows so many ready of each of these roles, and no more wanted."""

        def look() -> bool:
            roles: dict[str, dict[str, int]] = self.status.get("roles") or {}
            shown = {role: roles.get(role) or {} for role in ready}
            return all(
                (shown[role].get("ready"), shown[role].get("desired")) == (count, count)
                for role, count in ready.items()
            )

        wait_for(f"run {self.name} has all of {dict(ready)} ready", look, seconds, self.describe)

    def last_checkpoint(self, image: str) -> int:
        """The step of the newest checkpoint of a run that has succeeded, as its status says.

        Where nobody was there to read what its driver said last, so that the status has not its last reward either, its
        folder must have a checkpoint of its last step.
        """
        kept, step = int((self.status.get("checkpoint") or {}).get("step", 0)), self.step
        if kept == step:
            return kept
        reward = round(self.metrics(image)[-1]["reward_mean"], 3)
        assert self.status["progress"].get("reward") != reward, f"{self.describe()}; checkpoint: step {kept}"
        self.read_file(f"checkpoints/step-{step:08d}/manifest.json", image)
        return step

    def patch(self, spec: dict[str, Any]) -> None:
        """Change fields of its spec."""
        self.cluster.kubectl(
            "patch",
            "rltrainingrun",
            self.name,
            "-n",
            self.namespace,
            "--type=merge",
            "-p",
            json.dumps({"spec": spec}),
        )

    def wind_up(self, steps: int) -> None:
        """Let its next attempt end at that step."""
        self.patch({"stop": {"maxSteps": steps}})

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        """Its pods that are not being deleted: those of KubeRay, as labels are anybody's."""
        selector = f"rltrain.dev/run={self.name}" + (f",rltrain.dev/role={role}" if role else "")
        found = self.cluster.list("pods", self.namespace, selector)
        own = [pod for pod in found if pod["metadata"].get("ownerReferences")]
        return [pod for pod in own if not pod["metadata"].get("deletionTimestamp")]

    def kill_pod(self, role: str) -> str:
        """Delete one pod of a role at once, as a lost node would; returns its name."""
        name: str = self.pods(role)[0]["metadata"]["name"]
        self.cluster.kubectl("delete", "pod", name, "-n", self.namespace, "--grace-period=0", "--force")
        return name

    def objects(self) -> list[str]:
        """Everything on the cluster that carries its name: kind/name."""
        found = self.cluster.list(",".join(KINDS), self.namespace)
        ours = []
        for each in found:
            labels = each["metadata"].get("labels") or {}
            if labels.get("rltrain.dev/run") == self.name or labels.get("ray.io/cluster", "").startswith(
                f"{self.name}-"
            ):
                ours.append(f"{each['kind']}/{each['metadata']['name']}")
        return sorted(ours)

    def read_file(self, name: str, image: str) -> str:
        """A file of its folder on the claim or in the object store, when it has ended."""
        folder = f"{self.name}-{self.uid[:8]}"
        place = (self.status.get("checkpoint") or {}).get("uri", "").rpartition("/")[0]
        if place.startswith("s3://"):
            assert place == f"{BUCKET}/{folder}"
            script = f"python -c \"import fsspec; print(fsspec.open('{place}/{name}', 'rt').open().read())\""
            return self.cluster.run_once(self.namespace, f"read-{self.name}", image, script, secret=SECRET)
        script = f"cat /data/{folder}/run/{name}"
        return self.cluster.run_once(self.namespace, f"read-{self.name}", image, script, claim=CLAIM)

    def metrics(self, image: str) -> list[dict[str, Any]]:
        """The steps in its metrics.jsonl on the claim or in the object store; lines about other events are left out."""
        text = self.read_file("metrics.jsonl", image)
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in lines if "event" not in line]

    def check_metrics(self, image: str) -> int:
        """Of a run that has succeeded or is suspended: each of its steps is in its metrics, as `check_every_step_once` says.

        Returns:
            how many prompts were trained on; 0 of a run that trains, waits, or has failed.
        """
        succeeded = self.condition("Succeeded")
        if succeeded.get("status") == "True":
            metrics, step = self.metrics(image), self.step
            if (
                UNREAD in succeeded["message"]
            ):  # the operator changed as the run ended: its step is an older one
                assert metrics[-1]["step"] >= step, (
                    f"step {step} in its status, {metrics[-1]['step']} in metrics.jsonl"
                )
                step = metrics[-1]["step"]
            return check_every_step_once(metrics, step)
        if self.condition("Suspended").get("status") == "True" and "checkpoint" in self.status:
            metrics, kept = self.metrics(image), int(self.status["checkpoint"]["step"])
            # Its driver may end a step or two after the checkpoint that it was asked for, with another one.
            assert metrics[-1]["step"] >= kept, (
                f"{kept} steps were saved, the last in metrics.jsonl: {metrics[-1]['step']}"
            )
            return check_every_step_once(metrics, metrics[-1]["step"])
        return 0

    def describe(self) -> str:
        """Its conditions, attempts and pods in a line, for messages."""
        status = self.status
        conditions = [
            f"{each['type']}={each['status']} {each.get('reason', '')} ({each.get('message', '')})"
            for each in status.get("conditions", [])
        ]
        pods = [f"{pod['metadata']['name']} {pod['status'].get('phase')}" for pod in self.pods()]
        return (
            f"phase {status.get('phase')}, step {self.step}, attempts {len(status.get('attempts', []))}; "
            f"conditions: {'; '.join(conditions) or 'none'}; pods: {', '.join(pods) or 'none'}"
        )


def check_every_step_once(metrics: list[dict[str, Any]], steps: int) -> int:
    """Steps 1 to `steps`, each once; no prompt number twice, and none left out but those in flight at the end.

    Returns:
        how many prompts were trained on.
    """
    found = [line["step"] for line in metrics]
    assert found == list(range(1, steps + 1)), f"steps in metrics.jsonl: {found}"
    trained = Counter(prompt for line in metrics for prompt in line["prompts"])
    twice = [prompt for prompt, times in trained.items() if times > 1]
    assert not twice, f"trained on twice: {twice}"
    skipped = set(range(max(trained))) - set(trained)
    in_flight = 3 * SMALL["algorithm"]["promptsPerStep"]
    early = [prompt for prompt in skipped if prompt < max(trained) - in_flight]
    assert not early, f"never trained on: {early}"
    return len(trained)
