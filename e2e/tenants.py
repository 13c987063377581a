"""Two teams that do not trust each other: a namespace each, in which a user of theirs may edit, and runs that train.

`red` attacks, `blue` is attacked. An attack is something that somebody tries, and a pattern that its answer must have.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_client import Cluster, wait_for
from connections import address, answering_pod, reached
from training_run import TrainingRun, run_document

NO_ANSWER = "no answer"
"""What comes of a connection attempt that is refused or not answered."""
# Made of plain loops: who has the label of KubeRay's operator, of ours, and of a run that is somebody else's.
FORGERS = {
    "forged-kuberay": {
        "app.kubernetes.io/component": "kuberay-operator",
        "app.kubernetes.io/name": "kuberay-operator",
    },
    "forged-operator": {
        "app.kubernetes.io/name": "rltrain",
        "app.kubernetes.io/instance": "rltrain",
        "app.kubernetes.io/component": "operator",
    },
    "forged-run": {"rltrain.dev/run": "victim", "rltrain.dev/role": "sampler"},
}
# What a Secret of the user's says; nothing of it may hold.
FORGED_VARIABLES = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_AUTH_TOKEN": "mine",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "RLTRAIN_FENCE": "mine",
    "RLTRAIN_STATUS_HOST": "127.0.0.1",
}


@dataclass
class Team:
    """A namespace, and the cluster as a user with the ClusterRole `edit` in it sees it."""

    namespace: str
    cluster: Cluster
    kubeconfig: Path


@dataclass
class Tenants:
    """Both teams, their runs, and pods of the attacker's."""

    cluster: Cluster
    red: Team
    blue: Team
    victim: TrainingRun
    """Blue's; it trains."""
    honest: TrainingRun
    """Red's; it trains, and has a Secret with forged variables."""
    hostile: TrainingRun
    """Red's: a program that does what it finds in files."""
    count: int = 0
    """Of names that were given."""

    def head(self, run: TrainingRun) -> tuple[str, str]:
        """Name and address of a run's head."""
        [pod] = run.pods("head")
        return pod["metadata"]["name"], pod["status"]["podIP"]

    def status_port(self, run: TrainingRun) -> int:
        """Where its driver answers."""
        [pod] = run.pods("head")
        ports = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
        return int(ports["status"])

    def connect(self, pod: str, *target: Any) -> str:
        """From a pod of red's: whether there is an answer."""
        return "reached" if reached(self.cluster, self.red.namespace, pod, target)[0] else NO_ANSWER

    def inside(self, run: TrainingRun, *command: str, role: str = "head") -> str:
        """What a command prints in a pod of a run, whoever may do that."""
        name = run.pods(role)[0]["metadata"]["name"]
        done = self.cluster.kubectl(
            "exec", name, "-n", run.namespace, "-c", "ray", "--", *command, check=False
        )
        return done.stdout + done.stderr

    def rltrain(self, team: Team, *words: str) -> str:
        """What the command line says to a team's user."""
        line = [str(Path(sys.executable).with_name("rltrain")), *words, "--kubeconfig", str(team.kubeconfig)]
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)
        return (done.stdout + done.stderr).decode(errors="surrogateescape")

    def as_red(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl says to red's user."""
        done = self.red.cluster.kubectl(*arguments, stdin=stdin, check=False)
        return f"exit code {done.returncode}: {done.stdout}{done.stderr}"


@dataclass(frozen=True)
class Attack:
    """Something that somebody tries, and the pattern that its answer must have."""

    name: str
    attempt: Callable[[Tenants], str]
    answer: str

    def carry_out(self, tenants: Tenants) -> None:
        """Try it.

        Raises:
            AssertionError: the answer is another.
        """
        said = self.attempt(tenants)
        assert re.search(self.answer, said, re.DOTALL), f"expected {self.answer!r}, but: {said[:2000]}"


def user(cluster: Cluster, namespace: str, folder: Path) -> Team:
    """A ServiceAccount that may edit the namespace and no more, and a kubeconfig of its own."""
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "user", "namespace": namespace},
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "user", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "user", "namespace": namespace}],
    }
    cluster.apply(account, binding)
    token = cluster.kubectl("create", "token", "user", "-n", namespace, "--duration=2h").stdout.strip()
    config = json.loads(
        cluster.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json").stdout
    )
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = namespace
    kubeconfig = folder / f"{namespace}.json"
    kubeconfig.write_text(json.dumps(config))
    kubeconfig.chmod(0o600)
    return Team(namespace, Cluster(kubeconfig), kubeconfig)


