"""What the end-to-end scenarios read without kubectl is what kubectl reads, and is called as kubectl calls it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from kube import REPOSITORY, KubeApi


@pytest.fixture(scope="module")
def reader() -> Iterator[ModuleType]:
    """The scenarios' module, whose folder has names of this one's."""
    spec = importlib.util.spec_from_file_location("cluster_reader", REPOSITORY / "e2e" / "cluster_reader.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["cluster_reader"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cluster_reader"]


@pytest.fixture(scope="module")
def places(kube: KubeApi) -> list[str]:
    """Two namespaces, with two ConfigMaps each, of which one is labelled."""
    namespaces = [kube.new_namespace("read") for _ in range(2)]
    for namespace in namespaces:
        kube.apply(
            *(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": name, "labels": {"mark": name}},
                }
                for name in ("first", "second")
            ),
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "held"},
                "spec": {},
            },
            namespace=namespace,
        )
    return namespaces


@pytest.mark.parametrize("kind", ["configmap", "configmaps", "cm", "leases.coordination.k8s.io", "lease"])
def test_an_object_by_each_of_its_kinds_names(
    kube: KubeApi, reader: ModuleType, places: list[str], kind: str
) -> None:
    name = "held" if kind.startswith("lease") else "first"
    found = reader.Reader(kube.kubeconfig).get(kind, name, places[0])
    assert found == kube.get(kind, name, "-n", places[0])


def test_lists_say_of_what_kind_each_object_is(kube: KubeApi, reader: ModuleType, places: list[str]) -> None:
    read = reader.Reader(kube.kubeconfig)
    kinds = "configmaps,leases.coordination.k8s.io"
    assert by_name(read.list(kinds, places[0])) == by_name(kube.get(kinds, "-n", places[0])["items"])
    everywhere = kube.get("cm", "-A", "-l", "mark=first")["items"]
    assert by_name(read.list("cm", selector="mark=first")) == by_name(everywhere)
    assert {each["metadata"]["namespace"] for each in everywhere} >= set(places)
    assert {each["kind"] for each in read.list("crd")} == {"CustomResourceDefinition"}


def test_what_is_not_there(kube: KubeApi, reader: ModuleType, places: list[str]) -> None:
    read = reader.Reader(kube.kubeconfig)
    assert read.get("configmap", "third", places[0]) is None
    assert read.get("rltrainingrun", "none", places[0]) is None
    assert read.list("rayjobs.ray.io,rlpolicyservices", places[0]) == []
    with pytest.raises(AssertionError, match="the cluster has no kind workloads"):
        read.list("workloads")
    with pytest.raises(AssertionError, match="400"):
        read.list("pods", selector="=")


def by_name(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        objects, key=lambda each: (each["kind"], each["metadata"]["namespace"], each["metadata"]["name"])
    )
