"""What red tries from pods: other teams' Ray, the nodes, files, devices, the names of objects, and people's terminals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster_client import wait_for
from conftest import OPERATOR_IMAGE, SYSTEM
from connections import PORT, address, answering_pod
from tenants import NO_ANSWER, Attack, Tenants, stored, verdict
from training_run import TrainingRun, run_document

METADATA = ("169.254.169.254", 80)
_GCS, _DASHBOARD, _CLIENT, _KUBELET = 6379, 8265, 10001, 10250
# One request, and what is answered.
_ASK = """
import sys, urllib.error, urllib.request
data = sys.argv[2].encode() if len(sys.argv) > 2 else None
request = urllib.request.Request(sys.argv[1], data, {"Content-Type": "application/json"})
try:
    answer = urllib.request.urlopen(request, timeout=10)
    print("answered", answer.status, answer.read(300))
except urllib.error.HTTPError as error:
    print("refused", error.code, error.read(300))
except OSError as error:
    print("no answer", error)
"""
_JOIN = """
import os, sys
os.environ.pop("RAY_AUTH_TOKEN", None), os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init(address=sys.argv[1], logging_level="ERROR")
print("joined", len(ray.nodes()))
"""


def to_the_victim(pod: str, port: int | str) -> Callable[[Tenants], str]:
    """A pod of red's connects to the head of blue's run; `status` is the port of its driver."""

    def attempt(tenants: Tenants) -> str:
        number = tenants.status_port(tenants.victim) if port == "status" else port
        return tenants.connect(pod, tenants.head(tenants.victim)[1], number)

    return attempt


def to_the_operator(tenants: Tenants) -> str:
    """A pod of red's connects to the port of metrics of each pod of the operator."""
    pods = tenants.cluster.list("pods", SYSTEM, "app.kubernetes.io/component=operator")
    addresses = [pod["status"]["podIP"] for pod in pods if pod["status"].get("podIP")]
    assert addresses, "there is an operator"
    found = {tenants.connect("plain", each, 8080) for each in addresses}
    return NO_ANSWER if found == {NO_ANSWER} else "reached"


def out_of_a_run(host: Callable[[Tenants], str], port: int) -> Callable[[Tenants], str]:
    """A training pod of red's connects to somewhere."""
    return lambda tenants: tenants.connect(tenants.head(tenants.hostile)[0], host(tenants), port)


def service(namespace: str, name: str) -> Callable[[Tenants], str]:
    """Address of a Service."""

    def look(tenants: Tenants) -> str:
        found = tenants.cluster.get("service", name, namespace)
        assert found is not None
        return str(found["spec"]["clusterIP"])

    return look


def node(tenants: Tenants) -> str:
    """Address of the node on which red's training pod is."""
    return str(tenants.hostile.pods("head")[0]["status"]["hostIP"])


NETWORK = [
    *(
        Attack(f"{pod} connects to the {name} of another's run", to_the_victim(pod, port), NO_ANSWER)
        for pod, name, port in (
            ("forged-kuberay", "dashboard", _DASHBOARD),
            ("forged-kuberay", "driver", "status"),
            ("forged-kuberay", "store of Ray", _GCS),
            ("forged-operator", "dashboard", _DASHBOARD),
            ("forged-operator", "driver", "status"),
            ("forged-run", "store of Ray", _GCS),
            ("forged-run", "Ray client", _CLIENT),
            ("plain", "dashboard", _DASHBOARD),
        )
    ),
    Attack("a pod reads the operator's metrics", to_the_operator, NO_ANSWER),
    Attack(
        "a training pod asks the metadata service",
        out_of_a_run(lambda _: METADATA[0], METADATA[1]),
        NO_ANSWER,
    ),
    Attack(
        "a training pod connects to another's Ray client",
        out_of_a_run(lambda tenants: tenants.head(tenants.victim)[1], _CLIENT),
        NO_ANSWER,
    ),
    Attack(
        "a training pod calls the API server", out_of_a_run(service("default", "kubernetes"), 443), NO_ANSWER
    ),
    Attack("a training pod calls its node's kubelet", out_of_a_run(node, _KUBELET), NO_ANSWER),
    Attack(
        "a training pod connects to another pod of its namespace",
        out_of_a_run(lambda tenants: address(tenants.cluster, tenants.red.namespace, "plain"), PORT),
        NO_ANSWER,
    ),
]


