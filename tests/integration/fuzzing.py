"""Odd objects against a real kube-apiserver and the operator as a process, and beside them a run of somebody who means well.

    python tests/integration/fuzzing.py --seconds 1800 --seed 1

For so long objects are made, changed and deleted in one namespace, of which the API server refuses some. In another one run
after the other is applied, whose RayJob must be there within 5 seconds each time, or on a slow machine within ten times what
one takes while nobody sends odd objects. At the end the operator has not ended, its log has no traceback, and nothing was
unexpected to it.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import math
import random
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, seed, settings
from kube import KubeApi, find_binaries, kuberay_definitions, our_definitions
from odd_objects import ODD_OBJECTS, UID_OF_THE_RUN, Odd, text_of
from operator_inside import run
from operator_process import OperatorProcess

PATHS: Final = {
    "RLTrainingRun": "/apis/rltrain.dev/v1alpha1/namespaces/{}/rltrainingruns",
    "RLTrainingProfile": "/apis/rltrain.dev/v1alpha1/rltrainingprofiles",
    "RayJob": "/apis/ray.io/v1/namespaces/{}/rayjobs",
    "RayCluster": "/apis/ray.io/v1/namespaces/{}/rayclusters",
    "Pod": "/api/v1/namespaces/{}/pods",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
LATEST: Final = 5.0
"""Seconds in which a run of somebody else has its RayJob, at least."""

CALM: Final = 3
"""Runs of somebody else before there are odd objects. The slowest of them says what this machine takes for one."""

SLOWER: Final = 10
"""Times as long as that one may take with odd objects beside it."""

BATCH: Final = 40
PAUSE: Final = 1.0
"""Seconds between two runs of somebody else."""

MERGE: Final = "application/merge-patch+json"
MANY: Final = 240.0
"""Seconds after which something is waited for in vain."""


class Connection:
    """Requests to the API server, one after the other."""

    def __init__(self, kube: KubeApi) -> None:
        host, _, port = kube.server.removeprefix("https://").partition(":")
        context = ssl.create_default_context(cafile=str(kube.certificate))
        self._connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=MANY)
        self._headers = {"Authorization": f"Bearer {kube.token}"}

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Code and JSON of an answer."""
        try:
            # Unknown fields are dropped in silence: a warning for each would be more headers than a client reads.
            self._connection.request(
                method, f"{path}?fieldValidation=Ignore", body, {**self._headers, "Content-Type": kind}
            )
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # the next request opens another
            return 599, {}
        try:
            return answer.status, json.loads(data)
        except (ValueError, RecursionError):
            return answer.status, {}


class Honest(threading.Thread):
    """Somebody who applies one run after the other, and waits for its RayJob."""

    def __init__(self, kube: KubeApi, namespace: str) -> None:
        super().__init__(daemon=True)
        self._connection, self._namespace = Connection(kube), namespace
        self._over, self._tried = threading.Event(), threading.Condition()
        self.latest = MANY
        self.seconds: list[float] = []
        self.problem = ""

    def run(self) -> None:
        """Until `stop`."""
        number = 0
        try:
            while not self._over.wait(PAUSE) and not self.problem:
                number += 1
                self.one(f"honest-{number}")
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            with self._tried:
                self._tried.notify_all()

    def until_tried(self, runs: int) -> None:
        """Wait until so many runs were tried, or one has failed."""
        with self._tried:
            self._tried.wait_for(lambda: len(self.seconds) >= runs or self.problem, MANY)

    def stop(self) -> None:
        """End, and wait for it."""
        self._over.set()
        self.join(2 * MANY)

    def one(self, name: str) -> None:
        """Apply a run, wait for its RayJob, and take both away."""
        runs, jobs = (PATHS[kind].format(self._namespace) for kind in ("RLTrainingRun", "RayJob"))
        code, answer = self._connection.ask("POST", runs, text_of(run(name, profile="honest")))
        if code != 201:
            self.problem = f"run {name} is refused: {answer}"
            return
        begun = time.monotonic()
        while self._connection.ask("GET", f"{jobs}/{name}-1")[0] != 200:
            if time.monotonic() - begun > self.latest:
                break
            time.sleep(0.02)
        with self._tried:
            self.seconds.append(time.monotonic() - begun)
            self._tried.notify_all()
        if self.seconds[-1] > self.latest:
            self.problem = f"run {name} had its RayJob after {self.seconds[-1]:.1f} s"
        for path in (f"{runs}/{name}", f"{jobs}/{name}-1"):
            self._connection.ask("DELETE", path)


