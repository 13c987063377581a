"""From run objects to who holds, who waits, and what became of accelerators."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rl_cli.failures import ClusterError
from rl_cli.main import main
from rl_cli.top import document, lines
from rl_cli.top_view import (
    group_table,
    headline,
    laid_out,
    pools_of,
    run_table,
    sorted_groups,
    sorted_runs,
    teams_of,
    top_run,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ACCEPTED = {"type": "Accepted", "status": "True"}


def run(name: str, namespace: str = "team-a", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-02T00:00:00Z"}
    return {"metadata": metadata, "spec": {}, "status": {"conditions": [ACCEPTED], **status}}


def usage(pool: str = "h100", held: float = 0.0, waited: float = 0.0, **seconds: float) -> dict[str, Any]:
    one = {"accelerators": held, **seconds}
    return {"pools": {pool: one}, "waitedSeconds": waited, "updatedAt": "2026-01-02T03:04:00Z"}


TRAINS = run(
    "trains",
    phase="Training",
    progress={"step": 3, "samplerBusy": 0.9, "learnerBusy": 0.5},
    usage=usage(held=12.0, waited=60.0, trained=7200, started=3600, evicted=1800, failed=360),
    attempts=[{"number": 2, "preemptions": 3}],
)
SMALL = run(
    "small",
    namespace="team-b",
    phase="Training",
    progress={"samplerBusy": 0.1},
    usage=usage("a100", held=4.0),
)
WAITS = run(
    "waits",
    phase="Pending",
    conditions=[ACCEPTED, {"type": "Admitted", "status": "False", "message": "needs 8 h100, 4 free"}],
    queue={"name": "main", "position": 3, "waiting": 7},
    usage=usage(waited=100.0),
)
DONE = run(
    "done",
    phase="Succeeded",
    conditions=[{"type": "Succeeded", "status": "True"}],
    usage=usage(trained=36000.0),
)
SUSPENDED = run("asleep", phase="Suspended", conditions=[ACCEPTED, {"type": "Suspended", "status": "True"}])
RUNS = [top_run(one, NOW) for one in (WAITS, DONE, SUSPENDED, SMALL, TRAINS)]


def test_a_line_for_each_run_who_holds_first_then_who_waits() -> None:
    table = run_table(sorted_runs(RUNS, "held"), namespaces=True)
    assert table == [
        [*("NAMESPACE", "RUN", "PHASE", "HELD", "POOL", "QUEUE", "SAMPLERS", "LEARNERS"),
         *("TRAINED", "STARTED", "EVICTED", "FAILED", "WAITED", "WHY")],
        [*("team-a", "trains", "Training", "12", "h100", "-", "90%", "50%"),
         *("2.0h", "1.0h", "0.5h", "0.1h", "1 min", "")],
        [*("team-b", "small", "Training", "4", "a100", "-", "10%", "-"),
         *("0.0h", "0.0h", "0.0h", "0.0h", "0 s", "")],
        [*("team-a", "waits", "Pending", "0", "-", "3/7", "-", "-"),
         *("0.0h", "0.0h", "0.0h", "0.0h", "1 min", "needs 8 h100, 4 free")],
        [*("team-a", "asleep", "Suspended", "0", "-", "-", "-", "-"),
         *("0.0h", "0.0h", "0.0h", "0.0h", "0 s", "")],
        [*("team-a", "done", "Succeeded", "0", "-", "-", "-", "-"),
         *("10.0h", "0.0h", "0.0h", "0.0h", "0 s", "")],
    ]  # fmt: skip
    assert run_table(RUNS, namespaces=False)[0][0] == "RUN"


def test_what_waits_has_waited_up_to_now() -> None:
    assert top_run(WAITS, NOW).waited == 105.0
    assert top_run(TRAINS, NOW).waited == 60.0


@pytest.mark.parametrize("reason", ["Retrying", "Stopping", "Suspended", "Finished"])
def test_what_wants_no_pods_for_now_does_not_wait(reason: str) -> None:
    ready = {"type": "ClusterReady", "status": "False", "reason": reason}
    stands = top_run(
        run("stands", phase="Pending", conditions=[ACCEPTED, ready], usage=usage(waited=9.0)), NOW
    )
    assert (stands.state, stands.waited) == ("stands", 9.0)
    starting = ready | {"reason": "Starting"}
    waits = top_run(
        run("waits", phase="Pending", conditions=[ACCEPTED, starting], usage=usage(waited=9.0)), NOW
    )
    assert (waits.state, waits.waited) == ("waits", 14.0)


def test_teams_and_pools_sum_up_their_runs() -> None:
    assert group_table(sorted_groups(teams_of(RUNS), "held"), "team") == [
        [*("TEAM", "RUN", "WAIT", "HELD", "POOLS", "SAMPLERS", "LEARNERS"),
         *("TRAINED", "STARTED", "EVICTED", "FAILED", "WAITED")],
        ["team-a", "1", "1", "12", "h100:12", "90%", "50%", "12.0h", "1.0h", "0.5h", "0.1h", "2 min"],
        ["team-b", "1", "0", "4", "a100:4", "10%", "-", "0.0h", "0.0h", "0.0h", "0.0h", "0 s"],
    ]  # fmt: skip
    assert group_table(sorted_groups(pools_of(RUNS), "held"), "pool") == [
        ["POOL", "RUN", "HELD", "SAMPLERS", "LEARNERS", "TRAINED", "STARTED", "EVICTED", "FAILED"],
        ["h100", "1", "12", "90%", "50%", "12.0h", "1.0h", "0.5h", "0.1h"],
        ["a100", "1", "4", "10%", "-", "0.0h", "0.0h", "0.0h", "0.0h"],
    ]


def test_shares_count_by_accelerators() -> None:
    one = run("one", phase="Training", progress={"samplerBusy": 1.0}, usage=usage(held=3.0))
    other = run("other", phase="Training", progress={"samplerBusy": 0.2}, usage=usage(held=1.0))
    (team,) = teams_of([top_run(one, NOW), top_run(other, NOW)])
    assert team.share("sampler") == pytest.approx(0.8)
    assert team.share("learner") is None


@pytest.mark.parametrize(
    ("by", "first"),
    [("held", "trains"), ("waited", "waits"), ("trained", "done"), ("lost", "trains"), ("name", "asleep")],
)
def test_what_comes_first(by: str, first: str) -> None:
    assert sorted_runs(RUNS, by)[0].name == first


def test_the_headline_says_who_holds_what() -> None:
    assert headline(RUNS) == "2 runs hold 16 accelerators, 1 waits; h100 12, a100 4"
    assert headline([]) == "0 runs hold 0 accelerators, 0 wait"


def test_runs_that_are_over_are_listed_if_asked_for() -> None:
    assert not [line for line in lines(RUNS, "run", "held", None, False) if "done" in line]
    assert [line for line in lines(RUNS, "run", "held", None, True) if "done" in line]
    assert lines([], "run", "held", "team-a", False) == ["there are no runs in namespace team-a yet"]


def test_all_of_it_for_programs() -> None:
    found = json.loads(json.dumps(document(RUNS, "held")))
    assert found["runs"][0] == {
        **{"namespace": "team-a", "name": "trains", "phase": "Training", "state": "runs", "reason": ""},
        **{"queue": None, "position": None, "waiting": None, "accelerators": 12.0, "waitedSeconds": 60.0},
        **{"samplerBusy": 0.9, "learnerBusy": 0.5, "attempts": 2, "evictions": 3},
        "hours": {"trained": 2.0, "started": 1.0, "evicted": 0.5, "failed": 0.1},
        "pools": {
            "h100": {
                "accelerators": 12.0,
                "hours": {"trained": 2.0, "started": 1.0, "evicted": 0.5, "failed": 0.1},
            }
        },
    }
    assert [one["name"] for one in found["teams"]] == ["team-a", "team-b"]
    assert [one["name"] for one in found["pools"]] == ["h100", "a100"]
    assert {run["state"] for run in found["runs"]} == {"runs", "waits", "stands", "over"}


@pytest.mark.parametrize(
    "status",
    [
        {"usage": {"pools": {"h100": None}, "waitedSeconds": "long"}},
        {"usage": {"pools": {"h\x1b[2J": {"accelerators": -1, "trained": float("nan")}}}},
        {"usage": [], "queue": "main", "progress": 3, "attempts": {}, "evictions": 3},
        {"conditions": {"type": "Accepted"}, "phase": "\x1b[31m"},
    ],
)
def test_whatever_a_status_holds_it_is_shown_and_steers_no_terminal(status: dict[str, Any]) -> None:
    text = "\n".join(lines([top_run(run("odd", **status), NOW)], "run", "held", None, True))
    assert "odd" in text
    assert "\x1b" not in text
    assert top_run(run("odd", **status), NOW).total.hours()["trained"] == 0.0


def test_a_narrow_terminal_cuts_the_reason() -> None:
    assert laid_out([["A", "WHY"], ["1", "because of it"]], 8) == ["A  WHY", "1  becau"]
    assert laid_out([["A", "WHY"], ["1", "because of it"]]) == ["A  WHY", "1  because of it"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-A", "-n", "team-a"], "--all-namespaces: found with --namespace, allowed: one of them"),
        (["-o", "json", "--watch"], "--output: found with --watch, allowed: one of them"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *arguments]) == 2
    assert capsys.readouterr().err == f"rltrain: {sentence}\n"


class Answers:
    """A cluster that answers so, one after another."""

    namespace = "team-a"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def listed(self, kind: str, namespace: str | None, *, page: int) -> tuple[list[Any], str]:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer, "1"


def test_a_watch_goes_on_when_the_server_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ClusterError("no answer", 503)
    cluster = Answers([TRAINS], away, [TRAINS, SMALL], KeyboardInterrupt())
    monkeypatch.setattr("rl_cli.top.connect", lambda _: cluster)
    monkeypatch.setattr("rl_cli.top.time.sleep", lambda _: None)
    assert main(["top", "-A", "--watch", "2"]) == 130
    shown = capsys.readouterr()
    heads = [line for line in shown.out.splitlines() if "hold" in line]
    assert heads == [
        "1 run holds 12 accelerators, 0 wait; h100 12",
        "2 runs hold 16 accelerators, 0 wait; h100 12, a100 4",
    ]
    assert "no answer; trying again for 300 s" in shown.err
    monkeypatch.setattr("rl_cli.top.connect", lambda _: Answers(away))
    assert main(["top"]) == 1