def asks(path: str, data: str = "") -> Callable[[Tenants], str]:
    """User code in a sampler asks the dashboard of its own run, without a token."""

    def attempt(tenants: Tenants) -> str:
        url = f"http://{tenants.head(tenants.honest)[1]}:{_DASHBOARD}{path}"
        words = ["python", "-c", _ASK, url, *([data] if data else [])]
        return tenants.inside(tenants.honest, *words, role="sampler")

    return attempt


def joins(tenants: Tenants) -> str:
    """User code in a sampler joins Ray anew, with authentication switched off on its side."""
    store = f"{tenants.head(tenants.honest)[1]}:{_GCS}"
    return tenants.inside(tenants.honest, "timeout", "90", "python", "-c", _JOIN, store, role="sampler")


def variable(name: str, role: str = "head") -> Callable[[Tenants], str]:
    """What a pod of the run with the Secret that forges variables has in one."""
    return lambda tenants: f"{name}={tenants.inside(tenants.honest, 'printenv', name, role=role)}"


def done_by_the_program(tenants: Tenants, code: str) -> str:
    """Code that red's program executes; what it prints."""
    tenants.count += 1
    place = f"/tmp/do-{tenants.count}.py"
    wrapped = f"import contextlib, io\nsaid = io.StringIO()\nwith contextlib.redirect_stdout(said):\n    exec({code!r})\n"
    wrapped += (
        f"open('{place}.part', 'w').write(said.getvalue()); os.rename('{place}.part', '{place}.said')\n"
    )
    write = 'printf %s "$1" > "$0.new" && mv "$0.new" "$0"'
    tenants.inside(tenants.hostile, "sh", "-c", write, place, wrapped)
    look = f"test -e {place}.said && echo said && cat {place}.said"
    return wait_for("the program does it", lambda: tenants.inside(tenants.hostile, "sh", "-c", look), 20)


def by_the_program(code: str) -> Callable[[Tenants], str]:
    """Code that red's program executes."""
    return lambda tenants: done_by_the_program(tenants, code)


def folder_of_another(tenants: Tenants) -> str:
    """From a head on the claim that all share, up and into the folder of blue's run."""
    theirs = f"{tenants.victim.name}-{tenants.victim.uid[:8]}"
    return tenants.inside(tenants.honest, "ls", f"/var/lib/rltrain/../{theirs}", f"/var/lib/rltrain/{theirs}")


RAY = [
    Attack("the job API without a token", asks("/api/jobs/"), "refused 40[13]"),
    Attack("a job without a token", asks("/api/jobs/", json.dumps({"entrypoint": "id"})), "refused 40[13]"),
    Attack("the dashboard's nodes without a token", asks("/nodes?view=summary"), "refused 40[13]"),
    Attack("Ray without a token", joins, r"(?i)(?<!joined)(auth|token)"),
    Attack("a Secret switches authentication off", variable("RAY_AUTH_MODE"), "RAY_AUTH_MODE=token\n"),
    Attack("a Secret moves the driver's address", variable("RLTRAIN_STATUS_HOST"), "=0.0.0.0\n"),
    Attack("a Secret forges the fence", variable("RLTRAIN_FENCE"), r"=[0-9a-f-]{36}/1/"),
    *(
        Attack(
            f"a Secret takes all GPUs of the {role}'s node",
            variable("NVIDIA_VISIBLE_DEVICES", role),
            "=void\n",
        )
        for role in ("head", "sampler", "learner")
    ),
    Attack(
        "a sampler has the credentials of the object store",
        variable("AWS_SECRET_ACCESS_KEY", "sampler"),
        "AWS_SECRET_ACCESS_KEY=(command terminated|$)",
    ),
    Attack("files of another's run on a shared claim", folder_of_another, "No such file"),
    Attack(
        "writes beside its folders",
        lambda tenants: tenants.inside(
            tenants.honest, "sh", "-c", "touch /var/tmp/x /run/lock/x /x; ls /var/tmp/x", role="sampler"
        ),
        "Read-only file system",
    ),
    Attack(
        "its program reads the driver's token",
        by_the_program("import os\nprint('token' if 'RLTRAIN_STATUS_TOKEN' in os.environ else 'none')"),
        "said\nnone",
    ),
]


