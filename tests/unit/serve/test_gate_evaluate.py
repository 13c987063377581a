"""The gate over checkpoints made by hand: policies that always say the same, where all prompts have the same answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from poisoned_policy import poison, write_poisoned
from safetensors.torch import load_file, save_file

from rl_api.errors import CheckpointError, DeadlineExceeded, InvalidConfig
from rl_api.run import TinyModelSpec
from rl_api.validation import load_run
from rl_cli.main import main
from rl_serve.gate.criteria import AgreementRule, Gate, HeldOutRule, LatencyRule, ProbeRule
from rl_serve.gate.evaluate import evaluate
from rl_serve.gate.heldout import load_heldout
from rl_serve.gate.probe import parse_probe
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.model.presets import write_tiny
from rl_trainer.run import lineage
from rl_trainer.run.fixed import fixed_of
from rl_trainer.run.lineage import lineage_of
from rl_trainer.tasks.sources import read_data

RIGHT, WRONG = 10, 20
SPEC: dict[str, Any] = {
    "model": {"source": "tiny"},
    "task": {
        "environment": "prompts",
        "file": "prompts.jsonl",
        # A module that is not there: what training rewarded is not loaded.
        "rewards": [{"rule": "function", "function": "of_nobody:reward"}],
        "evaluation": {"samples": 40},
    },
    "sampler": {"maxNewTokens": 4},
}
PROBE = parse_probe("q.jsonl", b'{"prompt": "7=", "answer": "b"}\n' * 30, "exact")
GATE = Gate(HeldOutRule(), ProbeRule(), LatencyRule(1000.0), AgreementRule(0.001))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder beside its data, with a policy that is always right as step 10, and one that never is as step 20."""
    base = tmp_path_factory.mktemp("gate")
    lines = [{"prompt": f"{number}=", "answer": "b"} for number in range(100)]
    (base / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_run(base / "run", SPEC)
    shape = TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1, max_positions=64)
    model = write_tiny(base / "model", shape, seed=3)
    store = CheckpointStore(base / "run" / "checkpoints", keep=10)
    for step, answer in ((RIGHT, "b"), (WRONG, "a")):
        store.save(
            step,
            {"model": lambda target, answer=answer: poison(model, target, answer)},
            metadata(base / "run", base),
        )
    return base


@pytest.fixture
def base(made: Path, tmp_path: Path) -> Path:
    """One to damage."""
    return Path(shutil.copytree(made, tmp_path / "base"))


def write_run(run: Path, spec: Mapping[str, Any]) -> None:
    run.mkdir(exist_ok=True)
    document = {"apiVersion": "rltrain.dev/v1alpha1", "kind": "RLTrainingRun", "metadata": {"name": "run"}}
    (run / "run.yaml").write_text(yaml.safe_dump({**document, "spec": spec}))


def metadata(run: Path, code: Path) -> dict[str, Any]:
    """As the run's checkpoints have it."""
    spec = load_run(run / "run.yaml").spec
    data = read_data(spec.task, code)
    return {"fixed": fixed_of(spec), "lineage": lineage_of(spec, code, data)}


def step(base: Path, number: int) -> Path:
    return base / "run" / "checkpoints" / f"step-{number:08d}"


def changed(base: Path, **task: Any) -> dict[str, Any]:
    return {**SPEC, "task": {**SPEC["task"], **task}}


def test_the_right_one_passes_and_the_wrong_one_is_refused(made: Path) -> None:
    told: list[str] = []
    good, bad = step(made, RIGHT), step(made, WRONG)
    report = evaluate(bad, good, GATE, PROBE, code=made, tell=told.append)
    assert not report.passed
    assert report.message.startswith(
        "held-out prompts: 0.000 right of 40, the serving policy 1.000, difference -1.000 (95 % interval "
    )
    assert report.probe is not None
    assert (report.probe.candidate, report.probe.serving, report.probe.n) == (0.0, 1.0, 30)
    assert report.latency is not None
    assert report.latency.candidate > 0
    assert report.agreement is not None
    assert report.agreement.mean < 1e-4
    phases = [
        "verifying",
        "held-out prompts, candidate",
        "held-out prompts, serving policy",
        "probe",
        "latency",
    ]
    assert all(any(line.startswith(phase) for line in told) for phase in [*phases, "agreement"]), told

    report = evaluate(good, bad, GATE, PROBE, code=made)
    assert report.passed, report.message
    assert report.held_out is not None
    assert report.held_out.difference == 1.0


