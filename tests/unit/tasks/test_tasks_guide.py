"""Every example in docs/tasks.md is loaded, and its Python is used."""

import json
import re
import sys
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from code_container import code_container

from rl_api.task import SOCKET_VARIABLE, TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.templates import VIEWS

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "tasks.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
TASKS = [yaml.safe_load(body)["task"] for language, body in BLOCKS if language == "yaml"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    for language, body in BLOCKS:
        if language == "python":
            (tmp_path / re.match(r"# (\w+\.py)\n", body).group(1)).write_text(body)
        elif language == "" and body.startswith("{"):
            (tmp_path / "questions.jsonl").write_text(body)
    # The example's data set of the hub, as a folder of its name.
    data = tmp_path / "openai" / "gsm8k"
    data.mkdir(parents=True)
    (data / "README.md").write_text("---\nconfigs: [{config_name: main, data_files: train.jsonl}]\n---\n")
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(9)]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    yield tmp_path
    for name in ("brief", "my_worlds"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "fields", TASKS, ids=lambda fields: fields.get("name") or fields.get("file") or fields["dataset"]["name"]
)
def test_examples(folder, fields, monkeypatch):
    with ExitStack() as stack:
        if fields.get("isolation") == "strict":
            listening, _ = stack.enter_context(code_container())
            monkeypatch.setenv(SOCKET_VARIABLE, str(listening))
        load_and_score(folder, fields)


class Scorer:
    """Stands for the worker of a reward model, which is no folder of this machine."""

    def wait_ready(self):
        pass

    def score(self, completions):
        return [0.5] * len(completions)


def load_and_score(folder, fields):
    task = load_task(TaskSpec.model_validate(fields), 0, search=folder, scorers=[Scorer()])
    for index in range(5):
        prompt = task.prompt(index)
        if prompt.solved and task.environment(prompt) is None:
            score = task.score(prompt, prompt.answer)
            assert (score.result(60) if isinstance(score, Future) else score).exact
        for segment in task.solution(prompt):
            assert segment.text


def test_all_examples_were_found():
    assert len(TASKS) == 17


def test_the_players_of_the_guessing_game(folder):
    fields = next(fields for fields in TASKS if fields.get("name") == "my_worlds:Guess")
    task = load_task(TaskSpec.model_validate(fields), 0, search=folder)
    prompt = task.prompt(0)
    secret = prompt.item["secret"]
    game = task.environment(prompt)
    assert game.reset() == prompt.text
    assert game.step("what").observation == "not a number\n"
    assert game.step(str(secret + 1)).observation == "less\n"
    assert game.step(f" {secret}\n").score.reward == pytest.approx(0.8)


def test_short_tasks_are_as_their_comments_say():
    commented = [body for language, body in BLOCKS if language == "yaml" and body.startswith("#")]
    assert len(commented) == 3
    for body in commented:
        example = re.search(r'"(.*?)" -> "(.*?)"', body).groups()
        task = load_task(TaskSpec.model_validate(yaml.safe_load(body)["task"]), 0)
        found = [task.prompt(index) for index in range(10)]
        assert example in [(prompt.text, prompt.answer) for prompt in found]


def test_all_views_are_described():
    table = GUIDE.split("| view | does |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)(?: SEP)?`", table.replace("`5.0`", "").replace("`5`", ""))) == set(VIEWS)
