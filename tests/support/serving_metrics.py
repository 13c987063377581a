"""What replicas of a policy service export: held against Ray's agents on a cluster, and against dashboards and alerts."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

SERVING: Final[dict[str, tuple[str, set[str]]]] = {
    "rltrain_serve_requests_total": ("counter", {"service", "version", "code"}),
    "rltrain_serve_tokens_total": ("counter", {"service", "version", "kind"}),
    "rltrain_serve_prefills_total": ("counter", {"service", "outcome"}),
    "rltrain_serve_queue": ("gauge", {"service"}),
    "rltrain_serve_running": ("gauge", {"service"}),
    "rltrain_serve_ttft_seconds": ("histogram", {"service", "version"}),
    "rltrain_serve_token_seconds": ("histogram", {"service", "version"}),
    "rltrain_serve_latency_seconds": ("histogram", {"service", "version"}),
}
"""Type and labels by name, before Ray's prefix `ray_`."""


def series() -> Iterator[tuple[str, set[str]]]:
    """Names and labels as Prometheus has them."""
    for name, (kind, labels) in SERVING.items():
        if kind == "histogram":
            yield f"ray_{name}_bucket", labels | {"le"}
            yield f"ray_{name}_sum", labels
            yield f"ray_{name}_count", labels
        else:
            yield f"ray_{name}", labels


def missing(page: str, but: Collection[str] = ()) -> list[str]:
    """Series, `but` these, that a page which Prometheus reads does not have, or not with their labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set(sample.labels))
    return [
        f"{name} has {sorted(found.get(name, ()))}, not {sorted(labels)}"
        for name, labels in series()
        if name not in but and not labels <= found.get(name, set())
    ]


class Replica:
    """One that has answered well and badly, and does so again and again."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
        self._all = [
            (kinds[kind](f"ray_{name}", name, sorted(labels), registry=self.registry), labels)
            for name, (kind, labels) in SERVING.items()
        ]

    def count(self) -> None:
        """Something of all that counts happens."""
        for metric, labels in self._all:
            for code in ("200", "429", "503"):
                one = metric.labels(**{label: code if label == "code" else label for label in labels})
                if isinstance(one, Histogram):
                    one.observe(0.1)
                else:
                    one.inc()