def test_without_a_serving_policy(made: Path) -> None:
    gate = Gate(HeldOutRule(samples=5), ProbeRule(min_score=0.5), LatencyRule(), AgreementRule())
    report = evaluate(step(made, RIGHT), None, gate, PROBE, code=made)
    assert report.passed, report.message
    assert report.held_out is not None
    assert (report.held_out.n, report.held_out.serving) == (5, None)
    report = evaluate(step(made, WRONG), None, gate, PROBE, code=made)
    assert report.message == "probe: 0.000 right of 30, allowed: minScore 0.5 or more"


def test_the_prompts_are_those_that_training_never_sees(made: Path) -> None:
    found = load_heldout(made / "run", 1000, {"candidate": metadata(made / "run", made)}, made)
    held = {prompt.text for prompt in found.prompts}
    assert len(held) == 40
    assert held.isdisjoint({found.task.prompt(index).text for index in range(300)})


def test_of_what_training_rewarded_not_even_the_source_is_read(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest of a reward's package reads all of its files, and the gate has no use for one."""
    policies = {"candidate": metadata(made / "run", made)}
    read: list[str] = []
    monkeypatch.setattr(lineage, "_module", lambda name, search: read.append(name))
    assert metadata(made / "run", made)["lineage"]["rewards"] == {"of_nobody:reward": None}
    assert read == ["of_nobody:reward"]
    assert load_heldout(made / "run", 3, policies, made).prompts
    assert len(read) == 1


def test_a_damaged_candidate_is_refused_and_a_damaged_serving_policy_is_an_error(base: Path) -> None:
    file = step(base, WRONG) / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    good, bad = step(base, RIGHT), step(base, WRONG)
    report = evaluate(bad, good, GATE, PROBE, code=base)
    assert not report.passed
    assert report.message == (
        f"{bad}: model/model.safetensors does not match its checksum; take another checkpoint"
    )
    with pytest.raises(CheckpointError, match="does not match its checksum"):
        evaluate(good, bad, GATE, PROBE, code=base)


def test_a_candidate_that_is_gone_is_refused(base: Path) -> None:
    report = evaluate(base / "run" / "checkpoints" / "step-00000099", None, GATE, PROBE, code=base)
    assert not report.passed
    assert report.message.endswith("there is no such folder")


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_weights_that_are_no_numbers_are_refused(base: Path, name: str) -> None:
    def spoiled(target: Path) -> None:
        shutil.copytree(base / "model", target)
        tensors = load_file(target / "model.safetensors")
        tensors[name] = torch.full_like(tensors[name], torch.nan)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    CheckpointStore(base / "run" / "checkpoints", keep=10).save(30, {"model": spoiled})
    report = evaluate(step(base, 30), step(base, RIGHT), GATE, PROBE, code=base)
    assert not report.passed
    assert "the weights of the candidate give probabilities that are no numbers" in report.message
    json.dumps(report.to_json(), allow_nan=False)


def test_a_deadline_is_kept_and_names_what_was_done(made: Path) -> None:
    with pytest.raises(DeadlineExceeded, match=r"gate: .+: not done after 1e-06 s"):
        evaluate(step(made, RIGHT), None, GATE, PROBE, code=made, timeout=1e-6)


def test_a_gate_that_asks_for_nothing_or_for_a_probe_without_questions(made: Path) -> None:
    with pytest.raises(InvalidConfig, match="nothing to look at"):
        evaluate(step(made, RIGHT), None, Gate())
    with pytest.raises(InvalidConfig, match="without a probe set"):
        evaluate(step(made, RIGHT), None, Gate(probe=ProbeRule()))


def test_a_question_that_does_not_fit_the_model_is_named(made: Path) -> None:
    long = parse_probe("q.jsonl", json.dumps({"prompt": "1" * 64, "answer": "b"}).encode(), "exact")
    with pytest.raises(InvalidConfig, match=r"probe: question 1: .* the prompt has 64 tokens"):
        evaluate(step(made, RIGHT), None, Gate(probe=ProbeRule()), long)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"seed": 2}, r"run\.yaml has seed 2, the candidate was trained with 0, so it may have seen them"),
        ({"task": {"evaluation": {"samples": 50}}}, r"has task\.evaluation\.samples 50, .* trained with 40"),
        (
            {"task": {"promptTemplate": "x{question}"}},
            r"has task\.promptTemplate 'x\{question\}', .* with None",
        ),
        ({"task": {"evaluation": None}}, "has no task.evaluation, so it has trained on all its prompts"),
        (
            {"trainer": {"kind": "command", "command": ["true"]}},
            "has trainer.kind command, whose prompts only",
        ),
    ],
)
def test_a_run_file_of_another_split_is_refused(base: Path, change: dict[str, Any], sentence: str) -> None:
    spec = {**SPEC, **change, "task": {**SPEC["task"], **change.get("task", {})}}
    if "trainer" in change:
        spec = {"trainer": change["trainer"], "model": SPEC["model"]}
    write_run(base / "run", spec)
    with pytest.raises(InvalidConfig, match=sentence):
        evaluate(step(base, RIGHT), None, Gate(HeldOutRule()), code=base)