def squatted(
    kind: str,
    version: str,
    name: str,
    spec: dict[str, Any] | None = None,
    also: str = "needs the name",
    **run: Any,
) -> Callable[[Tenants], str]:
    """An object of red's user's has a name that a run needs; what that run's status says, with the words `also`.

    The run is suspended before, so that its uid is known. In the name {run} and {uid} stand for its own.
    """

    def attempt(tenants: Tenants) -> str:
        red = tenants.red
        tenants.count += 1
        called = f"squat-{tenants.count}"
        document = run_document(called, red.namespace, {"profile": "e2e", "suspend": True} | run)
        red.cluster.apply(document)
        squat = TrainingRun(red.cluster, called, red.namespace)
        taken = name.format(run=called, uid=squat.uid[:8])
        squatter = {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": taken, "namespace": red.namespace},
        }
        try:
            with stored(tenants, squatter if spec is None else squatter | {"spec": spec}):
                squat.patch({"suspend": False})
                return verdict(tenants.cluster, called, red.namespace, also)
        finally:
            tenants.as_red("delete", "rltrainingrun", called, "--timeout=60s")

    return attempt


def forged_head(tenants: Tenants) -> str:
    """A pod that calls itself the head of red's run listens where the operator asks drivers: who came."""
    [head] = tenants.hostile.pods("head")
    labels = {name: value for name, value in head["metadata"]["labels"].items() if "rltrain" in name + value}
    listen = (
        "import socket\nserver = socket.create_server(('', int(__import__('sys').argv[1])))\n"
        "while True: print('asked by', server.accept()[1], flush=True)"
    )
    forged = answering_pod(tenants.red.namespace, "forged-head", OPERATOR_IMAGE, labels)
    container = forged["spec"]["containers"][0]
    container["command"] = ["python", "-c", listen, str(tenants.status_port(tenants.hostile))]
    container.pop("readinessProbe")
    with stored(tenants, forged):
        address(tenants.cluster, tenants.red.namespace, "forged-head")
        asked_again(tenants)
        said = tenants.cluster.logs("forged-head", tenants.red.namespace)
    return said or "nobody asked"


def asked_again(tenants: Tenants) -> None:
    """Until the operator has asked the driver of red's program twice more: what it says is in the status."""
    for _ in range(2):
        step = tenants.hostile.step + 1
        line = json.dumps({"step": step, "reward_mean": 0.5})
        done_by_the_program(
            tenants, f"import os; print({line!r}, file=open(os.environ['RLTRAIN_METRICS'], 'a'))"
        )
        tenants.hostile.wait_for_step(step, 120)


def service_repointed(tenants: Tenants) -> str:
    """The Service of the head of red's run points to a pod of red's; the operator asks the driver all the same."""
    [head] = tenants.hostile.pods("head")
    cluster = head["metadata"]["labels"]["ray.io/cluster"]
    name = f"{cluster}-head-svc"
    found = tenants.cluster.get("service", name, tenants.red.namespace)
    assert found is not None
    change = {"spec": {"selector": {"app": "plain", **dict.fromkeys(found["spec"]["selector"])}}}
    back = {"spec": {"selector": {"app": None, **found["spec"]["selector"]}}}
    said = tenants.as_red("patch", "service", name, "--type=merge", "-p", json.dumps(change))
    try:
        assert said.startswith("exit code 0"), said
        asked_again(tenants)
    finally:
        tenants.as_red("patch", "service", name, "--type=merge", "-p", json.dumps(back))
    return "the driver was asked"


def policy_deleted(tenants: Tenants) -> str:
    """Red's user takes away what protects its run: it is there again at once."""
    before = tenants.cluster.get("networkpolicy", "honest", tenants.red.namespace)
    assert before is not None
    tenants.as_red("delete", "networkpolicy", "honest")

    def again() -> bool:
        found = tenants.cluster.get("networkpolicy", "honest", tenants.red.namespace)
        return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

    wait_for("the policy is there again", again, 30)
    return "it is there again"


