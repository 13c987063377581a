"""What runs of a namespace come to: counted once, never falling, kept when the run is gone."""

from __future__ import annotations

from typing import Any

import pytest

from rl_api.progress import RunStatus
from rl_operator.model.figures import Figures, figures_of
from rl_operator.model.record import OUTCOMES, PoolRecord, Record, record_of
from rl_operator.model.teams import FORGOTTEN_SECONDS, KEPT_SECONDS, MOST_KEPT, Teams, held_by_team

KEY = ("team-a", "sums")


def status(phase: str = "Training", **fields: Any) -> dict[str, Any]:
    pool = {"accelerators": 2, "trained": 100.0, "unsaved": 30.0, "started": 10.0, "evicted": 4, "failed": 5}
    return {
        "phase": phase,
        "effectiveSpecHash": "abc",
        "conditions": [{"type": "Accepted", "status": "True"}],
        "attempts": [{"number": 3, "preemptions": 2}],
        "evictions": [{"attempt": 3, "reason": "Preempted", "time": "2026-01-01T00:00:00Z"}],
        "usage": {"waitedSeconds": 7.0, "pools": {"h100": pool}},
        **fields,
    }


def run(made: str = "2026", **fields: Any) -> Figures:
    return figures_of(made, status(**fields))


def with_pool(figures: Figures, **fields: float) -> Figures:
    document = status(figures.phase)
    document["usage"]["pools"]["h100"] |= fields
    return figures_of(figures.made, document)


def counted(teams: Teams) -> dict[str, float]:
    return {outcome: teams.seconds["team-a", "h100", outcome] for outcome in OUTCOMES}


def test_the_record_of_a_run_is_what_its_status_says() -> None:
    assert record_of(status()) == Record(
        spec_hash="abc",
        attempts=3,
        evictions=2,
        evicted=(("2026-01-01T00:00:00Z", "Preempted"),),
        pools=(("h100", PoolRecord(2.0, 100.0, 30.0, 10.0, 4.0, 5.0)),),
        waited=7.0,
    )
    assert RunStatus.model_validate(status()).usage is not None, "the test's own status is one"


@pytest.mark.parametrize(
    "broken",
    [
        {"usage": []},
        {"usage": {"pools": [1], "waitedSeconds": "x"}},
        {"usage": {"pools": {"h100": None}}},
        {"usage": {"pools": {"h100": {"trained": -1, "started": float("nan"), "failed": 10**400}}}},
    ],
)
def test_what_cannot_be_read_counts_as_nothing(broken: dict[str, Any]) -> None:
    found = record_of({**status(), **broken, "attempts": "none", "evictions": {"a": 1}, "conditions": 3})
    assert found.waited == found.attempts == found.evictions == 0
    assert all(pool == PoolRecord() for _, pool in found.pools)


def test_drained_nodes_are_told_apart_from_other_evictions() -> None:
    listed = [
        {"attempt": 1, "reason": reason, "time": "2026-01-01T00:00:00Z"}
        for reason in ("NodeDrained", "Preempted")
    ]
    found = record_of(status(evictions=listed))
    assert (found.evictions, found.drained) == (2, 1)


def test_what_runs_had_before_the_operator_began_is_not_counted_again() -> None:
    teams = Teams()
    teams.see({KEY: run()}, 0.0)
    assert set(counted(teams).values()) == {0.0}
    teams.see({KEY: with_pool(run(), trained=150.0, unsaved=20.0, started=11.0)}, 5.0)
    assert counted(teams) == {"trained": 60.0, "started": 1.0, "evicted": 0.0, "failed": 0.0}


def test_a_run_that_is_new_counts_from_its_beginning() -> None:
    teams = Teams()
    teams.see({}, 0.0)
    teams.see({KEY: run()}, 5.0)
    assert counted(teams) == {"trained": 70.0, "started": 10.0, "evicted": 4.0, "failed": 5.0}
    assert (teams.waited, teams.evictions) == ({"team-a": 7.0}, {("team-a", "Preempted"): 1})


def test_no_counter_falls_when_what_was_trained_is_lost() -> None:
    teams = Teams()
    teams.see({}, 0.0)
    teams.see({KEY: run()}, 5.0)
    teams.see({KEY: with_pool(run(), trained=70.0, unsaved=0.0, failed=35.0)}, 10.0)
    assert counted(teams) == {"trained": 70.0, "started": 10.0, "evicted": 4.0, "failed": 35.0}


