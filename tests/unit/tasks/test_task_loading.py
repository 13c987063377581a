import json
import math
import pickle
import subprocess
import sys

import pytest

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import Prompt, Score, Segment, load_task
from rl_trainer.tasks.rows import PromptData, json_rows
from rl_trainer.tasks.types import HELDOUT_INDEX

LINES = [{"prompt": f"{a}+{b}", "answer": str(a + b), "level": a} for a in range(5) for b in range(5)]


@pytest.fixture
def load(tmp_path):
    def load(seed=0, lines=LINES, heldout=None, **fields):
        (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        spec = {"environment": "prompts", "file": "data.jsonl", **fields}
        return load_task(TaskSpec.model_validate(spec), seed, search=tmp_path, heldout=heldout)

    return load


def test_prompts_of_a_file(load):
    task = load(evaluation={"samples": 5})
    prompts = [task.prompt(index) for index in range(40)]
    assert [prompt.index for prompt in prompts] == list(range(40))
    held = task.heldout()
    assert [prompt.index for prompt in held] == [HELDOUT_INDEX + i for i in range(5)]
    assert task.heldout(2) == held[:2]
    assert {p.text for p in prompts} | {p.text for p in held} == {line["prompt"] for line in LINES}
    assert len({p.text for p in prompts}) == 20
    for prompt in prompts + held:
        assert prompt.item in LINES
        assert prompt.content == prompt.text == prompt.item["prompt"]
        assert prompt.answer == prompt.item["answer"]
        assert task.environment(prompt) is None


def test_what_another_process_has_read_is_not_looked_for(tmp_path):
    # The driver's: a sampler has no credentials of the object store.
    spec = TaskSpec.model_validate({"environment": "prompts", "file": "s3://nobody/knows.jsonl"})
    line = b'{"prompt": "1+1", "answer": "2"}'
    task = load_task(spec, 0, data=PromptData(json_rows([("knows.jsonl", line)]), ""))
    assert task.prompt(0).text == "1+1"


def test_loading_again_gives_the_same_and_another_seed_something_else(load):
    first, again, other = load(seed=3), load(seed=3), load(seed=4)
    indices = range(30)
    assert [first.prompt(i) for i in reversed(indices)] == [again.prompt(i) for i in indices][::-1]
    assert [first.prompt(i) for i in indices] != [other.prompt(i) for i in indices]


def test_duplicates_of_a_heldout_prompt_are_not_trained_on(load):
    task = load(lines=LINES * 3, evaluation={"samples": 12})
    held = {prompt.text for prompt in task.heldout()}
    assert len(held) == 12
    assert not held & {task.prompt(i).text for i in range(200)}


def test_templates_make_the_text_that_counts(load):
    task = load(
        promptTemplate="{metadata[level]}?", answerTemplate="={metadata[level]}", evaluation={"samples": 2}
    )
    texts = {task.prompt(i).text for i in range(60)}
    assert texts | {p.text for p in task.heldout()} == {f"{level}?" for level in range(5)}
    assert len(texts) == 3
    prompt = task.prompt(0)
    assert prompt.answer == f"={prompt.item['level']}"
    assert task.solution(prompt) == [Segment(prompt.answer)]


def test_the_answer_template_sees_the_question_as_it_was(load):
    task = load(promptTemplate="Q: {question}", answerTemplate="{question}={answer}")
    prompt = task.prompt(0)
    assert prompt.answer == f"{prompt.item['prompt']}={prompt.item['answer']}"


def test_the_template_of_a_chat_applies_to_its_last_message(load):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1"}]
    task = load(lines=[{"prompt": chat, "answer": "2"}], promptTemplate="{question}=")
    prompt = task.prompt(0)
    assert prompt.messages == ({"role": "system", "content": "s"}, {"role": "user", "content": "1+1="})
    assert prompt.text == "s\n1+1="
    assert prompt.item["prompt"] == chat


def test_scores(load):
    task = load(
        rewards=[{"rule": "exactMatch", "right": 5, "wrong": -5}, {"rule": "fraction", "weight": 0.5}]
    )
    prompt = task.prompt(0)
    assert task.score(prompt, f" {prompt.answer}\n") == Score(5.5, True, {"exactMatch": 5.0, "fraction": 0.5})
    assert task.score(prompt, "x") == Score(-5.0, False, {"exactMatch": -5.0, "fraction": 0.0})


def test_exact_is_by_the_answer_whatever_the_rewards(load):
    task = load(rewards=[{"rule": "regex", "pattern": "."}])
    prompt = task.prompt(0)
    assert task.score(prompt, "x") == Score(1.0, False, {"regex": 1.0})
    assert task.score(prompt, prompt.answer).exact


def test_an_answer_that_is_empty_is_an_answer(load):
    task = load(lines=[{"prompt": "say nothing", "answer": ""}])
    assert task.score(task.prompt(0), " ").exact
    assert not task.score(task.prompt(0), "x").exact


def test_prompts_without_answers(load, tmp_path):
    rewards = [{"rule": "regex", "pattern": r"^\w+$"}]
    task = load(lines=[{"prompt": "write a word"}], rewards=rewards)
    prompt = task.prompt(0)
    assert task.score(prompt, "word") == Score(1.0, False, {"regex": 1.0})
    assert not task.score(prompt, "").exact
    with pytest.raises(
        TaskError, match=r"warmStart: task data.jsonl has no single right answer to learn from"
    ):
        task.solution(prompt)


@pytest.mark.parametrize(
    "fields", [{}, {"evaluation": {"samples": 1}, "rewards": [{"rule": "regex", "pattern": "x"}]}]
)
def test_answers_are_asked_for_where_they_are_compared_with(load, fields):
    lines = [{"prompt": "a"}, {"prompt": "b"}]
    with pytest.raises(TaskError, match=r"data.jsonl:1: there is no field 'answer'"):
        load(lines=lines, **fields)


def test_more_heldout_prompts_than_were_kept_out(load):
    with pytest.raises(
        TaskError, match=r"task.evaluation.samples: 6 held-out prompts are wanted, but 5 were kept out"
    ):
        load(evaluation={"samples": 5}).heldout(6)
    assert load().heldout() == []


def test_the_number_kept_out_may_be_given(load):
    assert len(load(heldout=7).heldout()) == 7
    assert len(load(heldout=7, evaluation={"samples": 3}).heldout()) == 7


def test_a_file_that_is_too_small(load):
    with pytest.raises(
        TaskError, match=r"task.file: data.jsonl has 25 distinct prompts, but 64 are to be held out"
    ):
        load(evaluation={})


def test_errors_of_templates_come_when_loading(load):
    with pytest.raises(
        TaskError, match=r"task.promptTemplate: metadata has no 'question' but answer, level, prompt"
    ):
        load(promptTemplate="{metadata[question]}")
    with pytest.raises(TaskError, match=r"task: the prompt of .* is empty"):
        load(promptTemplate=" ")


def test_negative_indices_are_refused(load):
    with pytest.raises(ValueError, match="-1 is negative"):
        load().prompt(-1)


def test_prompts_travel_between_processes(load):
    prompt = load().prompt(0)
    assert pickle.loads(pickle.dumps(prompt)) == prompt


def test_the_priority_of_a_prompt_is_that_of_its_item():
    assert Prompt(0, "a", "b", {}).priority == 0.0
    assert Prompt(0, "a", "b", {"priority": 3}).priority == 3.0
    for wrong in ("high", True, None, math.nan):
        with pytest.raises(
            TaskError, match=f"found {wrong!r} as priority of prompt 5, allowed: a finite number"
        ):
            _ = Prompt(5, "a", "b", {"priority": wrong}).priority


def test_importing_tasks_imports_no_heavy_library():
    code = (
        "import sys, rl_trainer.tasks, rl_trainer.tasks.loading;"
        "heavy = ('reasoning_gym', 'torch', 'transformers', 'ray', 'fsspec', 'sympy', 'pyarrow', 'datasets');"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.strip() == "[]"