NAMES = [
    Attack(
        "a Secret under the name of an attempt's",
        squatted("Secret", "v1", "{run}-1-{uid}", also="token"),
        "token",
    ),
    Attack(
        "a ConfigMap under an attempt's name",
        squatted("ConfigMap", "v1", "{run}-1"),
        r"needs the name squat-\d+-1 for a ConfigMap",
    ),
    Attack(
        "a policy that opens a run, under its name",
        squatted("NetworkPolicy", "networking.k8s.io/v1", "{run}", {"podSelector": {}, "ingress": [{}]}),
        r"needs the name squat-\d+ for a NetworkPolicy",
    ),
    Attack(
        "a Service under the name of a head's",
        squatted(
            "Service",
            "v1",
            "{run}-1-head-svc",
            {"type": "ExternalName", "externalName": "example.org"},
            also="-head-svc",
            workload="Cluster",
        ),
        r"squat-\d+-1-head-svc",
    ),
    Attack("a pod with the labels of a head", forged_head, "nobody asked"),
    Attack("the Service of a head points elsewhere", service_repointed, "the driver was asked"),
    Attack("no network policy", policy_deleted, "it is there again"),
]

_ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b31m\r\x08"
_SCRIPT = "<script>alert(1)</script>"


def shows(*words: str, page: bool = False) -> Callable[[Tenants], str]:
    """Red's program writes escape sequences everywhere; what rltrain then shows to its user, or writes into a page."""

    def attempt(tenants: Tenants) -> str:
        printed = f"{_ESCAPES}printed by the program"
        code = f"import os, sys; print({printed!r}, file=sys.__stdout__, flush=True)\n"
        for line in (
            {"event": "checkpoint", "step": 1, "path": f"{_ESCAPES}{_SCRIPT}"},
            {"event": f"{_ESCAPES}{_SCRIPT}", "step": 1, _SCRIPT: _ESCAPES},
        ):
            code += f"print({json.dumps(line)!r}, file=open(os.environ['RLTRAIN_METRICS'], 'a'))\n"
        done_by_the_program(tenants, code)
        asked_again(tenants)
        with TemporaryDirectory() as folder:
            made = Path(folder) / "page.html"
            said = tenants.rltrain(tenants.red, *words, *(["--out", str(made)] if page else []))
            if page and made.exists():
                said = made.read_text()
        control = [char for char in said if (char < " " and char not in "\n\t") or "\x7f" <= char <= "\x9f"]
        return f"{len(control)} control characters and {said.count(_SCRIPT)} scripts in: {said}"

    return attempt


def huge_step(tenants: Tenants) -> str:
    """Red's program says that it is at step 10^20: the run can be suspended, and is deleted in time."""
    for line in ({"step": 10**20, "reward_mean": 1}, {"event": "checkpoint", "step": 10**20, "path": "x"}):
        done_by_the_program(
            tenants, f"import os; print({json.dumps(line)!r}, file=open(os.environ['RLTRAIN_METRICS'], 'a'))"
        )
    time.sleep(3)  # nothing is to come of it
    said = tenants.as_red("delete", "rltrainingrun", tenants.hostile.name, "--timeout=100s")
    wait_for(
        "nothing is left of it",
        lambda: not tenants.hostile.objects(),
        180,
        lambda: ", ".join(tenants.hostile.objects()),
    )
    return said


TERMINAL = [
    Attack(
        "escape sequences in a log",
        shows("logs", "hostile"),
        "^0 control characters and .*printed by the program",
    ),
    Attack(
        "escape sequences in a status",
        lambda tenants: (
            shows("logs", "hostile")(tenants)
            and json.dumps((tenants.hostile.status.get("checkpoint") or {}).get("uri", ""))
        ),
        r'^"[^\\]*"$',
    ),
    Attack(
        "a script in a report",
        shows("report", "hostile", page=True),
        "^0 control characters and 0 scripts in: .*<html",
    ),
    Attack("step 10^20 of a run that is to be deleted", huge_step, "exit code 0"),
]
