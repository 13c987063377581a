"""The API server that the operator's benchmarks run against, and who works on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kube_load
from kube_load import Client

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

from kube import KubeApi, find_binaries, kuberay_definitions  # noqa: E402
from operator_process import OperatorProcess, Program  # noqa: E402

from rl_api.documents import load_documents  # noqa: E402

PATIENCE = 120.0, 0.5  # seconds, and more of them for each run
PROFILE = {
    "apiVersion": "rltrain.dev/v1alpha1",
    "kind": "RLTrainingProfile",
    "metadata": {"name": "bench"},
    "spec": {"default": True, "pools": [{"name": "cpu"}]},
}


class Cluster:
    """A fresh API server with the definitions, and who works on it."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        folder.mkdir()
        self.folder, self.kube = folder, KubeApi(folder, binaries)

    def __enter__(self) -> Cluster:
        try:
            self.kube.start()
            ours = sorted((ROOT / "charts" / "rltrain" / "templates" / "crds").glob("*.yaml"))
            self.kube.install_definitions(*ours, *kuberay_definitions())
            self.kube.apply(PROFILE)
        except BaseException:
            self.kube.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kube.stop()

    def client(self, connections: int) -> Client:
        return Client(self.kube.server, self.kube.token, self.kube.certificate, connections)

    def operator(self, wait: bool = True, *options: str) -> OperatorProcess:
        log = self.folder / "operator.log"
        operator = OperatorProcess(self.kube.kubeconfig, log, "--log-level=warning", *options)
        operator.start()
        if wait:
            operator.until_works()
        return operator

    def bare(self, rendered: dict[str, Any]) -> Program:
        kube_load.render(self.folder, **rendered)
        arguments = [self.kube.server, self.kube.token, self.kube.certificate, self.folder]
        command = [sys.executable, str(ROOT / "bench" / "kube_load.py"), *map(str, arguments)]
        program = Program(command, self.kube.kubeconfig, self.folder / "operator.log")
        program.start()
        program.until((self.folder / "ready").exists, "the bare operator starts")
        return program


def patience(runs: int) -> float:
    """Seconds that are waited for anything about that many runs."""
    return PATIENCE[0] + PATIENCE[1] * runs


def binaries_and_run(who: str) -> tuple[Path, dict[str, Any]] | None:
    """What a benchmark of the operator works with; None, and a sentence: there is no API server."""
    binaries = find_binaries()
    if binaries is None:
        print(f"{who}: no kube-apiserver here: scripts/tools apiserver builds it", file=sys.stderr)
        return None
    file = ROOT / "examples" / "quickstart-cluster.yaml"
    documents = load_documents(file.read_text(), file.name)
    run = next(one for _, one in documents if one["kind"] == "RLTrainingRun")
    # No claim: nobody here provides volumes.
    run["spec"]["checkpoint"]["storage"] = {"path": "/var/lib/checkpoints"}
    return binaries, run
