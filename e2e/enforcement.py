"""NetworkPolicies bite in every scenario: the network plug-in enforces them, or the fixture in cluster/policies does."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster_client import COMMAND_SECONDS, Cluster, wait_for
from connections import PORT, address, answering_pod, settles

CONTROLLER = Path(__file__).parent / "cluster" / "policies" / "policy_controller.py"


@contextmanager
def enforced_policies(cluster: Cluster, image: str, log: Path) -> Iterator[str]:
    """Enforced for as long as the context is open; gives by whom, in words.

    Args:
        cluster: where.
        image: one with Python, for the pods that measure it.
        log: what the fixture writes, where it is needed.

    Raises:
        AssertionError: nothing enforces them.
    """
    # What an earlier fixture has left, that was killed with all it had started, enforces what nobody wants any more.
    subprocess.run(
        [sys.executable, str(CONTROLLER), "--clear"],
        capture_output=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    with ExitStack() as stack:
        with _measuring(cluster, image) as enforced:
            who = "the cluster's network plug-in"
            if not enforced(3):  # a plug-in needs a moment, and there may be none
                stack.enter_context(_fixture(log))
                assert enforced(), f"network policies do not bite; see {log}"
                who = "the fixture in e2e/cluster/policies"
        yield who


@contextmanager
def _fixture(log: Path) -> Iterator[None]:
    """It enforces them for as long as the context is open."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        # It ends with its standard input: also when this process is killed.
        fixture = subprocess.Popen(
            [sys.executable, str(CONTROLLER)], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
        try:
            wait_for(
                "the fixture enforces network policies, or says why not",
                lambda: "enforcing" in log.read_text() or fixture.poll() is not None,
                90,
                log.read_text,
            )
            assert fixture.poll() is None, f"network policies cannot be enforced here: {log.read_text()}"
            yield
        finally:
            fixture.communicate(timeout=COMMAND_SECONDS)


@contextmanager
def _measuring(cluster: Cluster, image: str) -> Iterator[Callable[..., bool]]:
    """Measured, within so many seconds: whether what a policy forbids does not come about, and what none forbids does."""
    namespace = f"e2e-enforcement-{uuid.uuid4().hex[:5]}"  # nobody waits until it is gone
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    denied = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "denied", "namespace": namespace},
        "spec": {"podSelector": {"matchLabels": {"app": "denied"}}},
    }
    cluster.apply(denied, *(answering_pod(namespace, each, image) for each in ("denied", "open")))
    try:
        targets = [(address(cluster, namespace, name), PORT) for name in ("open", "denied")]
        yield lambda seconds=30: settles(cluster, namespace, "open", [True, False], *targets, seconds=seconds)
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")
