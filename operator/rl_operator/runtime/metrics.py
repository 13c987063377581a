"""Prometheus metrics of the operator."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rl_operator.model.figures import ENDED, NUMBERS, Figures, shown
from rl_operator.model.names import Key
from rl_operator.model.teams import Teams
from rl_operator.runtime.fleet_metrics import gauge, of_records, of_teams

PROMOTIONS: Final = ("promoted", "refused", "rolled_back", "stuck")
"""What may become of a candidate of a policy service."""

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
        self.promotions = Counter(
            "rltrain_operator_service_promotions",
            "Candidates of policy services, by what became of them",
            ["namespace", "service", "result"],
            registry=registry,
        )
        self.teams = Teams()
        self._services: set[Key] = set()
        self._shown = _Shown(self.teams)
        registry.register(self._shown)

    def api_called(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """A request to the API server was answered, or not (`none`)."""
        self.api_calls.labels(verb, kind, code).inc()
        self.api_seconds.labels(verb).observe(seconds)

    def driver_called(self, path: str, result: str) -> None:
        """A request to a driver was answered, or failed (`error`). It may answer any number: others count by their class."""
        shown = result if result in _ANSWERS else f"{result[0]}xx"
        self.driver_calls.labels(path, shown).inc()

    def show_runs(self, phases: Mapping[str, int], figures: Mapping[Key, Figures]) -> None:
        """Set the number of runs by phase, and the figures of single runs."""
        self.teams.see(figures, time.monotonic())
        self._shown.phases, self._shown.all_runs = phases, figures
        self._shown.runs, self._shown.gone = shown(figures), shown(self.teams.kept())

    def run_deleted(self, key: Key, last: Figures) -> None:
        """A run is gone, of which this was the last."""
        self.teams.gone(key, last, time.monotonic())

    def show_services(self, services: Mapping[Key, Service]) -> None:
        """Set what is known of policy services: all of them, others are forgotten.

        Their promotions count from 0, so that Prometheus sees the first one rise.
        """
        for namespace, name in self._services - services.keys():
            for result in PROMOTIONS:
                self.promotions.remove(namespace, name, result)
        for namespace, name in services.keys() - self._services:
            for result in PROMOTIONS:
                self.promotions.labels(namespace, name, result)
        self._services = set(services)
        self._shown.services = dict(services)


@dataclass(frozen=True, slots=True)
class Service:
    """A policy service between two scrapes."""

    phase: str
    ready: int = 0
    """Replicas that answer."""
    desired: int = 0
    """Replicas wanted."""


class _Shown(Collector):
    """Runs and services as they were put down last. Each is replaced as a whole, so that a scrape, which has a thread of its
    own, never sees half of them."""

    def __init__(self, teams: Teams) -> None:
        self._teams = teams
        self.phases: Mapping[str, int] = {}
        self.all_runs: Mapping[Key, Figures] = {}
        self.runs: Mapping[Key, Figures] = {}
        """Those of `all_runs` that are shown one by one."""
        self.gone: Mapping[Key, Figures] = {}
        """Runs that are gone, of which the record is still shown."""
        self.services: Mapping[Key, Service] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield all families, also those without a sample."""
        phases, runs, gone, services = self.phases, self.runs, self.gone, self.services
        yield gauge(
            "rltrain_operator_runs", "Runs by phase", ["phase"], (([p], n) for p, n in phases.items())
        )
        yield from _of_runs(runs)
        yield from of_records({**gone, **runs})
        yield from of_teams(self._teams, self.all_runs)
        counts: dict[str, int] = {}
        for one in services.values():
            counts[one.phase] = counts.get(one.phase, 0) + 1
        yield gauge(
            "rltrain_operator_services",
            "Policy services by phase",
            ["phase"],
            (([p], n) for p, n in counts.items()),
        )
        yield gauge(
            "rltrain_operator_service_replicas",
            "Replicas of policy services: ready, and desired",
            ["namespace", "service", "state"],
            (
                ([*key, state], number)
                for key, one in services.items()
                for state, number in (("ready", one.ready), ("desired", one.desired))
            ),
        )


def _of_runs(runs: Mapping[Key, Figures]) -> Iterator[Metric]:
    labels = ["namespace", "run"]
    yield gauge(
        "rltrain_run_phase",
        "1 for the phase that a run is in; runs that succeeded are left out",
        [*labels, "phase"],
        (([*key, one.phase], 1) for key, one in runs.items() if one.phase not in ENDED - {"Failed"}),
    )
    yield gauge(
        "rltrain_run_waits",
        "1 for the first condition that a run which is to train does not meet",
        [*labels, "condition", "reason"],
        (([*key, *one.waits], 1) for key, one in runs.items() if one.waits is not None),
    )
    yield gauge(
        "rltrain_run_failed_timestamp_seconds",
        "When a run failed",
        labels,
        (([*key], one.failed) for key, one in runs.items() if one.failed is not None),
    )
    values: dict[str, list[tuple[list[str], float]]] = {name: [] for name in NUMBERS}
    for key, one in runs.items():
        for name, value in one.numbers:
            values[name].append(([*key], value))
    for name, (_, _, text) in NUMBERS.items():
        yield gauge(f"rltrain_run_{name}", text, labels, values[name])
