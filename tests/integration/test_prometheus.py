"""Dashboards and alerts of the chart, asked of a real Prometheus.

It scrapes pages on which every family has a sample, of two pods each, so that a query that matches no one-to-one fails; and
the page of a real operator that works with a real kube-apiserver.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_rendering import CHART, one, render
from exported_metrics import metrics_of
from kube import KubeApi
from metrics_pages import of_kueue, of_operator, of_replica, served
from operator_inside import run
from operator_process import OperatorProcess
from prometheus_client.parser import text_string_to_metric_families
from prometheus_process import PrometheusProcess, Sample, asked, prometheus_or_skip

DASHBOARDS = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((CHART / "files" / "dashboards").glob("*.json"))
}
PODS = ("p", "q")
SHOWN = {
    "operator": {"Runs by phase", "Reconcile time", "Requests to the API server", "Leaders"},
    "runs": {
        "Runs by phase",
        "What runs wait for",
        "Held-out score",
        "Age of the newest checkpoint",
        "Buffer",
    },
    "fleet": {"Runs that train", "Runs that wait", "Runs that wait by team", "Age of the newest checkpoint"},
}
"""Panels that show something of an operator with runs that start: no pods are here to hold accelerators."""

STATUS: dict[str, dict[str, Any]] = {
    "progress": {
        **{
            "phase": "Training",
            "step": 3,
            "maxSteps": 5,
            "reward": 0.5,
            "heldoutScore": 0.5,
            "tokensPerSecond": 10.0,
        },
        **{"bufferFill": 0.5, "staleness": 1.0, "samplerBusy": 0.9, "learnerBusy": 0.6},
    },
    "checkpoint": {"step": 2, "uri": "file:///var/lib/checkpoints/2", "time": "2026-01-01T00:00:00Z"},
}
"""What a driver would have said of the run."""

every_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def scrape(name: str, address: str, **labels: str) -> dict[str, Any]:
    """As the chart's monitors have it: labels of the page win over those of the pod."""
    targets = [{"targets": [address], "labels": labels | {"pod": pod}} for pod in PODS]
    return {
        "job_name": name,
        "honor_labels": True,
        "metrics_path": f"/{name}",
        "static_configs": targets,
    }


def alerts() -> list[dict[str, Any]]:
    """The chart's rules, by groups."""
    found: list[dict[str, Any]] = one(render("alerts.enabled=true"), "PrometheusRule")["spec"]["groups"]
    return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    """One that has scraped all pages several times, with the chart's rules."""
    prometheus_or_skip()
    with served({"/operator": of_operator(), "/replica": of_replica(), "/kueue": of_kueue()}) as address:
        scrapes = [
            scrape("operator", address, namespace="rltrain-system"),
            scrape("replica", address, namespace="a"),
            scrape("kueue", address, namespace="kueue-system"),
        ]
        process = PrometheusProcess(tmp_path_factory.mktemp("prometheus"), scrapes, alerts())
        try:
            process.start()
            process.until_scraped(4)
            yield process
        finally:
            process.kill()


def targets(dashboard: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(panel["title"], target) for panel in dashboard["panels"] for target in panel["targets"]]


def finite(samples: list[Sample]) -> list[Sample]:
    return [sample for sample in samples if math.isfinite(sample[1])]


@every_dashboard
def test_every_query_is_answered(prometheus: PrometheusProcess, name: str) -> None:
    for title, target in targets(DASHBOARDS[name]):
        answer = finite(prometheus.api.query(asked(target["expr"]), prometheus.scraped_at))
        assert answer, f"{title}: {target['expr']} is answered with nothing"
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert all(label in labels for labels, _ in answer), f"{title}: {label} in {answer}"


@every_dashboard
def test_every_variable_has_values(prometheus: PrometheusProcess, name: str) -> None:
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert prometheus.api.label_values(found[2], asked(found[1])), variable["name"]