class Fuzzing:
    """Odd objects for a while."""

    def __init__(self, kube: KubeApi, operator: OperatorProcess, namespace: str, honest: str) -> None:
        """Prepare; the operator is started by `run`. Both namespaces are there."""
        self._kube, self._operator, self._namespace = kube, operator, namespace
        self._honest = Honest(kube, honest)
        self._connection = Connection(kube)
        self._uids: dict[str, str] = {}
        self.answers: collections.Counter[str] = collections.Counter()
        self.sent = 0

    def run(self, seconds: float, number: int, objects: float = math.inf, honest: int = 0) -> list[str]:
        """What went wrong, as sentences.

        Args:
            seconds: after which it ends.
            number: the seed.
            objects: after so many it ends, too: then a seed stands for the same objects on any machine.
            honest: so many runs of somebody else are tried beside these, however slow the operator is: the next objects wait
                for their share of them.
        """
        profile = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingProfile",
            "metadata": {"name": "honest"},
            "spec": {"pools": [{"name": "cpu"}]},
        }
        self._kube.apply(profile)
        self._operator.start()
        self._operator.until_works()
        pid = self._operator.pid
        self._honest.one("first")  # the API server reads the definitions, once
        self._honest.seconds.clear()
        self._honest.problem = ""
        for calm in range(CALM):
            self._honest.one(f"calm-{calm}")
        self._honest.latest = max(LATEST, SLOWER * max(self._honest.seconds, default=0.0))
        self._honest.seconds.clear()
        self._honest.start()
        deadline = time.monotonic() + seconds
        chance = random.Random(number)
        batch = 0

        def over() -> bool:
            return time.monotonic() >= deadline or self.sent >= objects

        while not over() and not self._honest.problem and self._operator.running:
            self._batch(number * 1_000_003 + batch, over, chance)
            batch += 1
            self._honest.until_tried(int(honest * self.sent / objects))
        self._honest.stop()
        return [*self._problems(pid)]

    def _batch(self, number: int, over: Callable[[], bool], chance: random.Random) -> None:
        @seed(number)
        @settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(ODD_OBJECTS)
        def send(odd: Odd) -> None:
            if not over():
                self._send(odd, chance)

        send()

    def _send(self, odd: Odd, chance: random.Random) -> None:
        self.sent += 1
        path = PATHS[odd.kind].format(self._namespace)
        place = f"{path}/{odd.name}"
        document = odd.document
        for owner in document["metadata"].get("ownerReferences", ()):
            owner["uid"] = (
                self._uids.get(owner["name"], "unknown") if owner["uid"] == UID_OF_THE_RUN else owner["uid"]
            )
        code, answer = self._connection.ask("POST", path, text_of(document))
        if code == 409:
            if chance.random() < 0.4:
                self._remove(place)
                code, answer = self._connection.ask("POST", path, text_of(document))
            else:
                code, answer = self._connection.ask("PATCH", place, text_of(document), MERGE)
        self._count(odd.kind, code)
        if 200 <= code < 300 and odd.kind == "RLTrainingRun":
            self._uids[odd.name] = str((answer.get("metadata") or {}).get("uid"))
        if 200 <= code < 300 and odd.status is not None:
            change = text_of({"status": odd.status})
            self._count(
                f"{odd.kind}/status", self._connection.ask("PATCH", f"{place}/status", change, MERGE)[0]
            )

    def _remove(self, place: str) -> None:
        """Delete an object at once, also where the operator would wait for a last checkpoint."""
        self._connection.ask("DELETE", place)
        self._connection.ask("PATCH", place, b'{"metadata": {"finalizers": null}}', MERGE)

    def _count(self, what: str, code: int) -> None:
        self.answers[
            f"{what} {'taken' if 200 <= code < 300 else 'refused' if code < 500 else f'failed ({code})'}"
        ] += 1

    def clean(self) -> None:
        """Take away what belongs to no namespace."""
        for name in ("honest", *(f"odd-{number}" for number in range(3))):
            self._connection.ask("DELETE", f"{PATHS['RLTrainingProfile']}/{name}")

    def _problems(self, pid: int) -> list[str]:
        found = [self._honest.problem] if self._honest.problem else []
        if not self._operator.running or self._operator.pid != pid:
            found.append("the operator has ended")
        elif not self._operator.alive:
            found.append("the operator's probe fails")
        unexpected = {
            name: value
            for name, value in self._operator.metrics().items()
            if name.startswith("rltrain_operator_errors_total") and 'reason="Unexpected"' in name
        }
        if unexpected:
            found.append(f"something was unexpected: {unexpected}")
        log = self._operator.log.read_text(errors="replace")
        if "Traceback" in log:
            found.append(
                "the operator's log has a traceback:\n" + log[max(0, log.index("Traceback") - 500) :][:6000]
            )
        if not self._honest.seconds:
            found.append("no run of somebody else was tried")
        return found

    @property
    def seconds(self) -> list[float]:
        """How long each run of somebody else waited for its RayJob."""
        return self._honest.seconds

    @property
    def summary(self) -> str:
        """How many objects were tried, and how long others waited."""
        taken, refused, failed = (
            sum(count for what, count in self.answers.items() if f" {word}" in what)
            for word in ("taken", "refused", "failed")
        )
        slowest = max(self._honest.seconds, default=0.0)
        lines = [f"{taken + refused + failed} objects: {taken} taken, {refused} refused, {failed} failed"]
        lines += [f"  {what}: {count}" for what, count in sorted(self.answers.items())]
        lines.append(
            f"{len(self._honest.seconds)} runs of somebody else: RayJob after {slowest:.2f} s at most, "
            f"allowed were {self._honest.latest:.1f} s"
        )
        return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Fuzz a cluster that is made for it; 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long (1800)")
    parser.add_argument("--seed", type=int, default=1, help="another one: other objects (1)")
    options = parser.parse_args(arguments)
    binaries = find_binaries()
    if binaries is None:
        print("no kube-apiserver here: run scripts/tools apiserver", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        kube = KubeApi(Path(folder), binaries)
        operator = OperatorProcess(kube.kubeconfig, Path(folder) / "operator.log")
        try:
            kube.start()
            kube.install_definitions(*our_definitions(), *kuberay_definitions())
            namespaces = kube.new_namespace("fuzz"), kube.new_namespace("honest")
            fuzzing = Fuzzing(kube, operator, *namespaces)
            problems = fuzzing.run(options.seconds, options.seed)
        finally:
            operator.kill()
            kube.stop()
    print(fuzzing.summary)
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
