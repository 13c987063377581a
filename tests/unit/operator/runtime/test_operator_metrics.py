"""No tenant makes more series than there are answers."""

from __future__ import annotations

from rl_operator.model.figures import Figures
from rl_operator.model.record import PoolRecord, Queued, Record
from rl_operator.runtime.metrics import Metrics, Service


def test_whatever_drivers_answer_there_are_few_series() -> None:
    metrics = Metrics()
    for status in [*map(str, range(100, 1000)), "error"]:
        metrics.driver_called("status", status)
    found = {
        sample.labels["result"]: sample.value
        for metric in metrics.driver_calls.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }
    kept = {"200": 1, "401": 1, "409": 1, "error": 1}
    classes = {f"{first}xx": 100 for first in range(1, 10)}
    assert found == kept | classes | {"2xx": 99, "4xx": 98}


def test_runs_are_shown_by_phase_and_one_by_one() -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    numbers = (("step", 3.0), ("checkpoint_timestamp_seconds", 7.0))
    runs = {
        ("a", "trains"): Figures("Training", numbers=numbers),
        ("a", "waits"): Figures("Starting", waits=("ClusterReady", "Unschedulable")),
        ("b", "failed"): Figures("Failed", failed=5.0),
        ("b", "done"): Figures("Succeeded"),
    }
    metrics.show_runs({"Training": 1, "Starting": 1, "Failed": 1, "Succeeded": 1}, runs)
    assert value("rltrain_operator_runs", {"phase": "Succeeded"}) == 1
    trains, failed = {"namespace": "a", "run": "trains"}, {"namespace": "b", "run": "failed"}
    assert value("rltrain_run_phase", trains | {"phase": "Training"}) == 1
    assert value("rltrain_run_step", trains) == 3
    assert value("rltrain_run_checkpoint_timestamp_seconds", trains) == 7
    assert value("rltrain_run_failed_timestamp_seconds", failed) == 5
    waits = {"namespace": "a", "run": "waits", "condition": "ClusterReady", "reason": "Unschedulable"}
    assert value("rltrain_run_waits", waits) == 1
    assert value("rltrain_run_phase", {"namespace": "b", "run": "done", "phase": "Succeeded"}) is None
    metrics.show_runs({}, {})
    assert value("rltrain_run_step", trains) is None
    assert value("rltrain_operator_runs", {"phase": "Succeeded"}) is None


def test_promotions_of_a_service_count_from_zero_and_go_with_it() -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    one = {"namespace": "a", "service": "math"}
    metrics.show_services({("a", "math"): Service("Serving", 1, 2), ("a", "code"): Service("Failed", 0, 1)})
    assert value("rltrain_operator_services", {"phase": "Failed"}) == 1
    assert value("rltrain_operator_service_replicas", one | {"state": "ready"}) == 1
    assert value("rltrain_operator_service_replicas", one | {"state": "desired"}) == 2
    assert value("rltrain_operator_service_promotions_total", one | {"result": "refused"}) == 0
    metrics.promotions.labels("a", "math", "refused").inc()
    metrics.show_services({("a", "math"): Service("Serving", 2, 2)})
    assert value("rltrain_operator_service_promotions_total", one | {"result": "refused"}) == 1
    gone = {"namespace": "a", "service": "code", "result": "promoted"}
    assert value("rltrain_operator_service_promotions_total", gone) is None
    metrics.show_services({})
    assert value("rltrain_operator_service_promotions_total", one | {"result": "refused"}) is None
    assert value("rltrain_operator_service_replicas", one | {"state": "ready"}) is None


def test_the_record_of_a_run_is_shown_while_it_is_there_and_for_a_while_after() -> None:
    metrics = Metrics()
    value = metrics.registry.get_sample_value
    run, pool = {"namespace": "a", "run": "b"}, {"pool": "h100"}
    metrics.show_runs({}, {})
    held = PoolRecord(accelerators=8.0, trained=100.0, unsaved=40.0, started=5.0)
    record = Record(spec_hash="abc", attempts=2, evictions=1, pools=(("h100", held),), waited=9.0)
    one = Figures("Training", queued=Queued("main", 3, 7.0), record=record)
    metrics.show_runs({"Training": 1}, {("a", "b"): one})
    assert value("rltrain_run_accelerators", run | pool) == 8
    assert value("rltrain_run_accelerator_seconds", run | pool | {"outcome": "trained"}) == 100
    assert value("rltrain_run_accelerator_seconds", run | pool | {"outcome": "evicted"}) == 0
    assert value("rltrain_run_waited_seconds", run) == 9
    assert (value("rltrain_run_attempts", run), value("rltrain_run_evictions", run)) == (2, 1)
    assert value("rltrain_run_info", run | {"spec_hash": "abc", "result": ""}) == 1
    assert value("rltrain_run_queue_position", run | {"queue": "main"}) == 3
    assert value("rltrain_run_queued_timestamp_seconds", run | {"queue": "main"}) == 7
    assert value("rltrain_team_accelerators", {"namespace": "a"} | pool) == 8
    assert value("rltrain_team_waiting_runs", {"namespace": "a"}) == 0
    team = {"namespace": "a"} | pool
    assert value("rltrain_team_accelerator_seconds_total", team | {"outcome": "trained"}) == 60
    metrics.run_deleted(("a", "b"), one)
    metrics.show_runs({}, {})
    assert value("rltrain_run_accelerators", run | pool) is None
    assert value("rltrain_run_info", run | {"spec_hash": "abc", "result": "deleted"}) == 1
    assert value("rltrain_run_accelerator_seconds", run | pool | {"outcome": "failed"}) == 40
    assert value("rltrain_run_accelerator_seconds", run | pool | {"outcome": "evicted"}) is None
    assert value("rltrain_team_accelerators", team) is None
    assert value("rltrain_team_accelerator_seconds_total", team | {"outcome": "failed"}) == 40
    assert value("rltrain_team_runs_total", {"namespace": "a", "result": "deleted"}) == 1
