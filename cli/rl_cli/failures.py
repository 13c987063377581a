"""What an API server says when it refuses, as sentences that a person can act on. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

from rl_operator.kube.wire import KINDS, ApiError, refusal

NOT_INSTALLED: Final = -1
"""Status of an error that says that the cluster has no such kind of ours at all."""

_INSTALL: Final = (
    "this cluster does not know RLTrainingRun: install the chart first "
    "(helm install rltrain charts/rltrain -n rltrain-system --create-namespace)"
)
_UPGRADE: Final = (
    "this cluster does not know RLPolicyService: its definitions are older; install or upgrade the chart "
    "(helm upgrade --install rltrain charts/rltrain -n rltrain-system --create-namespace)"
)
_WORDS: Final = {"rltrainingruns": "run", "rlpolicyservices": "service"}
"""What people call the kinds."""


class ClusterError(ApiError):
    """The cluster refused, does not answer, or has not what was asked for."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(status, "", message)


def unreachable(host: str, error: Exception, seconds: float) -> ClusterError:
    """No connection, or no answer in time."""
    text = str(error)
    kind = type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text or "SSL" in kind:
        reason = re.search(r"certificate verify failed: ([^()\[\]]+)", text)
        return ClusterError(
            f"the certificate of the API server {host} is not the one that the kubeconfig expects"
            + (f" ({reason[1].strip()})" if reason else "")
        )
    if "Timeout" in kind or isinstance(error, TimeoutError):
        return ClusterError(f"the API server {host} does not answer within {max(seconds, 1.0):.0f} s")
    if "NameResolution" in kind or "Name or service not known" in text:
        return ClusterError(f"the API server {host} has no address: is the context of the kubeconfig right?")
    why = re.search(r"\[Errno -?\d+\] ([^'\")]+)", text)
    return ClusterError(f"no connection to the API server {host}: {why[1] if why else kind}")


def failure(path: str, status: int, body: str) -> ClusterError:
    """What the API server answered to a request of `path` other than success: `body` is a `Status`, or anything."""
    answer = refusal(status, body)
    message, details, causes = " ".join(answer.message.split())[:1000], answer.details, answer.causes
    if status == 401:
        return ClusterError("the cluster does not accept your credentials: log in to it again", status)
    if status == 403:
        return ClusterError(
            f"not allowed: {message}; ask your platform team for a role that allows it", status
        )
    if status == 404:
        kind, name, namespace = details.get("kind"), details.get("name"), _namespace(path)
        if path.startswith("/apis/rltrain.dev") and not name:
            services = f"/{KINDS['RLPolicyService'].plural}" in path
            return ClusterError(_UPGRADE if services else _INSTALL, NOT_INSTALLED)
        if kind == "namespaces":
            return ClusterError(f"there is no namespace {name}", status)
        what = _WORDS.get(str(kind), str(kind or "object"))
        where = f" in namespace {namespace}" if namespace else ""
        return ClusterError(f"there is no {what} {name}{where}", status)
    if status == 409 and any(cause.get("reason") == "FieldManagerConflict" for cause in causes):
        fields = ", ".join(
            f"{str(cause.get('field', '')).removeprefix('.')} ({_manager(str(cause.get('message', '')))})"
            for cause in causes
        )
        return ClusterError(f"others have set these fields since: {fields}; --force takes them over", status)
    if status == 422 and causes:
        return ClusterError("\n".join(dict.fromkeys(_invalid(cause) for cause in causes)), status)
    if status == 410:
        return ClusterError(message, status)
    return ClusterError(f"the API server refuses: {message}", status)


def _namespace(path: str) -> str:
    found = re.search(r"/namespaces/([^/]+)/", path)
    return found[1] if found else ""


def _manager(message: str) -> str:
    found = re.search(r'conflict with "([^"]+)"', message)
    return f"by {found[1]}" if found else "by another program"


def _invalid(cause: dict[str, Any]) -> str:
    """The sentence of one wrong field, without the API server's repetition of its value."""
    text = " ".join(str(cause.get("message", "")).split())
    text = re.sub(r"^Invalid value: .*?: (?=found |missing|[a-z])", "", text)
    return f"{cause.get('field', 'spec')}: {text}"
