"""What an API server says, as sentences."""

from __future__ import annotations

import json
from typing import Any

import pytest
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError, SSLError

from rl_cli.failures import ClusterError, failure, unreachable

RUNS = "/apis/rltrain.dev/v1alpha1/namespaces/team-a/rltrainingruns"
HOST = "https://cluster:6443"


def answer(**status: Any) -> str:
    return json.dumps({"kind": "Status", **status})


@pytest.mark.parametrize(
    ("path", "status", "body", "sentence"),
    [
        (
            f"{RUNS}/x",
            404,
            answer(details={"kind": "rltrainingruns", "name": "x"}),
            "there is no run x in namespace team-a",
        ),
        (
            "/apis/rltrain.dev/v1alpha1/rltrainingprofiles/x",
            404,
            answer(details={"kind": "rltrainingprofiles", "name": "x"}),
            "there is no rltrainingprofiles x",
        ),
        (
            f"{RUNS}/x",
            404,
            answer(details={"kind": "namespaces", "name": "team-a"}),
            "there is no namespace team-a",
        ),
        (
            f"{RUNS}/x",
            401,
            "Unauthorized",
            "the cluster does not accept your credentials: log in to it again",
        ),
        (
            RUNS,
            403,
            answer(message='rltrainingruns is forbidden:\nUser "u" cannot list'),
            'not allowed: rltrainingruns is forbidden: User "u" cannot list; ask your platform team for a role that '
            "allows it",
        ),
        (
            f"{RUNS}/x",
            409,
            answer(
                details={
                    "causes": [
                        {
                            "reason": "FieldManagerConflict",
                            "field": ".spec.suspend",
                            "message": 'conflict with "kubectl-edit" using rltrain.dev/v1alpha1',
                        },
                        {"reason": "FieldManagerConflict", "field": ".spec.stop", "message": "?"},
                    ]
                }
            ),
            "others have set these fields since: spec.suspend (by kubectl-edit), spec.stop (by another program); "
            "--force takes them over",
        ),
        (
            f"{RUNS}/x",
            422,
            answer(
                details={
                    "causes": [
                        {"field": "spec.seed", "message": 'Invalid value: "integer": found 2, allowed: 1'},
                        {"field": "spec.seed", "message": 'Invalid value: "integer": found 2, allowed: 1'},
                        {"field": "spec.model", "message": "Required value"},
                    ]
                }
            ),
            "spec.seed: found 2, allowed: 1\nspec.model: Required value",
        ),
        (RUNS, 500, "<html>proxy\nerror</html>", "the API server refuses: <html>proxy error</html>"),
        (RUNS, 503, "", "the API server refuses: status 503"),
    ],
)
def test_answers(path: str, status: int, body: str, sentence: str) -> None:
    error = failure(path, status, body)
    assert str(error) == sentence
    assert error.status == status


@pytest.mark.parametrize(
    "body", ["404 page not found\n", answer(message="the server could not find it", details={})]
)
def test_a_cluster_without_the_definitions(body: str) -> None:
    error = failure(RUNS, 404, body)
    assert str(error).startswith("this cluster does not know RLTrainingRun: install the chart first")
    assert not error.missing
    assert not error.passing


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            NewConnectionError(
                None, "x: Failed to establish a new connection: [Errno 111] Connection refused"
            ),  # type: ignore[arg-type]
            f"no connection to the API server {HOST}: Connection refused",
        ),
        (ConnectTimeoutError(None, "slow"), f"the API server {HOST} does not answer within 15 s"),
        (ReadTimeoutError(None, "", "slow"), f"the API server {HOST} does not answer within 15 s"),  # type: ignore[arg-type]
        (
            SSLError(
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
            ),
            f"the certificate of the API server {HOST} is not the one that the kubeconfig expects "
            "(self-signed certificate)",
        ),
        (OSError("odd"), f"no connection to the API server {HOST}: OSError"),
    ],
)
def test_no_answer(error: Exception, sentence: str) -> None:
    found = unreachable(HOST, error, 15.0)
    assert str(found) == sentence
    assert found.passing


@pytest.mark.parametrize(
    ("status", "passing"), [(0, True), (429, True), (503, True), (403, False), (404, False)]
)
def test_what_may_pass(status: int, passing: bool) -> None:
    assert ClusterError("", status).passing is passing
