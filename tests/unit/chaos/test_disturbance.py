"""How a campaign goes through its runs: several at once, beside one undisturbed run of each world, and to an end that is
asked for. (The runs themselves: `test_chaos_short.py`.)"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fault_plan import Fault, draw
from fault_report import Campaign, Result


@pytest.fixture
def campaign(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "integration"))
    return importlib.import_module("campaign")


class Runs:
    """In place of real runs: `suffer` says what comes of a fault."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, campaign: ModuleType, suffer: Callable[[Fault], str]):
        self.started: list[str] = []
        self.closed: list[str] = []
        self.quiet: list[str] = []
        runs, step = self, SimpleNamespace(reward_mean=0.5)

        class Run:
            steps: Sequence[Any] = [step] * 7

            def __init__(self, folder: Path, world: str, settings: Sequence[str], store: object):
                self.folder, self.world = folder, world

            def start(self) -> None:
                runs.started.append(self.folder.name)

            def suffer(self, fault: Fault) -> Result:
                what = (fault.number, fault.world, fault.kind, fault.target, fault.phase)
                return Result(*what, how="went on", seconds=1.0, failure=suffer(fault))

            def finish(self) -> None:
                pass

            def close(self) -> None:
                runs.closed.append(self.folder.name)

            def undisturbed(self, steps: int) -> Sequence[Any]:
                runs.quiet.append(str(self.folder))
                return [step] * steps

        monkeypatch.setattr(campaign, "Disturbed", Run)
        monkeypatch.setattr(campaign, "_judge", lambda run: None)
        monkeypatch.setattr(campaign, "curve", lambda record: record.reward_mean)


def test_runs_go_on_side_by_side_and_are_held_against_one_undisturbed_run_of_their_world(
    campaign: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    both = threading.Barrier(2)

    def suffer(fault: Fault) -> str:
        if fault.number in (1, 6):
            both.wait(30.0)
        return ""

    runs, kept, told = Runs(monkeypatch, campaign, suffer), list[int](), list[str]()
    found = Campaign({})
    disturbance = campaign.Disturbance(
        found, [], tmp_path, tell=told.append, keep=lambda: kept.append(len(found.results))
    )
    disturbance.inject(draw(1, 10, worlds=["strict"], chapter=5), tmp_path / "from-1", chapter=5, at_once=2)
    assert sorted(runs.started) == sorted(runs.closed) == ["0001-strict", "0006-strict"]
    assert runs.quiet == [str(tmp_path / "undisturbed-strict")] * 2
    assert sorted(one.number for one in found.results) == list(range(1, 11))
    assert found.problems == []
    assert [*range(1, 11)] == sorted({*kept}), "each is kept as it is done"
    assert sum("bit by bit the same curve" in line for line in told) == len(found.runs) == 2


def test_a_run_that_hangs_is_left_and_the_others_go_on(
    campaign: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    runs = Runs(monkeypatch, campaign, lambda fault: "hangs" if fault.number == 2 else "")
    found = Campaign({})
    campaign.Disturbance(found, [], tmp_path, tell=lambda _: None).inject(
        draw(1, 6, worlds=["async"], chapter=3), tmp_path, chapter=3
    )
    assert [one.number for one in found.results] == [1, 2, 4, 5, 6]
    assert [problem.split(" ")[1] for problem in found.problems] == ["2"]
    assert runs.closed == ["0001-async", "0004-async"]


def test_who_ends_a_campaign_ends_its_runs_and_nothing_is_told_of_what_they_met_then(
    campaign: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    closed, suffers = threading.Event(), threading.Event()

    def suffer(fault: Fault) -> str:
        suffers.set()
        assert closed.wait(30.0), "its processes are ended"
        return "ended while waiting for its next step"

    runs, found = Runs(monkeypatch, campaign, suffer), Campaign({})
    disturbance = campaign.Disturbance(found, [], tmp_path, tell=lambda _: None)
    monkeypatch.setattr(runs, "closed", SimpleNamespace(append=lambda name: closed.set()))

    class Ended:
        def result(self) -> None:
            assert suffers.wait(30.0)
            raise KeyboardInterrupt

    class Pool(campaign.ThreadPoolExecutor):  # type: ignore[name-defined, misc]
        def submit(self, *arguments: Any, **named: Any) -> Any:
            super().submit(*arguments, **named)
            return Ended()

    monkeypatch.setattr(campaign, "ThreadPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt):
        disturbance.inject(draw(1, 4, worlds=["async"], chapter=2), tmp_path, chapter=2)
    assert (found.results, found.failures, runs.started) == ([], [], ["0001-async"])


def test_an_undisturbed_run_goes_on_where_more_steps_of_it_are_wanted(
    campaign: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run, asked = campaign.Disturbed(tmp_path, "strict", ["seed=3"]), list[list[str]]()

    def start(*arguments: str) -> Any:
        asked.append([*arguments])
        steps = int(arguments[-1].removeprefix("stop.maxSteps="))
        run.files.out.mkdir(exist_ok=True)
        record = {"time": 0.0, "wall_seconds": 0.1, "reward_mean": 0.5}
        lines = [json.dumps({"step": step + 1, **record}) for step in range(steps)]
        (run.files.out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return nullcontext(SimpleNamespace(finish=lambda _: SimpleNamespace(assert_well=lambda: None)))

    monkeypatch.setattr(run.files, "start", start)
    assert [len(run.undisturbed(steps)) for steps in (5, 12, 13)] == [12, 12, 24]
    seed = ["--set", "seed=3", "--set"]
    assert asked == [[*seed, "stop.maxSteps=12"], ["--resume", *seed, "stop.maxSteps=24"]]
