"""Prometheus metrics of what runs and teams hold, wait for and have taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rl_operator.model.figures import Figures
from rl_operator.model.names import Key
from rl_operator.model.teams import Teams, held_by_team

Samples = Iterable[tuple[list[str], float]]


def of_records(runs: Mapping[Key, Figures]) -> Iterator[Metric]:
    """What is kept of each run, also of those that are over."""
    labels = ["namespace", "run"]
    yield gauge(
        "rltrain_run_accelerators",
        "Accelerators that a run holds now; pods, where it has none",
        [*labels, "pool"],
        (
            ([*key, name], pool.accelerators)
            for key, one in runs.items()
            for name, pool in one.record.pools
            if pool.accelerators
        ),
    )
    yield gauge(
        "rltrain_run_accelerator_seconds",
        "What became of the accelerators of a run; what is lost is trained no more",
        [*labels, "pool", "outcome"],
        (
            ([*key, name, outcome], seconds)
            for key, one in runs.items()
            for name, pool in one.record.pools
            for outcome, seconds in pool.outcomes.items()
            if seconds or _goes_on(one)
        ),
    )
    yield gauge(
        "rltrain_run_waited_seconds",
        "Seconds for which a run wanted pods and was not given any",
        labels,
        (([*key], one.record.waited) for key, one in runs.items() if one.record.waited or _goes_on(one)),
    )
    yield gauge(
        "rltrain_run_attempts",
        "Attempts that a run has begun",
        labels,
        (([*key], one.record.attempts) for key, one in runs.items()),
    )
    yield gauge(
        "rltrain_run_evictions",
        "How often the pods of a run were taken away",
        labels,
        (
            ([*key], one.record.evictions)
            for key, one in runs.items()
            if one.record.evictions or _goes_on(one)
        ),
    )
    yield gauge(
        "rltrain_run_drains",
        "How often the pods of a run had to leave their nodes, of its last evictions",
        labels,
        (([*key], one.record.drained) for key, one in runs.items() if one.record.drained or _goes_on(one)),
    )
    yield gauge(
        "rltrain_run_info",
        "1 for the hash of a run's spec, and what became of it: succeeded, failed, deleted, or nothing yet",
        [*labels, "spec_hash", "result"],
        (([*key, one.record.spec_hash, one.record.result], 1) for key, one in runs.items()),
    )
    queued = [(key, one.queued) for key, one in runs.items() if one.queued is not None]
    yield gauge(
        "rltrain_run_queue_position",
        "Place of a run among those that wait in its queue",
        [*labels, "queue"],
        (([*key, one.queue], one.position) for key, one in queued if one.position is not None),
    )
    yield gauge(
        "rltrain_run_queued_timestamp_seconds",
        "Since when a run waits in its queue",
        [*labels, "queue"],
        (([*key, one.queue], one.since) for key, one in queued if one.since is not None),
    )


def of_teams(teams: Teams, runs: Mapping[Key, Figures]) -> Iterator[Metric]:
    """What all runs of a namespace hold, and have come to since this process began."""
    held, waiting = held_by_team(runs)
    yield gauge(
        "rltrain_team_accelerators",
        "Accelerators that the runs of a namespace hold now; pods, of those that have none",
        ["namespace", "pool"],
        (([*key], count) for key, count in held.items()),
    )
    yield gauge(
        "rltrain_team_waiting_runs",
        "Runs of a namespace that want pods and have none",
        ["namespace"],
        (([namespace], count) for namespace, count in waiting.items()),
    )
    yield _counter(
        "rltrain_team_accelerator_seconds",
        "What became of the accelerators of a namespace's runs; trained is what a checkpoint, or the end, has saved",
        ["namespace", "pool", "outcome"],
        (([*key], seconds) for key, seconds in list(teams.seconds.items())),
    )
    yield _counter(
        "rltrain_team_waited_seconds",
        "Seconds for which runs of a namespace wanted pods and were not given any",
        ["namespace"],
        (([namespace], seconds) for namespace, seconds in list(teams.waited.items())),
    )
    yield _counter(
        "rltrain_team_runs",
        "Runs of a namespace by what became of them",
        ["namespace", "result"],
        (([*key], count) for key, count in list(teams.results.items())),
    )
    yield _counter(
        "rltrain_team_evictions",
        "How often pods of a namespace's runs were taken away, by reason",
        ["namespace", "reason"],
        (([*key], count) for key, count in list(teams.evictions.items())),
    )


def _goes_on(one: Figures) -> bool:
    """Whether its figures are shown also where they are 0: there are many more runs that are over."""
    return not one.record.result


def gauge(name: str, text: str, labels: list[str], values: Samples) -> GaugeMetricFamily:
    """A gauge with these samples."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family


def _counter(name: str, text: str, labels: list[str], values: Samples) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for of, value in values:
        family.add_metric(of, value)
    return family
