"""The test API itself: real, ours alone, with both sets of definitions, and able to fail and return."""

from __future__ import annotations

import ssl
import urllib.request

from kube import KubeApi, kuberay_definitions


def test_serves_the_version_that_the_nodes_run(kube: KubeApi) -> None:
    context = ssl.create_default_context(cafile=str(kube.certificate))
    request = urllib.request.Request(
        f"{kube.server}/version", headers={"Authorization": f"Bearer {kube.token}"}
    )
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        assert b'"gitVersion": "v1.36' in answer.read()


def test_refuses_who_shows_no_token(kube: KubeApi) -> None:
    refused = kube.kubectl("--token=wrong", "get", "namespaces", check=False)
    assert refused.returncode == 1
    assert "Unauthorized" in refused.stderr


def test_checks_permissions_of_service_accounts(kube: KubeApi) -> None:
    name = kube.new_namespace()
    refused = kube.kubectl(
        "get", "pods", "-n", name, f"--as=system:serviceaccount:{name}:nobody", check=False
    )
    assert "Forbidden" in refused.stderr


def test_serves_kuberay_and_keeps_what_it_stores(kube: KubeApi) -> None:
    assert kuberay_definitions()
    name = kube.new_namespace()
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "kept"},
        "spec": {"entrypoint": "true", "submissionMode": "HTTPMode"},
    }
    kube.apply(job, namespace=name)
    assert kube.get("rayjob", "kept", "-n", name)["spec"]["entrypoint"] == "true"
    assert kube.kubectl("delete", "rayjob", "kept", "-n", name).returncode == 0
    assert kube.get("rayjobs", "-n", name)["items"] == []


def test_goes_and_returns_with_its_data(kube: KubeApi) -> None:
    name = kube.new_namespace()
    kube.stop_apiserver()
    assert kube.kubectl("get", "namespaces", "--request-timeout=2s", check=False).returncode == 1
    kube.start_apiserver()
    assert kube.get("namespace", name)["status"]["phase"] == "Active"
