"""Commands in a pod's container, over the API server; those that are talked to are in rl_cli.attach."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from rl_cli.failures import ClusterError, failure
from rl_operator.render.pods import CONTAINER

_CONNECT_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 1.0
_KEPT: Final = 1 << 16
"""Bytes of standard error, and of the last word, that are kept."""

STDOUT, STDERR, ERROR = 1, 2, 3


class CommandFailed(ClusterError):
    """A command ended with another exit code than 0, or could not be started."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def execute(
    cluster: Any, namespace: str, pod: str, command: Sequence[str], *, idle: float | None
) -> Iterator[bytes]:
    """Run a command (no shell unless it is one); yields what it writes to standard output, in pieces.

    `cluster` is a rl_cli.cluster.Cluster, `idle` the most seconds of silence; None: any.

    Raises:
        CommandFailed: it failed.
        ClusterError: it could not be run, or was silent for too long.
    """
    channels = open_channels(cluster, namespace, pod, command)
    errors, result = b"", b""
    heard = time.monotonic()
    try:
        while channels.is_open():
            channels.update(timeout=_POLL_SECONDS)
            output = channels.read_channel(STDOUT)
            errors = (errors + channels.read_channel(STDERR))[-_KEPT:]
            result = (result + channels.read_channel(ERROR))[-_KEPT:]
            if output:
                heard = time.monotonic()
                yield output
            elif idle is not None and time.monotonic() - heard > idle:
                raise ClusterError(f"pod {pod} has said nothing for {idle:.0f} s: {' '.join(command)}")
        # Reading one channel may take in what belongs to another, and the end.
        if output := channels.read_channel(STDOUT):
            yield output
        errors += channels.read_channel(STDERR)
        result += channels.read_channel(ERROR)
    except (OSError, socket_errors()) as error:
        raise ClusterError(f"the connection to pod {pod} broke: {error}") from error
    finally:
        channels.close()
    code, message = outcome(result)
    if code:
        said = " ".join(errors.decode(errors="replace").split())[-500:]
        raise CommandFailed(said or message, code)


def outcome(result: bytes) -> tuple[int, str]:
    """Exit code and message of the `Status` that ends a command; -1: it ended without one, or did not start."""
    try:
        status = json.loads(result)
    except ValueError:
        return -1, "the connection ended before the command did"
    if status.get("status") == "Success":
        return 0, ""
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"]), f"exit code {cause['message']}"
    return -1, str(status.get("message") or "it could not be started")


def open_channels(
    cluster: Any, namespace: str, pod: str, command: Sequence[str], *, stdin: bool = False, tty: bool = False
) -> Any:
    """Start a command; returns the library's client of its channels.

    Raises:
        ClusterError: it was refused, or there is no connection.
    """
    import websocket
    from kubernetes.client import ApiException, CoreV1Api
    from kubernetes.stream import stream

    websocket.setdefaulttimeout(_CONNECT_SECONDS)
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    try:
        return stream(
            CoreV1Api(cluster.api_client).connect_get_namespaced_pod_exec,
            pod,
            namespace,
            container=CONTAINER,
            command=list(command),
            stdin=stdin,
            stdout=True,
            stderr=True,
            tty=tty,
            binary=True,
            _preload_content=False,
        )
    except ApiException as error:
        raise refused(path, str(error.reason)) from error
    except (OSError, websocket.WebSocketException) as error:
        raise ClusterError(f"no connection to pod {pod}: {error}") from error


def refused(path: str, reason: str) -> ClusterError:
    """What the API server said to the wish for a connection; the answer is within the text of the library's error."""
    status = re.search(r"Handshake status (\d+)", reason)
    if status is None:
        return ClusterError(f"the API server does not connect to the pod: {' '.join(reason.split())[:300]}")
    body = reason.rpartition(" -+-+- ")[2]
    return failure(path, int(status[1]), body if body != "None" else "")


def socket_errors() -> Any:
    """What the library raises when a connection breaks."""
    import websocket

    return websocket.WebSocketException
