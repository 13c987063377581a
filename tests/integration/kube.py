"""A real Kubernetes API without nodes: etcd and kube-apiserver as plain processes, started once per test session.

conftest.py makes the fixture `kube` known: imported into test modules, each would start a server of its own. No controller
runs there: nothing is garbage-collected, no pod is scheduled, and a deleted namespace stays in Terminating; tests give each
case a namespace of its own.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from ports import free_ports

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "administrator-of-a-test-cluster"
# A cold start takes 6 seconds on an idle machine; a machine that builds and tests besides gets patience.
START_SECONDS = 120.0
STOP_SECONDS = 20.0
# Definitions are applied while the server, which has just begun, describes all that it knows.
COMMAND_SECONDS = 150.0


class KubeApi:
    """etcd and kube-apiserver of one test session.

    Attributes:
        kubeconfig: file of an administrator (group system:masters).
        server: address of the API.
        token: the administrator's bearer token.
        certificate: file of the authority that signed the server's certificate.
    """

    def __init__(self, folder: Path, binaries: Path, *options: str) -> None:
        """Prepare keys and files; `start` starts the processes, kube-apiserver with `options` more.

        Args:
            folder: empty folder for data, keys and logs.
            binaries: folder of etcd, kube-apiserver and kubectl.
        """
        self.folder, self.binaries, self._options = folder, binaries, options
        self.token = TOKEN
        self._etcd_port, self._peer_port, self._port = free_ports(3)
        self.server = f"https://127.0.0.1:{self._port}"
        self.kubeconfig = folder / "kubeconfig"
        self.certificate = folder / "certificates" / "apiserver.crt"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._namespaces = itertools.count(1)
        (folder / "tokens.csv").write_text(f'{TOKEN},administrator,administrator,"system:masters"\n')
        key = folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self._write_kubeconfig()

    def start(self) -> None:
        """Start both processes and wait until the API is ready.

        Raises:
            RuntimeError: a process ended, or the API is not ready in time; with the end of its log.
        """
        self._run_etcd()
        self.start_apiserver()

    def start_apiserver(self) -> None:
        """Start kube-apiserver on its port again, and wait until it is ready."""
        url = f"http://127.0.0.1:{self._etcd_port}"
        self._run(
            "kube-apiserver",
            f"--etcd-servers={url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={self.server}",
            f"--service-account-key-file={self.folder / 'service-account.key'}",
            f"--service-account-signing-key-file={self.folder / 'service-account.key'}",
            # Pods would wait for service accounts, which a controller makes and none runs here.
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            *self._options,
        )
        self._until("kube-apiserver", lambda: self._ask("/readyz") == 200)

    def stop_apiserver(self) -> None:
        """Stop kube-apiserver and cut its connections: what a control plane's failover looks like to a client."""
        self._stop("kube-apiserver")

    def stop(self) -> None:
        """Stop both processes; what they stored stays in the folder."""
        for name in reversed(list(self._processes)):
            self._stop(name)

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True, seconds: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator.

        Args:
            arguments: after `kubectl`; `--as=NAME --as-group=GROUP` makes somebody else of it.
            stdin: text for `-f -`.
            check: whether a failure is an error, which carries what kubectl wrote.
            seconds: time limit.

        Raises:
            AssertionError: kubectl failed, and `check` is set.
        """
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}"
            )
        return done

    def get(self, *arguments: str) -> dict[str, Any]:
        """`kubectl get` as a dictionary: one object, or a list with `items`."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)
        return found

    def apply(self, *documents: dict[str, Any], namespace: str | None = None) -> None:
        """Apply objects client-side, as a user does it."""
        scope = [f"--namespace={namespace}"] if namespace else []
        self.kubectl("apply", *scope, "-f", "-", stdin=yaml.safe_dump_all(documents))

    def new_namespace(self, prefix: str = "test") -> str:
        """Create a namespace that no other test has, and return its name."""
        name = f"{prefix}-{next(self._namespaces)}"
        self.kubectl("create", "namespace", name)
        return name

    def install_definitions(self, *files: Path) -> None:
        """Apply CustomResourceDefinitions, given as YAML or as Helm templates, and wait until they are served."""
        # Templates hold no values, only conditions on lines of their own.
        text = "\n---\n".join(
            re.sub(r"^\s*\{\{.*?\}\}\s*$", "", file.read_text(), flags=re.MULTILINE) for file in files
        )
        how = ("--server-side", "--force-conflicts", "-o", "name")
        # Their names are kubectl's to say: PyYAML takes seconds for KubeRay's four megabytes.
        self.wait_for_definitions(*self.kubectl("apply", *how, "-f", "-", stdin=text).stdout.split())

    def wait_for_definitions(self, *names: str) -> None:
        """Wait until definitions, as KIND/NAME, are served; `kubectl wait` fails on one that has no conditions yet."""
        deadline = time.monotonic() + COMMAND_SECONDS
        while (done := self.kubectl("wait", "--for=condition=Established", *names, check=False)).returncode:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.1)

    def pid(self, name: str) -> int:
        """Process id of `etcd` or `kube-apiserver`."""
        return self._processes[name].pid

    def log(self, name: str, lines: int = 15) -> str:
        """The last lines that a process wrote."""
        written = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join(written[-lines:])

    def _run_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # Data of a test may be lost with the machine.
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._until("etcd", lambda: http_status(f"{client}/health") == 200)

    def _run(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = _spawn([str(self.binaries / name), *arguments], log)

    def _stop(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM if name == "etcd" else signal.SIGKILL)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)

    def _until(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self._processes[name].poll() is not None:
                raise RuntimeError(f"{name} ended while starting:\n{self.log(name)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} is not ready after {START_SECONDS:.0f} s:\n{self.log(name)}")
            time.sleep(0.1)

    def _ask(self, path: str) -> int:
        if not self.certificate.exists():
            return 0
        try:
            context = ssl.create_default_context(cafile=str(self.certificate))
        except ssl.SSLError:
            return 0  # it is being written
        return http_status(f"{self.server}{path}", {"Authorization": f"Bearer {self.token}"}, context)

    def _write_kubeconfig(self) -> None:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.server, "certificate-authority": str(self.certificate)},
                }
            ],
            "users": [{"name": "administrator", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "administrator"}}],
            "current-context": "test",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document))
        self.kubeconfig.chmod(0o600)


