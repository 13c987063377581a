"""The real Kueue beside a kube-apiserver without nodes: its manager as a process, its webhooks at an address here.

Kueue admits Workloads by what its queues hold, and looks at nodes for topologies alone: nothing is scheduled here. All is as
Kueue has it, but for addresses: the API server asks webhooks (admission, conversion between versions of a kind) by URL and
not by Service. Kueue manages its certificate itself, and keeps the one that it finds: nobody mounts a Secret here.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from big_yaml import yaml_documents
from kube import REPOSITORY, KubeApi, find_binaries, http_status, kuberay_definitions, our_definitions
from operator_process import Program
from ports import free_ports

NAMESPACE: Final = "kueue-system"
SERVICE: Final = "kueue-webhook-service"
CERTIFICATE: Final = "kueue-webhook-server-cert"
SHARE: Final = REPOSITORY / ".tools" / "share"
# Kinds whose webhooks are asked: Kueue's own, and those of the jobs that it is told to manage.
GROUPS: Final = ("kueue.x-k8s.io", "ray.io")
JOBS: Final = ("rayjobs", "rayclusters")
GATES: Final = {"PriorityBoost": True, "VisibilityOnDemand": False}
START_SECONDS: Final = 180.0


class KueueProcess(Program):
    """Kueue's manager. `start` also prepares the API server for it."""

    def __init__(
        self, kube: KubeApi, folder: Path, binary: Path, gates: dict[str, bool] | None = None
    ) -> None:
        """Name what it works with.

        Args:
            kube: the API that it works on, where KubeRay's definitions are.
            folder: empty folder for its certificate, configuration and log.
            binary: the manager, as scripts/tools builds it.
            gates: feature gates besides `GATES`.
        """
        self._kube, self._folder = kube, folder
        self._ports = free_ports(3)
        self._configuration = folder / "configuration.yaml"
        self._configure(gates or {})
        super().__init__(
            [str(binary), f"--config={self._configuration}"], kube.kubeconfig, folder / "kueue.log"
        )

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            AssertionError: it has ended, or is not ready in time; with the end of its log.
        """
        self._certify()
        self._install()
        self._begin()

    def _begin(self) -> None:
        super().start()
        url = f"http://127.0.0.1:{self._ports[1]}/readyz"
        self.until(lambda: http_status(url) == 200, "Kueue starts", START_SECONDS)

    @property
    def metrics_address(self) -> str:
        """Where its metrics are, as host and port; asked by https and with a token."""
        return f"127.0.0.1:{self._ports[2]}"

    def restart(self, **gates: bool) -> None:
        """Start it again, with these gates besides `GATES`; what was prepared on the API server is there."""
        self.kill()
        self._configure(gates)
        self._begin()

    def _configure(self, gates: dict[str, bool]) -> None:
        webhooks, health, metrics = self._ports
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": f"127.0.0.1:{metrics}", "enableClusterQueueResources": True},
            "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(self._folder)},
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": ["ray.io/rayjob", "ray.io/raycluster"]},
            "featureGates": GATES | gates,
        }
        self._configuration.write_text(yaml.safe_dump(configuration))

    def _certify(self) -> None:
        """One certificate, signed by itself, for Kueue's Service and for this machine."""
        key, certificate = self._folder / "tls.key", self._folder / "tls.crt"
        if certificate.exists():
            return
        names = f"DNS:kueue-ca,DNS:{SERVICE}.{NAMESPACE}.svc,IP:127.0.0.1"
        extensions = [f"subjectAltName={names}", "basicConstraints=critical,CA:TRUE"]
        extensions += ["extendedKeyUsage=serverAuth", "keyUsage=digitalSignature,keyEncipherment,keyCertSign"]
        added = [word for one in extensions for word in ("-addext", one)]
        for command in (
            ["genrsa", "-traditional", "-out", str(key), "2048"],
            [
                "req",
                "-x509",
                "-key",
                str(key),
                "-days",
                "3650",
                "-subj",
                "/CN=kueue-ca",
                "-out",
                str(certificate),
                *added,
            ],
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)

    def _install(self) -> None:
        """Kueue's definitions and webhooks, and the Secret that holds its certificate."""
        text = {name: (self._folder / f"tls.{name}").read_text() for name in ("crt", "key")}
        secret = {f"{whose}.{name}": text[name] for whose in ("ca", "tls") for name in text}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self._kube.apply(namespace)
        metadata = {"name": CERTIFICATE, "namespace": NAMESPACE}
        documents: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret}
        ]
        documents += [self._definition(file) for file in sorted((SHARE / "kueue-crds").glob("*.yaml"))]
        webhooks = (SHARE / "kueue-config/components/webhook/manifests.yaml").read_text()
        documents += [self._webhook(one) for one in yaml_documents(webhooks)]
        text_of_all = json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})
        self._kube.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text_of_all)
        names = [one["metadata"]["name"] for one in documents if one["kind"] == "CustomResourceDefinition"]
        self._kube.wait_for_definitions(*(f"crd/{name}" for name in names))

    def _definition(self, file: Path) -> dict[str, Any]:
        [document] = yaml_documents(file.read_text())
        folder = SHARE / "kueue-config/components/crd"
        patch = f"patches/webhook_in_{document['spec']['names']['plural']}.yaml"
        patches = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
        if {"path": patch} in patches:
            document["spec"]["conversion"] = yaml.safe_load((folder / patch).read_text())["spec"][
                "conversion"
            ]
            self._address(document["spec"]["conversion"]["webhook"])
        return document

    def _webhook(self, document: dict[str, Any]) -> dict[str, Any]:
        document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
        document["webhooks"] = [one for one in document["webhooks"] if _asked(one["rules"])]
        for webhook in document["webhooks"]:
            self._address(webhook)
        return document

    def _address(self, webhook: dict[str, Any]) -> None:
        path = webhook["clientConfig"]["service"]["path"]
        bundle = base64.b64encode((self._folder / "tls.crt").read_bytes()).decode()
        webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self._ports[0]}{path}", "caBundle": bundle}