def test_an_eviction_counts_once_also_when_older_ones_are_no_longer_listed() -> None:
    def evicted(*days: int) -> dict[str, Any]:
        listed = [
            {"attempt": 1, "reason": "Preempted", "time": f"2026-01-{day:02}T00:00:00Z"} for day in days
        ]
        return {"evictions": listed}

    teams = Teams()
    teams.see({}, 0.0)
    for days in ((1, 2), (2, 3), (2, 3)):
        teams.see({KEY: run(**evicted(*days))}, 1.0)
    assert teams.evictions == {("team-a", "Preempted"): 3}


@pytest.mark.parametrize(
    ("phase", "result", "failed"), [("Training", "deleted", 35.0), ("Succeeded", "succeeded", 35.0)]
)
def test_what_a_run_had_stays_when_it_is_gone(phase: str, result: str, failed: float) -> None:
    teams = Teams()
    teams.see({}, 0.0)
    teams.see({KEY: run()}, 5.0)
    teams.gone(KEY, run(phase=phase), 6.0)  # its end was seen with its deletion alone
    teams.see({}, 10.0)
    assert {key: count for key, count in teams.results.items() if count} == {("team-a", result): 1}
    assert counted(teams) == {"trained": 70.0, "started": 10.0, "evicted": 4.0, "failed": failed}
    (kept,) = teams.kept().values()
    assert (kept.record.result, kept.record.pools[0][1].accelerators) == (result, 0.0)
    teams.see({}, 6.0 + KEPT_SECONDS)
    assert teams.kept() == {}
    assert teams.results["team-a", result] == 1


def test_a_run_that_is_there_again_goes_on_and_a_later_one_of_its_name_begins_anew() -> None:
    teams = Teams()
    teams.see({}, 0.0)
    teams.see({KEY: run(phase="Succeeded")}, 1.0)
    teams.see({}, 2.0)  # the API server does not know the kind for a moment
    teams.see({KEY: run(phase="Succeeded")}, 3.0)
    assert teams.results["team-a", "succeeded"] == 1
    assert teams.seconds["team-a", "h100", "started"] == 10.0
    teams.see({KEY: run("2027")}, 4.0)
    assert teams.seconds["team-a", "h100", "started"] == 20.0


def test_pools_with_long_names_are_told_apart() -> None:
    pools = {f"{'a' * 63}+{last}": {"trained": 1.0} for last in "bc"}
    teams = Teams()
    teams.see({}, 0.0)
    for look in (1.0, 2.0):
        teams.see({KEY: figures_of("2026", status(usage={"pools": pools}))}, look)
    assert {pool: teams.seconds["team-a", pool, "trained"] for pool in pools} == dict.fromkeys(pools, 1.0)


def test_a_namespace_that_deletes_many_runs_leaves_the_others_theirs() -> None:
    many = {("team-b", f"run-{number}"): run() for number in range(MOST_KEPT + 1)}
    teams = Teams()
    teams.see({KEY: run(), **many}, 0.0)
    teams.see(many, 1.0)
    for key in many:
        teams.gone(key, None, 2.0)
    assert set(teams.kept()) == {KEY, *many} - {("team-b", "run-0")}


def test_a_namespace_without_runs_is_forgotten_and_counts_anew() -> None:
    other = ("team-b", "stays")
    teams = Teams()
    teams.see({other: run()}, 0.0)
    teams.see({KEY: run(), other: run()}, 1.0)
    teams.see({other: run()}, 10.0)
    teams.see({other: run()}, 10.0 + FORGOTTEN_SECONDS - 1)
    assert teams.waited == {"team-a": 7.0, "team-b": 0.0}
    teams.see({other: run()}, 10.0 + FORGOTTEN_SECONDS)
    counters = (teams.seconds, teams.results, teams.evictions)
    assert {key[0] for sums in counters for key in sums} == {"team-b"} == set(teams.waited)
    teams.see({KEY: run("2027"), other: run()}, 20.0 + FORGOTTEN_SECONDS)
    assert counted(teams) == {"trained": 70.0, "started": 10.0, "evicted": 4.0, "failed": 5.0}


def test_a_run_that_is_to_be_tried_again_later_does_not_wait() -> None:
    def waits(reason: str) -> bool:
        accepted, ready = {"type": "Accepted", "status": "True"}, {"type": "ClusterReady", "status": "False"}
        return record_of(status(usage=None, conditions=[accepted, ready | {"reason": reason}])).waits

    assert waits("Starting")
    assert not waits("Retrying")


def test_what_is_held_now_is_summed_over_all_runs() -> None:
    other = figures_of("2026", status(usage=None))
    held, waiting = held_by_team({KEY: run(), ("team-a", "b"): run(), ("team-b", "c"): other})
    assert held == {("team-a", "h100"): 4.0}
    assert waiting == {"team-a": 0, "team-b": 1}