def secret(namespace: str, name: str, **values: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values}


def attacker_pods(tenants: Tenants, image: str) -> None:
    """Pods of red's with forged labels, and one without; they are ready."""
    red = tenants.red.namespace
    names = {"plain": {}, **FORGERS}
    tenants.red.cluster.apply(*(answering_pod(red, name, image, labels) for name, labels in names.items()))
    for name in names:
        address(tenants.cluster, red, name)


def refused(
    spec: dict[str, Any], name: str = "", replace: tuple[str, str] | None = None
) -> Callable[[Tenants], str]:
    """Red's user applies a run with this laid over its spec: what the API server says, or a condition if it takes it.

    Args:
        spec: laid over the spec of a small run.
        name: of the run; empty: any.
        replace: a text in the JSON of the run, and what is put in its place.
    """

    def attempt(tenants: Tenants) -> str:
        tenants.count += 1
        return create_run(tenants, name or f"attack-{tenants.count}", spec, replace=replace)

    return attempt


def create_run(
    tenants: Tenants, name: str, spec: dict[str, Any], *also: str, replace: tuple[str, str] | None = None
) -> str:
    """What comes of a run of red's, which does not stay: see `refused` and `verdict`."""
    text = json.dumps(run_document(name, tenants.red.namespace, {"profile": "e2e"} | spec))
    if replace:
        assert replace[0] in text
        text = text.replace(*replace)
    said = tenants.as_red("create", "-f", "-", stdin=text)
    if not said.startswith("exit code 0:"):
        return said
    try:
        return f"taken; {verdict(tenants.cluster, name, tenants.red.namespace, *also)}"
    finally:
        tenants.as_red("delete", "rltrainingrun", name, "--timeout=60s")


def verdict(cluster: Cluster, name: str, namespace: str, *also: str) -> str:
    """The messages of a run's conditions, once one says no, or has one of the words `also`."""
    messages: list[str] = []

    def look() -> bool:
        # Not the whole run: it may be deeper than Python reads.
        shown = cluster.kubectl(
            "get", "rltrainingrun", name, "-n", namespace, "--ignore-not-found", "-o", "jsonpath={.status}"
        ).stdout
        conditions = json.loads(shown or "{}").get("conditions", [])
        messages[:] = [
            f"{each['type']}={each['status']} {each.get('reason')}: {each.get('message')}"
            for each in conditions
        ]
        said = {each["type"]: each["status"] for each in conditions}
        refused = said.get("Accepted") == "False" or said.get("Failed") == "True"
        return refused or any(word in each for word in also for each in messages)

    try:
        wait_for("a condition that refuses", look, 20)
    except AssertionError:
        messages.append("and nothing refuses it")
    return "; ".join(messages)


@contextmanager
def stored(tenants: Tenants, *documents: dict[str, Any]) -> Iterator[None]:
    """Objects of red's user's, for as long as the context is open."""
    tenants.red.cluster.apply(*documents)
    try:
        yield
    finally:
        with ExitStack() as stack:
            for each in documents:
                name, place = each["metadata"]["name"], ["-n", tenants.red.namespace]
                stack.callback(
                    tenants.cluster.kubectl,
                    "delete",
                    each["kind"],
                    name,
                    *place,
                    "--ignore-not-found",
                    "--wait=false",
                )
