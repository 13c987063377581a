"""What dashboard and alerts ask of Kueue's own metrics, on the page of a real Kueue that a real Prometheus scrapes."""

from __future__ import annotations

import json
from pathlib import Path

from chart_rendering import CHART, one, render
from exported_metrics import metrics_of
from kueue_metrics import KUEUE
from kueue_process import QueuedCluster
from kueue_queues import ACCELERATOR, Queue, pod_sets
from prometheus_process import Prometheus, PrometheusProcess, prometheus_or_skip

DASHBOARD = json.loads((CHART / "files" / "dashboards" / "fleet.json").read_text(encoding="utf-8"))
QUOTA = 8
SECONDS = 240.0


def holds(queues: QueuedCluster, folder: Path) -> PrometheusProcess:
    """A Prometheus that scrapes the Kueue of a cluster."""
    job = {
        "job_name": "kueue",
        "scheme": "https",
        "tls_config": {"insecure_skip_verify": True},
        "authorization": {"credentials": queues.kube.token},
        "static_configs": [{"targets": [queues.kueue.metrics_address]}],
    }
    return PrometheusProcess(folder, [job])


def has_labels(api: Prometheus, name: str) -> bool:
    """Whether there are series of a metric, and none without its labels. An empty label is none to Prometheus."""
    known = KUEUE[name] - {"cohort"}
    found = api.query(name)
    return bool(found) and all(known <= labels.keys() for labels, _ in found)


def test_a_real_kueue_exports_what_is_asked_of_it(queued: QueuedCluster, tmp_path: Path) -> None:
    prometheus_or_skip()
    rule = next(
        rule
        for group in one(render("alerts.enabled=true"), "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"] == "RLTrainQuotaUnused"
    )
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    quotas = [
        expression for expression in expressions if any("kueue" in name for name in metrics_of(expression))
    ]
    asked = {name for expression in [rule["expr"], *quotas] for name in metrics_of(expression)}
    assert quotas
    assert asked == KUEUE.keys()

    idle, short = Queue(queued.kube, QUOTA, cohortName="ml"), Queue(queued.kube, QUOTA, cohortName="ml")
    idle.submit("small", 0, pod_sets(1, 1))
    idle.until_admitted("small")
    short.submit("large", 0, pod_sets(20, 1))
    short.until_waits("large")
    process = holds(queued, tmp_path)
    try:
        process.start()
        process.until(lambda: all(has_labels(process.api, name) for name in KUEUE), "Kueue shows all of them")

        def as_wanted() -> bool:
            for expression in quotas:
                shares = {labels["cluster_queue"]: value for labels, value in process.api.query(expression)
                          if labels["resource"] == ACCELERATOR}  # fmt: skip
                if shares.get(idle.namespace) != 2 / QUOTA:
                    return False
            unused = ({"cohort": "ml", "resource": ACCELERATOR}, 1 - 2 / (2 * QUOTA))
            return process.api.query(rule["expr"]) == [unused]

        def nobody_waits() -> bool:
            scraped = process.api.query("up")
            return bool(scraped) and scraped[0][1] == 1 and process.api.query(rule["expr"]) == []

        # A page that is late is none until it is read again: then there are no series at all.
        process.until(as_wanted, "both queues are as they are, and so is what is unused", SECONDS)
        short.delete("large")
        process.until(nobody_waits, "nobody waits any more", SECONDS)
    finally:
        process.kill()
