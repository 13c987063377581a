"""What is said of the run that a service follows, against a real kube-apiserver; KubeRay and the control are played."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from kube import KubeApi
from operator_inside import run
from operator_process import OperatorProcess

NOTICED_SECONDS = 240.0
CLAIM = {"storage": {"persistentVolumeClaim": "checkpoints"}}


class Control:
    """A service's control without checkpoints, at whatever address its head has. It answers to `token` alone."""

    def __init__(self) -> None:
        self.token = ""
        control = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = control.token and self.headers["Authorization"] == f"Bearer {control.token}"
                body = json.dumps({"replicas": [{"id": "one"}], "checkpoints": []} if known else {}).encode()
                self.send_response(200 if known else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Control:
        self._thread.start()
        return self

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Following(OperatorProcess):
    """The operator for one namespace, and its services."""

    def __init__(self, kube: KubeApi, namespace: str, log: Path, control: Control) -> None:
        super().__init__(kube.kubeconfig, log, f"--namespace={namespace}", f"--driver-url={control.url}")
        self.kube, self.namespace, self._control = kube, namespace, control

    def serve(self, name: str, run: str) -> None:
        """A service that follows a run."""
        about = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLPolicyService", "metadata": {"name": name}}
        spec = {"profile": "followed", "from": {"run": run}, "auth": {"anonymous": True}}
        self.kube.apply({**about, "spec": spec}, namespace=self.namespace)

    def train(self, name: str, **spec: Any) -> None:
        """A run."""
        self.kube.apply(run(name, profile="followed", **spec), namespace=self.namespace)

    def delete(self, name: str) -> None:
        """The run is gone when this returns."""
        self.kube.kubectl("delete", "rlrun", name, "-n", self.namespace)

    def until_said(self, name: str, reason: str, status: str = "False") -> str:
        """What the condition SourceFound of a service says, once it has this reason."""

        def said() -> str | None:
            found = self.kube.get("rlps", name, "-n", self.namespace).get("status", {})
            return next(
                (
                    str(one["message"])
                    for one in found.get("conditions", ())
                    if (one["type"], one["status"], one["reason"]) == ("SourceFound", status, reason)
                ),
                None,
            )

        return str(self.until(said, f"service {name} has SourceFound {reason}", NOTICED_SECONDS))

    def brought_up(self, name: str) -> None:
        """What KubeRay does with a RayService, as far as its head, in which the control finds its token."""

        def made() -> Any:
            found = self.kube.kubectl(
                "get", "rayservice", name, "-n", self.namespace, "-o", "json", check=False
            )
            return found.returncode == 0 and json.loads(found.stdout)

        ray = self.until(made, f"RayService {name} is there", NOTICED_SECONDS)
        cluster, spec = f"{name}-abcde", ray["spec"]["rayClusterConfig"]
        [mounted] = (
            volume["secret"]["secretName"]
            for volume in spec["headGroupSpec"]["template"]["spec"]["volumes"]
            if volume["name"] == "token"
        )
        secret = self.kube.get("secret", mounted, "-n", self.namespace)
        self._control.token = base64.b64decode(secret["data"]["token"]).decode()
        labels = ray["metadata"]["labels"]
        about = {"name": cluster, "labels": labels, "ownerReferences": [controlled_by(ray)]}
        self.kube.apply(
            {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": about, "spec": spec},
            namespace=self.namespace,
        )
        owner = controlled_by(self.kube.get("raycluster", cluster, "-n", self.namespace))
        head = {
            "name": f"{cluster}-head",
            "labels": spec["headGroupSpec"]["template"]["metadata"]["labels"],
        }
        pod = {"containers": [{"name": "ray", "image": "trainer"}]}
        self.kube.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": head | {"ownerReferences": [owner]},
                "spec": pod,
            },
            namespace=self.namespace,
        )
        self.status("pod", head["name"], {"podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}]})
        self.status("rayservice", name, {"activeServiceStatus": {"rayClusterName": cluster}})

    def status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        """Write the status of an object, as those do who are not here."""
        change = json.dumps({"status": status})
        where = (kind, name, "-n", self.namespace, "--subresource=status", "--type=merge")
        self.kube.kubectl("patch", *where, "-p", change)


def controlled_by(document: dict[str, Any]) -> dict[str, Any]:
    """A reference to the object that controls another one."""
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "name": document["metadata"]["name"],
        "uid": document["metadata"]["uid"],
        "controller": True,
    }


@pytest.fixture
def following(kube: KubeApi, tmp_path: Path) -> Iterator[Following]:
    """A namespace with an operator of its own."""
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "followed"},
        "spec": {"pools": [{"name": "cpu"}]},
    }
    kube.apply(profile)
    with Control() as control:
        operator = Following(kube, kube.new_namespace("following"), tmp_path / "operator.log", control)
        operator.start()
        operator.until_works()
        try:
            yield operator
            assert "Traceback" not in operator.log.read_text()
        finally:
            operator.kill()
            kube.kubectl("delete", "rlprofile", "followed")


def test_a_run_that_is_not_there_has_no_checkpoint_is_deleted_and_made_anew(following: Following) -> None:
    following.serve("chat", "sums")
    assert following.until_said("chat", "RunMissing") == (
        "spec.from.run: there is no RLTrainingRun 'sums' in this namespace; create it, and the service goes on by itself"
    )
    assert following.kube.get("rayservices", "-n", following.namespace)["items"] == []

    following.train("sums", checkpoint=CLAIM)
    following.brought_up("chat")
    assert following.until_said("chat", "NoCheckpoint") == (
        "run sums has no checkpoint: it has written none yet; the first one is a candidate as soon as it is there"
    )

    following.delete("sums")
    assert following.until_said("chat", "RunDeleted") == (
        "run sums was deleted; what it left is served, and there will be no better policies of it"
    )
    following.train("sums", checkpoint=CLAIM)
    assert "delete the service and make it again to follow the other" in following.until_said(
        "chat", "RunReplaced"
    )


def test_a_run_whose_checkpoints_nobody_else_gets_at(following: Following) -> None:
    following.train("local")
    following.serve("chat", "local")
    assert "allowed in its checkpoint.storage: persistentVolumeClaim or s3" in following.until_said(
        "chat", "NoStorage"
    )
    assert following.kube.get("rayservices", "-n", following.namespace)["items"] == []