def test_other_data_are_refused(base: Path) -> None:
    with (base / "prompts.jsonl").open("a") as stream:
        stream.write(json.dumps({"prompt": "one more", "answer": "b"}) + "\n")
    with pytest.raises(
        InvalidConfig, match=r"the candidate was trained on the data prompts\.jsonl, .*here are"
    ):
        evaluate(step(base, RIGHT), None, Gate(HeldOutRule()), code=base)


def test_nobody_knows_what_a_checkpoint_was_trained_on(base: Path) -> None:
    CheckpointStore(base / "run" / "checkpoints", keep=10).save(
        30, {"model": lambda target: poison(base / "model", target, "b")}
    )
    with pytest.raises(
        InvalidConfig, match="manifest of the serving policy does not say what it was trained"
    ):
        evaluate(step(base, RIGHT), step(base, 30), Gate(HeldOutRule()), code=base)
    (base / "run" / "run.yaml").unlink()
    with pytest.raises(InvalidConfig, match=r"held-out prompts: there is no .*run\.yaml, so nobody knows"):
        evaluate(step(base, RIGHT), None, Gate(HeldOutRule()), code=base)


def test_a_dialogue_is_held_to_its_environment(tmp_path: Path) -> None:
    write_run(
        tmp_path / "run",
        {
            "model": {"source": "tiny"},
            "task": {
                "environment": "tool-use",
                "name": "calculator",
                "maxTurns": 2,
                "isolation": "strict",
                "evaluation": {"samples": 6},
                "rewards": [{"rule": "exactMatch"}],
            },
            "sampler": {"maxNewTokens": 24},
        },
    )
    model = write_tiny(tmp_path / "model", TinyModelSpec(hidden_size=32, layers=1, heads=2, kv_heads=1), 3)
    report = evaluate(model, model, Gate(HeldOutRule()), run=tmp_path / "run")
    assert report.passed
    assert report.held_out is not None
    assert (report.held_out.candidate, report.held_out.n) == (0.0, 6)


def test_the_command_prints_a_table_and_its_exit_code_is_the_verdict(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = made / "q.jsonl"
    questions.write_text('{"prompt": "7=", "answer": "b"}\n' * 30)
    options = ["--code", str(made), "--probe", str(questions), "--max-ratio", "1000"]
    good, bad = str(step(made, RIGHT)), str(step(made, WRONG))
    assert main(["compare", good, bad, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["candidate", "serving", "difference", "interval", "n"]
    assert lines[1].split()[:4] == ["held-out", "1.000", "0.000", "+1.000"]
    assert [line.split()[0] for line in lines[1:5]] == ["held-out", "probe", "latency", "agreement"]
    assert lines[5].startswith("passed: held-out prompts: 1.000 right of 40, the serving policy 0.000")

    assert main(["compare", bad, good, *options]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("refused: held-out prompts: 0.000 right of 40")

    assert main(["compare", bad, "--no-held-out", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["heldOut"], found["probe"]["n"]) == (True, None, 30)

    assert main(["compare", bad, "--max-drop", "much", "--code", str(made)]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        'rltrain: gate.heldOut.maxDrop: found "much", allowed: a number from 0 to 1'
    )


def test_a_poisoned_checkpoint_is_whole_and_always_the_same(base: Path) -> None:
    one = write_poisoned(base / "run", "a")
    assert one.step == WRONG + 1
    weights = (one.path / "model" / "model.safetensors").read_bytes()
    again = write_poisoned(base / "run", "a", step=50)
    assert (again.path / "model" / "model.safetensors").read_bytes() == weights
    assert one.metadata == metadata(base / "run", base)
    report = evaluate(one.path, step(base, RIGHT), Gate(HeldOutRule()), code=base)
    assert not report.passed
