"""`buffer.order: priority`: of what is ready, what the task holds most important is trained on first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training_runs import PROMPTS, RunFiles

from rl_api import load_run
from rl_trainer.tasks import load_task

pytestmark = pytest.mark.usefixtures("local_ray")


def mixed(folder: Path, priorities: list[object], order: str) -> RunFiles:
    """Staleness 3 admits 4 batches at once, and the sampler has a place for all of them: they become ready together."""
    files = RunFiles(
        folder,
        buffer={"capacity": 4 * PROMPTS, "maxStaleness": 3, "order": order},
        sampler={"maxSequences": 64},
        stop={"maxSteps": 1},
    )
    lines = [
        {"prompt": f"say {100 + number}:", "answer": "", "priority": priority}
        for number, priority in enumerate(priorities)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return files


def first_batch(files: RunFiles) -> list[float]:
    files.run().assert_well()
    spec = load_run(files.file).spec
    task = load_task(spec.task, spec.seed, search=files.folder)
    return [task.prompt(index).priority for index in files.steps[0].prompts]


def test_the_first_batch_holds_the_highest_priorities(tmp_path: Path):
    """Priorities 0 to 15 in any order: the four highest are trained on, and without the order they are not."""
    priorities: list[object] = [float(7 * number % 16) for number in range(16)]
    assert first_batch(mixed(tmp_path / "priority", priorities, "priority")) == [15.0, 14.0, 13.0, 12.0]
    assert first_batch(mixed(tmp_path / "fifo", priorities, "fifo")) != [15.0, 14.0, 13.0, 12.0]


def test_a_priority_that_is_no_number_ends_the_run_with_a_sentence(tmp_path: Path):
    outcome = mixed(tmp_path, ["high"] * 16, "priority").run()
    assert outcome.code == 2
    assert "buffer.order is priority: found 'high' as priority of prompt" in outcome.sentence
