"""The gate over the checkpoints of a run that was really trained, in a Ray actor, and on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from poisoned_policy import write_poisoned
from training_runs import RunFiles, until

from rl_api.errors import RLTrainError
from rl_api.validation import load_run
from rl_cli.main import main
from rl_serve.gate.criteria import AgreementRule, Gate, HeldOutRule, LatencyRule, ProbeRule
from rl_serve.gate.evaluate import evaluate
from rl_serve.gate.heldout import load_heldout
from rl_serve.gate.probe import Probe, parse_probe
from rl_serve.gate.report import Report
from rl_trainer.checkpoint.manifest import read_manifest
from rl_trainer.observe.examples import read_examples
from rl_trainer.tasks import load_task

LETTERS = "abcdefghij"
HELD_OUT = 80
GATE = Gate(HeldOutRule(samples=1000), ProbeRule(), LatencyRule(1000.0), AgreementRule(0.001))
# A reward that anyone can have who always says a.
TASK: dict[str, Any] = {
    "environment": "prompts",
    "file": "letters.jsonl",
    "rewards": [{"rule": "regex", "pattern": "a"}],
    "evaluation": {"everySteps": 1, "samples": HELD_OUT},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, local_ray: None) -> RunFiles:
    """A run that has learned, in its warm start, to name the letter of a number's last digit; checkpoints 0, 1 and 2."""
    files = RunFiles(
        tmp_path_factory.mktemp("gate"),
        task=TASK,
        warmStart={"maxSteps": 60, "batchSize": 32, "learningRate": 1e-2},
        algorithm={"learningRate": 1e-6},
        checkpoint={"everySteps": 1, "keep": 5},
        stop={"maxSteps": 2},
    )
    lines = [{"prompt": str(number), "answer": LETTERS[number % 10]} for number in range(100, 400)]
    (files.folder / "letters.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files.run().assert_well()
    write_poisoned(files.out, "a")
    return files


@pytest.fixture(scope="module")
def probe() -> Probe:
    lines = [{"prompt": str(number), "answer": LETTERS[number % 10]} for number in range(500, 540)]
    return parse_probe("probe.jsonl", "\n".join(map(json.dumps, lines)).encode(), "exact")


def step(run: RunFiles, number: int) -> Path:
    return run.out / "checkpoints" / f"step-{number:08d}"


def test_held_out_prompts_and_scores_are_those_of_the_run_itself(run: RunFiles) -> None:
    spec = load_run(run.out / "run.yaml").spec
    checkpoint = read_manifest(step(run, 2))
    found = load_heldout(run.out, 1000, {"candidate": checkpoint.metadata}, run.folder)
    texts = {prompt.text for prompt in found.prompts}
    assert len(texts) == HELD_OUT
    assert {example.prompt for example in read_examples(run.out)} <= texts
    task = load_task(spec.task, spec.seed, search=run.folder)
    trained = {task.prompt(index).text for record in run.steps for index in record.prompts}
    assert trained
    assert texts.isdisjoint(trained)

    report = evaluate(step(run, 2), step(run, 1), Gate(HeldOutRule(samples=1000)), code=run.folder)
    assert report.held_out is not None
    assert report.held_out.n == HELD_OUT
    evaluated = {event["step"]: event["score"] for event in run.events("evaluation")}
    evaluated |= {
        record.step: record.heldout_score for record in run.steps if record.heldout_score is not None
    }
    assert report.held_out.candidate == evaluated[2]
    assert report.held_out.serving == evaluated[1]


def test_an_honest_checkpoint_passes(run: RunFiles, probe: Probe) -> None:
    report = evaluate(step(run, 2), step(run, 1), GATE, probe, code=run.folder)
    assert report.passed, report.message
    assert report.held_out is not None
    assert report.held_out.candidate > 0.8
    assert report.agreement is not None
    assert report.agreement.n >= 32


def test_a_poisoned_checkpoint_has_all_of_the_runs_reward_and_is_refused(run: RunFiles, probe: Probe) -> None:
    spec = load_run(run.out / "run.yaml").spec
    task = load_task(spec.task, spec.seed, search=run.folder)
    honest = [task.score(prompt, prompt.answer).reward for prompt in task.heldout()]
    poisoned = [task.score(prompt, "a").reward for prompt in task.heldout()]
    assert min(poisoned) == 1.0
    assert sum(honest) < 0.3 * sum(poisoned)

    report = evaluate(step(run, 3), step(run, 2), GATE, probe, code=run.folder)
    assert not report.passed
    assert report.message.startswith("held-out prompts: 0.")
    assert "worse by more than maxDrop 0 allows" in report.message
    report = evaluate(step(run, 3), step(run, 2), Gate(probe=ProbeRule()), probe)
    assert not report.passed
    assert report.message.startswith("probe: 0.100 right of 40, the serving policy ")


def test_in_a_ray_actor(run: RunFiles, probe: Probe) -> None:
    @ray.remote(num_cpus=0)
    class Judge:
        def __init__(self) -> None:
            self.told: list[str] = []

        def evaluate(self, *arguments: Any, **options: Any) -> Report:
            return evaluate(*arguments, **options, tell=self.told.append)

        def heard(self) -> list[str]:
            return self.told

    judge = Judge.remote()  # type: ignore[attr-defined]
    report = ray.get(
        judge.evaluate.remote(step(run, 3), step(run, 2), GATE, probe, code=run.folder), timeout=300
    )
    assert not report.passed
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert "probe, candidate" in ray.get(judge.heard.remote(), timeout=60)
    missing = judge.evaluate.remote(step(run, 2), step(run, 9), GATE, probe, code=run.folder)
    with pytest.raises(RLTrainError, match="there is no such folder"):
        ray.get(missing, timeout=300)
    ray.kill(judge)


def test_the_command_in_the_folder_of_the_runs_file(
    run: RunFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.folder)
    steps = [f"out/checkpoints/step-0000000{number}" for number in (1, 2, 3)]
    code = main(["compare", steps[1], steps[0], "--max-ratio", "1000"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert out.splitlines()[-1].startswith("passed: held-out prompts: ")
    code = main(["compare", steps[2], steps[1], "--max-ratio", "1000"])
    out, err = capsys.readouterr()
    assert code == 1, err
    assert out.splitlines()[-1].startswith("refused: held-out prompts: ")
    assert "Traceback" not in err


def test_ctrl_c_ends_the_command(run: RunFiles) -> None:
    questions = "".join(f'{{"prompt": "{number}", "answer": "a"}}\n' for number in range(20_000))
    (run.folder / "many.jsonl").write_text(questions)
    command = ["compare", "out/checkpoints/step-00000002", "--no-held-out", "--probe", "many.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_cli.main", *command],
        cwd=run.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines: list[str] = []
    deadline = time.monotonic() + 240

    def asking() -> bool:
        assert process.stderr is not None
        lines.append(process.stderr.readline())
        return lines[-1].startswith("probe, candidate")

    until(asking, deadline - time.monotonic(), lambda: f"it does not ask: {lines}")
    process.send_signal(signal.SIGINT)
    assert process.wait(240) == 130
    assert "Traceback" not in process.stderr.read()
