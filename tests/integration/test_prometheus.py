"""Dashboards and alerts of the chart, asked of a real Prometheus.

It scrapes pages on which every family has a sample, of two pods each, so that a query that matches no one-to-one fails; and
the page of a real operator that works with a real kube-apiserver.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from chart_rendering import CHART, one, render
from metrics_pages import of_operator, of_replica, served
from prometheus_process import PrometheusProcess, Sample, asked, prometheus_or_skip

DASHBOARDS = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted((CHART / "files" / "dashboards").glob("*.json"))
}
PODS = ("p", "q")

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


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusProcess]:
    """One that has scraped all pages several times, with the chart's rules."""
    prometheus_or_skip()
    rules = one(render("alerts.enabled=true"), "PrometheusRule")["spec"]["groups"]
    with served({"/operator": of_operator(), "/replica": of_replica()}) as address:
        scrapes = [
            scrape("operator", address, namespace="rltrain-system"),
            scrape("replica", address, namespace="a"),
        ]
        process = PrometheusProcess(tmp_path_factory.mktemp("prometheus"), scrapes, rules)
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
        answer = finite(prometheus.api.query(asked(target["expr"])))
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
