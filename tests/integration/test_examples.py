"""Every example is executed: the whole run, from the model to the report, in shortened form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from train_here import train_here

from rl_api import load_run
from rl_api.planner.profile import load_profile
from rl_trainer.observe.metrics import read_metrics
from rl_trainer.observe.timeline import read_timeline

ROOT = Path(__file__).parents[2]
# The rest is for clusters: applied by other tests, and the training is that of quickstart.yaml; or a program of its own.
# (test_run_program.py)
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if not path.stem.startswith(("profile-", "quickstart-", "command"))
]
STEPS, PROMPTS, GROUP, HELDOUT = 3, 4, 4, 8
SHORT = (
    f"stop={{maxSteps: {STEPS}}}",
    "warmStart={maxSteps: 2, batchSize: 8}",
    f"task.evaluation={{everySteps: 2, samples: {HELDOUT}}}",
    f"algorithm.promptsPerStep={PROMPTS}",
    f"algorithm.groupSize={GROUP}",
)


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda path: path.stem)
def finished(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, local_ray: None
) -> dict[str, Any]:
    """One example, run in short: the run, its folder and what `train` returned."""
    path: Path = request.param
    run = load_run(path, SHORT)
    out = tmp_path_factory.mktemp("runs") / path.stem
    return {"run": run, "folder": out, "summary": train_here(run, out, path.parent)}


def test_every_step_is_trained_on(finished: dict[str, Any]) -> None:
    summary = finished["summary"]
    assert summary["stop_reason"] == "maxSteps"
    assert summary["steps"] == len(summary["reward_curve"]) == STEPS
    assert summary["groups_trained"] == STEPS * PROMPTS
    assert summary["groups_dropped"] == {}
    assert summary["skipped_steps"] == 0
    assert summary["completion_tokens"] >= STEPS * PROMPTS * GROUP
    assert summary["resumed_from"] is None


def test_the_summary_is_in_the_folder(finished: dict[str, Any]) -> None:
    written = json.loads((finished["folder"] / "summary.json").read_text())
    assert written == finished["summary"]
    assert {"samples_per_second", "wall_seconds", "time_breakdown"} <= written.keys()


def test_it_is_evaluated_before_during_and_after(finished: dict[str, Any]) -> None:
    curve = finished["summary"]["heldout_curve"]
    assert [step for step, _ in curve] == [0, 2, 3]
    assert all(score * HELDOUT == round(score * HELDOUT) for _, score in curve)


def test_staleness_keeps_its_bound(finished: dict[str, Any]) -> None:
    assert finished["summary"]["max_staleness_seen"] <= finished["run"].spec.buffer.max_staleness


def test_no_prompt_is_trained_on_twice(finished: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in (finished["folder"] / "metrics.jsonl").read_text().splitlines()]
    prompts = [index for line in lines if "event" not in line for index in line["prompts"]]
    assert len(prompts) == STEPS * PROMPTS == len(set(prompts))


def test_every_actor_is_in_the_timeline(finished: dict[str, Any]) -> None:
    spec = finished["run"].spec
    actors = {span.actor for span in read_timeline(finished["folder"] / "timeline.json")}
    assert "driver" in actors
    assert {f"learner {rank}" for rank in range(spec.learner.replicas)} <= actors
    # A second sampler may get no group of a run as short as this.
    assert actors & {f"sampler {rank}" for rank in range(spec.sampler.replicas)}


def test_what_it_took_is_in_the_profile_and_adds_up(finished: dict[str, Any]) -> None:
    spec, profile = finished["run"].spec, load_profile(finished["folder"])
    records = read_metrics(finished["folder"] / "metrics.jsonl")
    assert (profile.steps, profile.group_size, profile.prompts_per_step) == (STEPS, GROUP, PROMPTS)
    assert (profile.devices.learner, profile.devices.sampler) == (
        spec.learner.replicas,
        spec.sampler.replicas,
    )
    assert len(profile.lengths) == STEPS * PROMPTS * GROUP
    assert sum(profile.lengths) == sum(record.completion_tokens for record in records)
    decode, learner = profile.decode, profile.learner
    assert decode.base + decode.per_active + decode.per_cached_token > 0
    assert profile.prompt_tokens > 0
    # What learners said of their parts is no more than what the steps after the first one took them.
    tokens = sum(r.total_tokens_per_second * r.wall_seconds for r in records[1:]) / spec.learner.replicas
    parts = tokens * (learner.beta + learner.log_prob + learner.value)
    took = sum(r.time_train + r.time_log_probs + r.time_values for r in records[1:])
    assert 0.1 * took < parts < 1.05 * took
    assert 0 < profile.memory.sampler.weights <= profile.memory.learner.weights
    assert all(record.answers_bytes > 0 and record.learner_memory_bytes > 0 for record in records)
    assert sum(record.weights_bytes for record in records if record.weights_bytes > 0) > 0
    assert all(0 < record.learner_cpus < 64 for record in records)
    assert all(record.store_bytes >= 0 for record in records)
    assert all(record.driver_cpus > 0 for record in records)
    assert any(record.received_bytes > 0 for record in records) or spec.sampler.engine == "endpoint"
    for record in records:  # all of it is on one node, without a GPU
        assert (record.weights_between_nodes_bytes, record.answers_between_nodes_bytes) == (0, 0)
        assert math.isnan(record.sampler_gpu_busy_ratio) and math.isnan(record.learner_gpu_busy_ratio)
        assert record.total_tokens_per_second > record.tokens_per_second > 0
    for record in records:  # of a dialogue every answer has a turn at least
        if spec.task.dialogues:
            assert record.turns_per_second >= record.samples_per_second
        else:
            assert math.isnan(record.turns_per_second)
    # Of cores; of a short step it may not be known yet what samplers did in it.
    assert all(1e6 < record.learner_flops < 1e12 for record in records)
    sampling = [record.sampler_flops for record in records if record.time_generate]
    assert sampling
    assert all(1e6 < rate < 1e12 for rate in sampling)


def test_the_report_shows_the_run(finished: dict[str, Any]) -> None:
    page = (finished["folder"] / "report.html").read_text()
    spec = finished["run"].spec
    assert f"<title>{finished['run'].name}" in page
    assert "All steps done" in page
    assert "Where the time goes" in page
    assert (spec.task.name or spec.task.file) in page
    answered = json.loads((finished["folder"] / "examples.json").read_text())
    assert len(answered) == HELDOUT
    assert {"before", "after"} <= answered[0].keys()


def test_model_and_checkpoint_are_kept_as_the_architecture_page_says(finished: dict[str, Any]) -> None:
    folder = finished["folder"]
    assert (folder / "final" / "model.safetensors").exists()
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    described = page[page.index("## Checkpoints") : page.index("## When something fails")]
    parts = list((folder / "checkpoints" / f"step-{STEPS:08}").iterdir())
    assert len(parts) >= 4
    assert [part.name for part in parts if f"`{part.name}{'/' * part.is_dir()}`" not in described] == []


def test_files_of_the_run_folder_are_in_the_guide(finished: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    described = page[page.index("## The run folder") : page.index("## The report, curve by curve")]
    ours = ("console.txt", ".lock", ".owner")  # the test's own, and who trains there
    parts = [part for part in finished["folder"].iterdir() if part.name not in ours]
    assert len(parts) >= 10
    assert [part.name for part in parts if f"`{part.name}{'/' * part.is_dir()}`" not in described] == []
