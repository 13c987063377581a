"""Every metric of rltrain that Prometheus sees on a cluster, with its labels: from the code that exports it.

A run's driver is not among them: it answers nobody but the operator, which shows what it says as `rltrain_run_...`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import promql_parser
import pytest
from prometheus_client.core import Metric
from serving_metrics import series

TARGET: Final = frozenset({"namespace", "pod", "container", "instance", "job", "endpoint"})
"""Labels that Prometheus gives a pod's metrics."""


def filled() -> Any:
    """The operator's own metrics, with a sample of every family."""
    metrics = pytest.importorskip("rl_operator.runtime.metrics")
    figures = pytest.importorskip("rl_operator.model.figures")
    found = metrics.Metrics()
    numbers = tuple((name, 1.0) for name in figures.NUMBERS)
    trains = figures.Figures("Training", waits=("ClusterReady", "Starting"), numbers=numbers)
    found.show_runs({"Training": 1}, {("a", "b"): trains, ("a", "c"): figures.Figures("Failed", failed=1.0)})
    found.show_services({("a", "s"): metrics.Service("Serving", 1, 1)})
    found.leader.set(1)
    count(found)
    return found


def count(metrics: Any) -> None:
    """Something of all that counts happens."""
    metrics.api_called("list", "Pod", "200", 0.1)
    metrics.api_called("create", "RayJob", "403", 0.1)
    metrics.driver_called("status", "200")
    metrics.errors.labels("Unexpected").inc()
    metrics.reconcile_seconds.observe(0.1)
    for result in ("promoted", "refused", "rolled_back", "stuck"):
        metrics.promotions.labels("a", "s", result).inc()


def of_operator() -> dict[str, set[str]]:
    """The operator's."""
    return _series(filled().registry.collect())


def of_serving() -> dict[str, set[str]]:
    """Those of replicas, as Ray exports them."""
    return dict(series())


def exported() -> dict[str, set[str]]:
    """All of them: labels by name."""
    return of_operator() | of_serving()


def _series(families: Iterable[Metric]) -> dict[str, set[str]]:
    return {
        sample.name: set(sample.labels)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def problems(expression: str, known: dict[str, set[str]]) -> list[str]:
    """What is wrong with a PromQL expression: it is none, or asks for a metric or a label that nobody exports.

    Labels by which it sums and joins must be on each of its metrics.
    """
    try:
        selectors = list(_selectors(promql_parser.parse(expression)))
    except ValueError as error:
        return [f"{expression}: {error}"]
    if not selectors:
        return [f"{expression}: asks for no metric"]
    found = []
    grouped = {
        label.strip()
        for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
        for label in labels.split(",")
        if label.strip()
    }
    for selector in selectors:
        if selector.name not in known:
            found.append(f"{selector.name} is exported by nobody")
            continue
        labels = known[selector.name] | TARGET
        asked = {matcher.name for matcher in selector.matchers.matchers} | grouped
        found += [f"{selector.name} has no label {label}" for label in sorted(asked - labels)]
    return found


def _selectors(node: Any) -> Iterable[Any]:
    """All vector selectors below a node of the parser's tree."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield from _selectors(node.vector_selector)
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from _selectors(node.lhs)
        yield from _selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from _selectors(argument)
    elif not isinstance(node, promql_parser.NumberLiteral | promql_parser.StringLiteral):
        yield from _selectors(node.expr)
