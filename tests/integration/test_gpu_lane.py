"""The GPU lane, whole, on CPUs with tiny shapes: every stage by the code that runs on GPUs. What it measures here is
what else the machine does; that there are numbers, and that what must agree does, is held.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# The lane's own deadlines are shorter.
SECONDS = 1400.0
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")


def lane(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command on CPUs, come to its end."""
    command = [str(ROOT / "scripts" / "gpu-lane"), "--device=cpu", "--shape=tiny", f"--out={out}", *options]
    return subprocess.run(
        command, env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True, timeout=SECONDS
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Folder, JSON and what was printed of one whole lane."""
    out = tmp_path_factory.mktemp("lane") / "out"
    done = lane(out, "--deadline=600")
    log = (out / "gpu-lane.log").read_text()
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
    found: dict[str, Any] = json.loads((out / "gpu-lane.json").read_text())
    return out, found, done.stdout


def rows(found: dict[str, Any], stage: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = found["results"][f"{stage} tiny"]["rows"]
    return made


def numbers(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    yield from ((name, value) for name, value in row.items() if isinstance(value, float))


def test_every_stage_has_rows_of_numbers(whole: tuple[Path, dict[str, Any], str]) -> None:
    _, found, printed = whole
    assert found["passed"]
    stages = [
        "shapes",
        "machine",
        "learner",
        "engine",
        "divided",
        "agreement",
        "turns",
        "scoring",
        "kernels",
        "loop",
        "peer",
    ]
    assert list(found["results"]) == [f"{stage} tiny" for stage in stages]
    for stage in stages[:-1]:
        assert all(math.isfinite(value) for row in rows(found, stage) for _, value in numbers(row)), stage
    machine = {row["what"]: row["found"] for row in rows(found, "machine")}
    assert machine["device"] == "cpu"
    assert machine["matrix product, float32, TFLOP/s"] > 0

    learner = {row["learner"]: row for row in rows(found, "learner")}
    assert list(learner) == ["all weights, whole", "all weights, fsdp2 over 2", "LoRA, whole"]
    for row in learner.values():
        assert row["all tok/s"] > row["trained tok/s"] > 0
        assert row["highest, GB"] > 0 < row["planned, GB"]
        assert row["first gradient norm"] > 0

    engine = rows(found, "engine")
    assert [row["in flight"] for row in engine if row["what"] == "decoding"] == [1, 8]
    assert all(row["tok/s"] > 0 for row in engine if row["what"] == "decoding")
    weights = {row["by"]: row for row in engine if row["what"] == "weights"}
    assert list(weights) == ["blocks", "same device", "collective"]
    assert all(row["GB/s"] > 0 < row["pause, s"] <= row["s"] for row in weights.values())
    # All of the model, in float32: its parameters are in the folder's two bytes each.
    (model,) = rows(found, "shapes")
    assert {round(row["GB"] * 1e9) for row in weights.values()} == {model["parameters"] * 4}

    runs = {row["run"]: row for row in rows(found, "loop")}
    assert list(runs) == ["in turns", "rltrain run"]
    assert all(row["completion tok/s"] > 0 for row in runs.values())

    turns = rows(found, "turns")
    assert [row["role"] for row in turns] == ["learner", "engine torch"]
    assert all(row["moved, GB"] > 0 < row["both, GB/s"] for row in turns)

    scoring = rows(found, "scoring")
    assert [row["texts at once"] for row in scoring] == [1, 16]
    assert all(row["texts/s"] > 0 < row["planned, GB"] for row in scoring)

    kernels = {(row["kernel"], row["way"]) for row in rows(found, "kernels")}
    assert kernels >= {
        ("attention", "ours (sdpa, torch's choice)"),
        ("attention", "sdpa math"),
        ("log-probs", "ours (in chunks)"),
        ("log-probs", "torch linear_cross_entropy"),
    }
    for progress in ("fsdp2 over 2", "torch: weights by collective", "in turns, torch: step 3 of 3"):
        assert progress in printed


def test_what_must_agree_does(whole: tuple[Path, dict[str, Any], str]) -> None:
    _, found, _ = whole
    checks = [check for result in found["results"].values() for check in result["checks"]]
    assert [check["name"] for check in checks if not check["passed"]] == []
    kernels = {check["name"]: check["found"] for check in found["results"]["kernels tiny"]["checks"]}
    assert kernels["log-probs, chosen, error"].startswith("ours: "), "nothing is chosen on CPUs"
    assert kernels["log-probs, chosen, time"] == "ours: 1.00x"
    names = " ".join(check["name"] for check in checks)
    assert "fsdp2 over 2 against all weights, whole, first gradient norm" in names
    scoring = [check["name"] for check in found["results"]["scoring tiny"]["checks"]]
    assert scoring == [
        f"{count} texts at once, {what}" for count in (1, 16) for what in ("|d| from cores", "spread / |d|")
    ]
    turns = {check["name"]: check["found"] for check in found["results"]["turns tiny"]["checks"]}
    assert turns == {f"{role}, the same afterwards": "True" for role in ("learner", "engine torch")}
    agreement = rows(found, "agreement")
    states = [
        "at the start",
        *(f"after training, by {way}" for way in ("blocks", "same device", "collective")),
    ]
    assert [row["weights"] for row in agreement] == states
    for row in agreement:
        assert row["tokens"] > 100
        assert row["mean exp|d|"] < 1 + 1e-4
    # Each way brings weights that say something else than those before.
    assert all(row["moved"] > 5 * row["mean |d|"] for row in agreement[1:])


def test_what_cannot_run_here_says_why_in_json_and_in_markdown(
    whole: tuple[Path, dict[str, Any], str],
) -> None:
    out, found, printed = whole
    skipped = [text for result in found["results"].values() for text in result["skipped"]]
    assert "log-probs, compiled: kernels are compiled for GPUs" in skipped
    assert any(text.startswith("TRL: trl is not installed for ") for text in skipped)
    assert "engine vllm: vLLM is not installed here" in skipped
    page = (out / "gpu-lane.md").read_text()
    for title in (
        "Machine",
        "Models",
        "Learner",
        "Engines",
        "Agreement of engine and learner",
        "Devices that change hands",
        "Models that score",
        "Kernels",
        "Runs",
    ):
        assert f"\n## {title}\n\n| shape |" in page
    for text in skipped:
        assert f"Skipped (tiny): {text}." in page
        assert f"skipped: {text}\n" in printed


def test_resume_measures_nothing_again(whole: tuple[Path, dict[str, Any], str]) -> None:
    out, found, _ = whole
    done = lane(out, "--resume")
    assert done.returncode == 0
    assert done.stdout.count(": is there\n") == len(found["results"]) - 1  # the model is gone with the lane
    assert json.loads((out / "gpu-lane.json").read_text())["results"] == found["results"]


def test_a_stage_that_fails_does_not_stop_the_others_and_makes_the_status_1(tmp_path: Path) -> None:
    done = lane(tmp_path / "out", "--only=machine,learner,kernels", "--python=false")
    assert done.returncode == 1, done.stdout
    found = json.loads((tmp_path / "out" / "gpu-lane.json").read_text())
    assert not found["passed"]
    assert found["results"]["learner tiny"]["failed"] == ["its model could not be written"]
    for stage in ("machine", "kernels"):
        (sentence,) = found["results"][f"{stage} tiny"]["failed"]
        assert sentence.startswith("child.measure ended with status 1 and no answer; see ")
        assert f"failed: {stage} tiny: {sentence}\n" in done.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--shape=70b"], "--shape: found '70b', allowed: tiny, 0.5b, 7b"),
        (["--only=learner,enigne"], "--only: found 'enigne', allowed: machine, learner, engine, "),
        (["--only=,"], "--only: found nothing, allowed: machine, "),
        (["--deadline=0"], "--deadline: found 0, allowed: more than 0 seconds"),
        (["--python=nothing-here"], "--python: found 'nothing-here', which is no program here"),
    ],
)
def test_wrong_options(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gpu_lane.__main__ import options as read

    with pytest.raises(SystemExit) as caught:
        read(["--device=cpu", *options])
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_process_that_raises_or_is_late_is_a_sentence() -> None:
    from gpu_lane.child import ChildFailed, call

    with pytest.raises(
        ChildFailed, match=r"AttributeError: module 'gpu_lane\.job' has no attribute 'nothing'"
    ):
        call(sys.executable, "job.nothing", {}, 300.0)
    with pytest.raises(ChildFailed, match=r"child\.measure had no answer within 0 s"):
        call(sys.executable, "child.measure", {}, 0.0)


def test_a_lane_that_is_told_to_stop_ends_its_stages(tmp_path: Path) -> None:
    held, interpreter = tmp_path / "held", tmp_path / "interpreter"
    os.mkfifo(held)
    # As long as a stage is there it holds this open; none ends by itself, so that the first is also the last one.
    waits = "import signal; from gpu_lane import child as c; c.measure = lambda **_: signal.pause(); c.main()"
    interpreter.write_text(
        f'#!/bin/sh\nexec 3> {held}\necho here >&3\nshift 2\nexec {sys.executable} -c "{waits}" "$@"\n'
    )
    interpreter.chmod(0o755)
    command = [
        str(ROOT / "scripts" / "gpu-lane"),
        "--device=cpu",
        f"--out={tmp_path}",
        f"--python={interpreter}",
    ]
    with subprocess.Popen(command, env=os.environ | {"PYTHON": sys.executable}) as process:
        try:
            with held.open() as alive:
                assert alive.readline() == "here\n"
                process.terminate()
                assert process.wait(240.0) == 128 + signal.SIGTERM
                assert alive.read() == ""
        finally:
            process.kill()


def test_a_missed_target_is_a_failure_that_measuring_again_mends(tmp_path: Path) -> None:
    from gpu_lane.job import Findings
    from gpu_lane.report import Report

    meta = {"device": "cpu", "dtype": "float32"}
    report = Report(tmp_path, meta, earlier=False)
    missed = {"name": "memory / plan", "passed": False, "found": "2.00x", "wanted": "<= 1.1x"}
    report.add("learner", "tiny", Findings(checks=[missed]).plain(), 1.0)
    assert report.failures == ["learner tiny: memory / plan: found 2.00x, wanted <= 1.1x"]
    assert "**Failed**: learner tiny: memory / plan" in report.markdown.read_text()
    again = Report(tmp_path, meta, earlier=True)
    assert not again.has("learner", "tiny")
    again.add("learner", "tiny", Findings(checks=[missed | {"passed": True}]).plain(), 1.0)
    assert again.passed
    assert again.has("learner", "tiny")
    # Another device's figures are not kept beside these.
    assert not Report(tmp_path, meta | {"device": "1 x NVIDIA H100"}, earlier=True).results


def test_ours_and_trl_are_put_side_by_side(tmp_path: Path) -> None:
    from gpu_lane.job import Findings
    from gpu_lane.report import Report

    report = Report(tmp_path, {"device": "1 x NVIDIA H100", "dtype": "bfloat16"}, earlier=False)
    ours = {"run": "in turns", "engine": "vllm", "completion tok/s": 3000.0}
    agreement = {"engine": "vllm", "weights": "at the start", "mean exp|d|": 1.01, "moved": None}
    report.add("agreement", "0.5b", Findings([agreement]).plain(), 1.0)
    report.add("loop", "0.5b", Findings([ours, ours | {"run": "rltrain run"}]).plain(), 1.0)
    report.add("peer", "0.5b", Findings([{"peer": "trl 1.16.0", "completion tok/s": 2000.0}]).plain(), 1.0)
    lines = report.markdown.read_text().splitlines()
    # Rows have as many cells as their table's head, in which a name may hold a bar.
    cells = [line.replace("\\|", "").count("|") for line in lines]
    assert all(above == below for above, below in pairwise(cells) if above and below)
    assert "| shape | engine | weights | mean exp\\|d\\| | moved |" in lines
    assert "| 0.5b | vllm | 3,000 | 2,000 | 1.5 |" in lines
    assert sum(line.endswith("| 1.5 |") for line in lines) == 1


@pytest.mark.parametrize(("shape", "parameters"), [("0.5b", 494_032_768), ("7b", 7_615_616_512)])
def test_shapes_are_those_of_models_in_use(shape: str, parameters: int) -> None:
    from gpu_lane.shapes import SHAPES, context

    from rl_api.sizes.shape import model_shape

    assert model_shape(SHAPES[shape].config).parameters == parameters
    assert context(SHAPES[shape]) >= SHAPES[shape].prompt + SHAPES[shape].longest


def test_with_several_gpus_each_process_sees_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_lane.job import Job
    from gpu_lane.learner import Case, cases, one_gpu
    from gpu_lane.source import sender_gpu, ways

    def job(gpus: int) -> Job:
        return Job("cuda", gpus, "bfloat16", "7b", "model", "scratch", "python3", "", 60.0)

    assert list(cases(job(1))) == [Case(1, False), Case(1, True)]
    assert [case.ranks for case in cases(job(6))] == [1, 2, 4, 6, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert one_gpu(job(6), 3) == {"CUDA_VISIBLE_DEVICES": "3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert one_gpu(job(2), 1) == {"CUDA_VISIBLE_DEVICES": "7"}
    possible, why = ways(job(1))
    assert possible == ["blocks", "same device"]
    assert why == ["weights by collective: NCCL joins processes on different GPUs, and one is here"]
    assert [sender_gpu(job(2), way) for way in ways(job(2))[0]] == [0, 0, 1]