def _asked(rules: list[dict[str, Any]]) -> bool:
    own, jobs = ({group} for group in GROUPS)
    return all(
        set(rule["apiGroups"]) == own
        or (set(rule["apiGroups"]) == jobs and set(rule["resources"]) <= set(JOBS))
        for rule in rules
    )


def find_kueue() -> Path | None:
    """Kueue's manager, where scripts/tools has built it and its manifests are there."""
    binaries = find_binaries()
    binary = binaries / "kueue" if binaries is not None else None
    return binary if binary is not None and binary.exists() and (SHARE / "kueue-crds").is_dir() else None


class QueuedCluster:
    """An API server of its own, with our definitions and KubeRay's, on which Kueue works."""

    def __init__(self, folder: Path, binary: Path, gates: dict[str, bool] | None = None) -> None:
        """Prepare both; used as a context, which starts and stops them."""
        for name in ("kube", "kueue"):
            (folder / name).mkdir()
        self.kube = KubeApi(folder / "kube", binary.parent)
        self.kueue = KueueProcess(self.kube, folder / "kueue", binary, gates)

    def __enter__(self) -> QueuedCluster:
        try:
            self.kube.start()
            self.kube.install_definitions(*our_definitions(), *kuberay_definitions())
            self.kueue.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kueue.kill()
        self.kube.stop()


@pytest.fixture(scope="session")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueuedCluster]:
    """A cluster with Kueue, apart from the other tests' one: its webhooks stand before every RayJob."""
    binary = find_kueue()
    if binary is None:
        pytest.skip("no Kueue here: scripts/tools apiserver kueue-crds kueue builds it")
    with QueuedCluster(tmp_path_factory.mktemp("queued"), binary) as cluster:
        yield cluster