def find_binaries() -> Path | None:
    """Folder that holds etcd, kube-apiserver and kubectl: KUBEBUILDER_ASSETS, or what scripts/tools built."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    folder = Path(named) if named else REPOSITORY / ".tools" / "bin"
    complete = all((folder / name).exists() for name in ("etcd", "kube-apiserver", "kubectl"))
    return folder if complete else None


def our_definitions() -> list[Path]:
    """Our CustomResourceDefinitions, as the chart has them."""
    return sorted((REPOSITORY / "charts" / "rltrain" / "templates" / "crds").glob("*.yaml"))


def kuberay_definitions() -> list[Path]:
    """KubeRay's CustomResourceDefinitions, which scripts/tools takes from KubeRay's own Go module."""
    folder = REPOSITORY / ".tools" / "share" / "kuberay-crds"
    if not folder.is_dir() and shutil.which("go"):
        subprocess.run(
            [str(REPOSITORY / "scripts" / "tools"), "kuberay-crds"],
            check=True,
            timeout=240,
            stdout=subprocess.DEVNULL,
        )
    return sorted(folder.glob("*.yaml"))


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApi]:
    """A running API with our definitions (as far as the chart has them) and KubeRay's."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(
            "no kube-apiserver here: scripts/tools apiserver builds it, or KUBEBUILDER_ASSETS names it"
        )
    api = KubeApi(tmp_path_factory.mktemp("kube"), binaries)
    try:
        api.start()
        api.install_definitions(*our_definitions(), *kuberay_definitions())
        yield api
    finally:
        api.stop()


def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """A process of its own group, so that Ctrl-C reaches the tests first; it dies with them, however they end."""
    if sys.platform != "linux":
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    setpriv = shutil.which("setpriv")
    guard = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    return subprocess.Popen([*guard, *command], stdout=log, stderr=log, start_new_session=True)


def http_status(
    url: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None
) -> int:
    """HTTP status of a GET; 0 where nobody answers."""
    try:
        request = urllib.request.Request(url, headers=headers or {})
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
