"""Every metric that Prometheus sees on a cluster and rltrain asks for, with its labels: from the code that exports it.

A run's driver is not among them: it answers nobody but the operator, which shows what it says as `rltrain_run_...`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import promql_parser
import pytest
from kueue_metrics import KUEUE
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
    record = pytest.importorskip("rl_operator.model.record")
    known = record.Record(
        pools=(("h100", record.PoolRecord(1.0, trained=1.0, started=1.0, evicted=1.0, failed=1.0)),),
        evicted=(("2026", "Preempted"),),
    )
    trains = figures.Figures(
        "Training",
        waits=("ClusterReady", "Starting"),
        numbers=numbers,
        queued=record.Queued("main", 1, 1.0),
        record=known,
    )
    found.show_runs({}, {})
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
    for key in metrics.teams.seconds:
        metrics.teams.seconds[key] += 1.0
    for result in ("promoted", "refused", "rolled_back", "stuck"):
        metrics.promotions.labels("a", "s", result).inc()


def of_operator() -> dict[str, set[str]]:
    """The operator's."""
    return _series(filled().registry.collect())


def of_serving() -> dict[str, set[str]]:
    """Those of replicas, as Ray exports them."""
    return dict(series())


def exported() -> dict[str, set[str]]:
    """All of them, and Kueue's: labels by name."""
    return of_operator() | of_serving() | {name: set(labels) for name, labels in KUEUE.items()}


def _series(families: Iterable[Metric]) -> dict[str, set[str]]:
    return {
        sample.name: set(sample.labels)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def problems(expression: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """What is wrong with a PromQL expression: it is none, or asks for a metric or a label that nobody exports.

    Labels by which it sums and joins must be among those that are there at that place.
    """
    found: list[str] = []
    try:
        tree = promql_parser.parse(expression)
    except ValueError as error:
        return [f"{expression}: {error}"]
    if not list(_selectors(tree)):
        return [f"{expression}: asks for no metric"]
    _labels(tree, known, found)
    return list(dict.fromkeys(found))


def metrics_of(expression: str) -> set[str]:
    """Metrics that an expression asks for."""
    return {selector.name for selector in _selectors(promql_parser.parse(expression))}


def labels_of(expression: str, known: Mapping[str, Collection[str]]) -> set[str]:
    """Labels of what an expression gives."""
    return _labels(promql_parser.parse(expression), known, [])


def _labels(node: Any, known: Mapping[str, Collection[str]], problems: list[str]) -> set[str]:
    """Labels of what a node gives; what is wrong below it is added to the problems."""
    if isinstance(node, promql_parser.VectorSelector):
        if node.name not in known:
            problems.append(f"{node.name} is exported by nobody")
            return set()
        labels = set(known[node.name]) | TARGET
        return _with(labels, {one.name for one in node.matchers.matchers}, node, problems)
    if isinstance(node, promql_parser.MatrixSelector):
        return _labels(node.vector_selector, known, problems)
    if isinstance(node, promql_parser.AggregateExpr):
        labels = _labels(node.expr, known, problems)
        by = node.modifier
        if by is not None and by.type == promql_parser.AggModifierType.Without:
            return labels - set(by.labels)
        if by is None:
            return labels if str(node.op) in ("topk", "bottomk") else set()
        _with(labels, set(by.labels), node, problems)
        return set(by.labels)
    if isinstance(node, promql_parser.BinaryExpr):
        return _joined(node, known, problems)
    if isinstance(node, promql_parser.Call):
        labels = set[str]().union(*(_labels(one, known, problems) for one in node.args))
        return labels | {node.args[1].val} if node.func.name == "label_replace" else labels
    if isinstance(node, promql_parser.NumberLiteral | promql_parser.StringLiteral):
        return set()
    return _labels(node.expr, known, problems)


def _joined(node: Any, known: Mapping[str, Collection[str]], problems: list[str]) -> set[str]:
    left, right = _labels(node.lhs, known, problems), _labels(node.rhs, known, problems)
    how = node.modifier
    if how is None or how.matching is None:
        return left | right
    on = set(how.matching.labels)
    _with(left, on, node.lhs, problems)
    _with(right, on, node.rhs, problems)
    if str(node.op) in ("and", "or", "unless"):
        return left
    if how.card == promql_parser.VectorMatchCardinality.OneToOne:
        return on
    many = left if how.card == promql_parser.VectorMatchCardinality.ManyToOne else right
    return many | set(how.group_labels or ())


def _with(labels: set[str], asked: set[str], node: Any, problems: list[str]) -> set[str]:
    names = " and ".join(dict.fromkeys(one.name for one in _selectors(node)))
    problems += [f"{names} has no label {label}" for label in sorted(asked - labels)]
    return labels


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