def test_every_rule_is_evaluated(prometheus: PrometheusProcess) -> None:
    prometheus.until(
        lambda: all(rule["health"] != "unknown" for rule in prometheus.api.rules().values()),
        "rules are evaluated",
    )
    failed = {
        name: rule.get("lastError") for name, rule in prometheus.api.rules().items() if rule["health"] != "ok"
    }
    assert failed == {}
    assert prometheus.api.rules().keys() == set(
        re.findall(r"- alert: (\w+)", (CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    )


def test_what_nobody_exports_is_seen(prometheus: PrometheusProcess) -> None:
    assert prometheus.api.query("rltrain_run_nothing") == []
    assert prometheus.api.query('rltrain_run_step{node="x"}') == []
    with pytest.raises(AssertionError, match="many-to-many"):
        prometheus.api.query("rltrain_run_step + on (namespace) rltrain_run_step")


def families(page: str) -> set[str]:
    """Names of all series that a page may have, also of families without a sample."""
    found = set()
    for family in text_string_to_metric_families(page):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {f"{family.name}{end}" for end in ends}
    return found


class Operator(OperatorProcess):
    """The operator for one namespace."""

    def __init__(self, kube: KubeApi, namespace: str, folder: Path) -> None:
        super().__init__(kube.kubeconfig, folder / "operator.log", f"--namespace={namespace}")
        self.namespace = namespace


@pytest.fixture(scope="module")
def operator(kube: KubeApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """One that works with a run that starts, and one that waits."""
    prometheus_or_skip()
    namespace, folder = kube.new_namespace("boards"), tmp_path_factory.mktemp("operator")
    profile = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingProfile",
        "metadata": {"name": "loop"},
        "spec": {"pools": [{"name": "cpu"}]},
    }
    kube.apply(profile)
    process = Operator(kube, namespace, folder)
    try:
        process.start()
        process.until_works()
        kube.apply(run("sums"), namespace=namespace)
        process.until(lambda: rows(process, "rltrain_run_phase", 'phase="Starting"'), "the run starts")
        for name, status in STATUS.items():
            change = json.dumps({"status": {name: status}})
            kube.kubectl(
                "patch",
                "rlrun",
                "sums",
                "-n",
                namespace,
                "--subresource=status",
                "--type=merge",
                "-p",
                change,
            )
        process.until(lambda: rows(process, "rltrain_run_checkpoint_step"), "the figures are there")
        yield process
    finally:
        process.kill()
        kube.kubectl("delete", "rlprofile", "loop")


def rows(process: Operator, name: str, label: str = "") -> list[str]:
    return [one for one in process.metrics() if one.startswith(f"{name}{{") and label in one]


def test_a_real_operator_exports_what_is_asked_of_it(operator: Operator) -> None:
    asks = {name: targets(dashboard) for name, dashboard in DASHBOARDS.items()}
    expressions = [target["expr"] for found in asks.values() for _, target in found]
    expressions += [rule["expr"] for group in alerts() for rule in group["rules"]]
    asked_of_it = {name for one in expressions for name in metrics_of(one) if name.startswith("rltrain_")}
    assert asked_of_it - families(operator.page) == set()


def test_prometheus_reads_a_real_operator(kube: KubeApi, operator: Operator, tmp_path: Path) -> None:
    job = {
        "job_name": "metrics",
        "honor_labels": True,
        "static_configs": [
            {"targets": [operator.address], "labels": {"namespace": "rltrain-system", "pod": "p"}}
        ],
    }
    process = PrometheusProcess(tmp_path, [job], alerts())
    try:
        process.start()
        process.until_scraped(2)
        kube.apply(
            run("differences"), namespace=operator.namespace
        )  # so that it has something to do meanwhile
        operator.until(lambda: rows(operator, "rltrain_run_phase", "differences"), "another run")
        process.until_scraped(6, time.time())
        for name, titles in SHOWN.items():
            found = {
                title: process.api.query(asked(target["expr"]), process.scraped_at)
                for title, target in targets(DASHBOARDS[name])
            }
            assert {title for title in titles if not finite(found[title])} == set(), name
    finally:
        process.kill()
