"""The plan of faults, and what is reported of them."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fault_plan import KINDS, PHASES, TARGETS, WORLDS, Fault, chapters, draw, meets
from fault_report import Campaign, Result, beyond_noise, share_of, tables

OFTEN = [phase for phase in PHASES if all(meets(world, phase) for world in WORLDS)]
ALL = len(KINDS) * len(TARGETS) * len(OFTEN)


def test_the_same_seed_gives_the_same_faults_and_another_others():
    assert draw(1, 200) == draw(1, 200)
    assert draw(1, 200) != draw(2, 200)
    assert draw(1, 200)[:50] == draw(1, 50)


def test_every_combination_comes_before_any_comes_again():
    faults = draw(3, 2 * ALL, phases=OFTEN)
    for half in (faults[:ALL], faults[ALL:]):
        assert {(one.kind, one.target, one.phase) for one in half} == {
            *itertools.product(KINDS, TARGETS, OFTEN)
        }
    assert {one.world for one in faults} == set(WORLDS)
    assert [one.number for one in faults] == list(range(1, 2 * ALL + 1))
    assert all(0.2 <= one.seconds <= 2.0 and 0 <= one.which < 1 for one in faults if one.target != "driver")
    assert any(one.seconds > 5.0 for one in faults if one.target == "driver"), (
        "longer than a sign of life may take"
    )


def test_no_run_waits_for_a_phase_that_it_does_not_come_to():
    faults = draw(4, 600)
    assert {one.phase for one in faults} == {*PHASES}
    assert {one.world for one in faults if one.phase == "move"} == {"collocated", "hybrid", "ipc"}


def test_only_what_is_asked_for_is_injected():
    faults = draw(1, 12, worlds=["strict"], kinds=["stop"], targets=["rank", "buffer"], phases=["train"])
    assert {(one.world, one.kind, one.phase) for one in faults} == {("strict", "stop", "train")}
    assert {one.target for one in faults} == {"rank", "buffer"}


def test_a_run_suffers_faults_of_its_own_world_alone():
    parts = chapters(draw(1, 35), 10)
    assert [len(part) for part in parts] == [10, 10, 10, 5]
    assert all(len({one.world for one in part}) == 1 for part in parts)


def campaign() -> Campaign:
    found = Campaign({"seed": 1})
    for number, seconds in enumerate((1.0, 2.0, 30.0)):
        found.results.append(
            Result(number, "strict", "kill", "rank", "train", how="resumed", seconds=seconds)
        )
    found.results.append(Result(3, "async", "pause", "driver", "score", failure="hangs"))
    return found


def test_the_table_has_percentiles_by_kind_and_target_and_counts_failures_as_such():
    lines = tables(campaign()).splitlines()
    assert "| kill | rank | 3 | 0 | 3 | 0 | 2.0 | 30.0 | 30.0 |" in lines
    assert "| pause | driver | 1 | 0 | 0 | 1 | - | - | - |" in lines
    assert "| all |  | 4 | 0 | 3 | 1 | 2.0 | 30.0 | 30.0 |" in lines
    assert lines[-5:] == [
        "| run | score | train |",
        "| --- | ---: | ---: |",
        "| strict | 0 | 3 |",
        "| async | 1 | 0 |",
        "| all | 1 | 3 |",
    ]
    found = campaign()
    found.results[0].freed, found.results[1].freed = 0.25, 1.5
    assert tables(found).splitlines()[-1] == (
        "Devices that were shared were taken back 0.25 s after the death of a sampler or a rank "
        "(median of 2), at most 1.50 s."
    )
    assert campaign().problems == ["fault 3 (pause driver in score, async): hangs"]


def test_a_campaign_goes_on_from_its_file():
    text = json.dumps(campaign().to_json(), allow_nan=False)
    again = Campaign.from_json(json.loads(text))
    assert again.to_json() == campaign().to_json()
    assert math.isnan(again.results[3].seconds)
    before = {name: value for name, value in campaign().to_json()["results"][0].items() if name != "freed"}
    assert math.isnan(Campaign.from_json({"results": [before], "runs": [], "failures": []}).results[0].freed)


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.95, 4), (1.0, 4), (0.01, 1)])
def test_percentiles_are_values_that_were_measured(share: float, value: int):
    assert share_of([1, 2, 3, 4], share) == value


def test_curves_agree_within_their_own_noise_and_no_further():
    noisy = [0.5 + 0.1 * (-1) ** step for step in range(60)]
    assert beyond_noise(noisy, [value + 0.04 for value in noisy]) == ""
    assert beyond_noise(noisy, [value - 0.2 for value in noisy]).startswith(
        "mean reward of the last 20 steps differs by 0.200"
    )
    assert beyond_noise([0.9] * 9, [0.1] * 9) == "", "a third of nine steps says nothing of their noise"
    assert beyond_noise([0.9] * 12, [0.1] * 12) != ""
    rising = [step / 60 for step in range(60)]
    assert beyond_noise(rising[:30], rising) == "", "of a longer run the same steps are compared"


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The command, which starts runs as the integration tests do."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "integration"))
    return importlib.import_module("chaos")


def test_only_the_same_plan_of_the_same_code_goes_on(
    chaos: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Disturbance:
        def __init__(
            self, found: Campaign, settings: object, quiet: Path, seconds: float, tell: Any, keep: Any
        ):
            self.found, self.tell, self.keep = found, tell, keep

        def inject(self, faults: list[Fault], *_: object, **__: object) -> None:
            asked.append([fault.number for fault in faults])
            for fault in faults:
                what = (fault.number, fault.world, fault.kind, fault.target, fault.phase)
                self.found.results.append(Result(*what, how="went on"))
                self.keep()
                assert len(json.loads(file.read_text())["results"]) == fault.number, (
                    "what is done is kept at once"
                )
                self.tell("one more")

    asked: list[list[int]] = []
    file = tmp_path / "results.json"
    monkeypatch.setattr(chaos, "Disturbance", Disturbance)
    monkeypatch.setattr(chaos, "_commit", lambda: "1a2b")
    plan = ["--out", str(tmp_path), "--kinds", "stop", "--worlds", "strict,ranks", "--faults"]
    assert chaos.main([*plan, "3"]) == chaos.main([*plan, "5"]) == 0
    assert asked == [[1, 2, 3], [4, 5]]
    said = capsys.readouterr().out
    assert "[1/3, " in said
    assert "[5/5, 0 s left] one more" in said
    before = file.read_text()
    assert chaos.main([*plan, "5"]) == 2
    assert capsys.readouterr().err == (
        f"chaos: nothing left to do: {file} has all 5 faults; give more --faults, another --out, or remove it\n"
    )
    for change, words in (
        (["--kinds", "kill,stop"], "kinds: stop, now kill,stop"),
        (["--set", "sampler.threads=1"], "set: none, now sampler.threads=1"),
        (["--seed", "2", "--per-run", "4"], "seed: 1, now 2, per-run: 10, now 4"),
    ):
        assert chaos.main([*plan, "9", *change]) == 2
        assert capsys.readouterr().err == (
            f"chaos: {file} is of another plan ({words}); ask for that one, give another --out, or remove it\n"
        )
    monkeypatch.setattr(chaos, "_commit", lambda: "3c4d")
    assert chaos.main([*plan, "9"]) == 2
    assert "(commit: 1a2b, now 3c4d)" in capsys.readouterr().err
    assert file.read_text() == before
    assert len(asked) == 2


@pytest.mark.parametrize("option", ["--faults", "--per-run"])
@pytest.mark.parametrize("count", ["0", "-1", "1.5"])
def test_less_than_one_fault_is_refused(
    chaos: ModuleType, option: str, count: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as caught:
        chaos.main([f"{option}={count}"])
    assert caught.value.code == 2
    assert f"argument {option}: found {count}, allowed: a whole number from 1" in capsys.readouterr().err


def test_the_code_that_is_tried_is_named(chaos: ModuleType):
    assert chaos._commit() == "unknown" or len(chaos._commit().removesuffix("-dirty")) == 40
