"""Prometheus metrics of the operator."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_ANSWERS: Final = frozenset({"200", "401", "409", "error"})


class Metrics:
    """All metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.reconcile_seconds = Histogram(
            "rltrain_operator_reconcile_seconds",
            "Duration of one reconcile of a run",
            registry=registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
        )
        self.queue_depth = Gauge(
            "rltrain_operator_queue_depth", "Runs that wait to be reconciled", registry=registry
        )
        self.api_calls = Counter(
            "rltrain_operator_api_calls",
            "Requests to the API server",
            ["verb", "kind", "code"],
            registry=registry,
        )
        self.api_seconds = Histogram(
            "rltrain_operator_api_seconds",
            "Duration of requests to the API server",
            ["verb"],
            registry=registry,
        )
        self.runs = Gauge("rltrain_operator_runs", "Runs by phase", ["phase"], registry=registry)
        self.unreadable = Gauge(
            "rltrain_operator_unreadable_runs",
            "Runs with which nothing is done, as their status cannot be read",
            registry=registry,
        )
        self.errors = Counter(
            "rltrain_operator_errors", "Reconciles that failed, by reason", ["reason"], registry=registry
        )
        self.driver_calls = Counter(
            "rltrain_operator_driver_calls", "Requests to drivers", ["path", "result"], registry=registry
        )
        self.leader = Gauge(
            "rltrain_operator_leader", "1 while this operator is the one that acts", registry=registry
        )

    def api_called(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """A request to the API server was answered, or not (`none`)."""
        self.api_calls.labels(verb, kind, code).inc()
        self.api_seconds.labels(verb).observe(seconds)

    def driver_called(self, path: str, result: str) -> None:
        """A request to a driver was answered, or failed (`error`). It may answer any number: others count by their class."""
        shown = result if result in _ANSWERS else f"{result[0]}xx"
        self.driver_calls.labels(path, shown).inc()

    def show_runs(self, phases: dict[str, int]) -> None:
        """Set the number of runs by phase."""
        self.runs.clear()
        for phase, count in phases.items():
            self.runs.labels(phase).set(count)
