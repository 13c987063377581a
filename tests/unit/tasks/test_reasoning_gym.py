import json
import random
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import Segment, load_task
from rl_trainer.tasks import reasoning_gym as module
from rl_trainer.tasks.guards import ARITHMETIC, FORMULAS, LITERALS, is_formula
from rl_trainer.tasks.reasoning_gym import ReasoningGym
from rl_trainer.tasks.split import BLOCK

SORTING = {
    "name": "number_sorting",
    "args": {"min_numbers": 3, "max_numbers": 4, "min_value": 0, "max_value": 9, "max_decimals": 0},
    "promptTemplate": "{metadata[original_numbers]:number|join }{metadata[direction][0]}=",
    "answerTemplate": "{metadata[sorted_numbers]:number|join }",
}


def load(name=None, seed=0, **fields):
    spec = {"environment": "reasoning-gym", "name": name, **fields}
    return load_task(TaskSpec.model_validate(spec), seed)


def test_a_generator_by_name_and_arguments():
    task = load("chain_sum", args={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1})
    prompt = task.prompt(3)
    assert prompt.text == prompt.item["question"]
    assert prompt.item["metadata"]["num_terms"] == 2
    assert task.score(prompt, f" {prompt.answer} ").exact
    assert task.score(prompt, "x").reward == 0
    assert task.solution(prompt) == [Segment(prompt.answer)]
    assert task.environment(prompt) is None


def test_templates_make_short_prompts():
    task = load(**SORTING)
    for index in range(50):
        prompt = task.prompt(index)
        digits, direction = prompt.text[:-2], prompt.text[-2:]
        assert digits.isdecimal()
        assert direction in ("a=", "d=")
        assert prompt.answer == "".join(sorted(digits, reverse=direction == "d="))


def test_prompts_follow_from_seed_and_index_alone():
    indices = [0, 7, BLOCK - 1, BLOCK, 3 * BLOCK + 5, 10**9, 10**9 + BLOCK, 5]
    first, again, other = load(**SORTING), load(**SORTING), load(seed=1, **SORTING)
    texts = [first.prompt(i).text for i in indices]
    assert [again.prompt(i).text for i in reversed(indices)] == texts[::-1]
    assert [other.prompt(i).text for i in indices] != texts
    assert len({first.prompt(i).text for i in range(200)}) > 150


@pytest.mark.parametrize("name", ["codeio", "list_functions"])
def test_generators_that_draw_from_the_global_generator(name):
    """These two of the library give other prompts every time they are asked."""
    first, again = load(name, rewards=[{"rule": "task"}]), load(name, rewards=[{"rule": "task"}])
    state = random.getstate()
    texts = [first.prompt(i).text for i in (0, 1, 2)]
    assert random.getstate() == state
    random.seed(5)
    assert [again.prompt(i).text for i in (2, 1, 0)] == texts[::-1]


def test_training_and_heldout_prompts_never_overlap():
    """count_primes here has 66 questions, 20 of them held out: both streams repeat themselves."""
    task = load("count_primes", args={"min_n": 1, "max_n": 11}, evaluation={"samples": 20})
    held = {prompt.text for prompt in task.heldout()}
    trained = {task.prompt(index).text for index in range(600)}
    assert len(held) == 20
    assert len(trained) > 35
    assert not held & trained


def test_too_few_distinct_prompts():
    with pytest.raises(
        TaskError, match=r"task: generator count_primes with these arguments has too few distinct prompts: 64"
    ):
        load("count_primes", args={"min_n": 1, "max_n": 4}, evaluation={"samples": 64})


def test_the_librarys_own_scorer():
    task = load("number_sorting", rewards=[{"rule": "task", "right": 5, "wrong": -5}])
    prompt = task.prompt(0)
    assert task.score(prompt, prompt.answer).reward == 5
    assert task.score(prompt, "no list").reward == -5
    # The library forgives an error of 1 per number; exact match does not.
    score = task.score(
        prompt, str([float(number) + 0.5 for number in prompt.item["metadata"]["sorted_numbers"]])
    )
    assert (score.reward, score.exact) == (5, False)


def test_a_completion_that_the_scorer_chokes_on_is_wrong():
    task = load("prime_factorization", rewards=[{"rule": "task"}])
    assert task.score(task.prompt(0), "not a number").reward == 0


def test_a_generator_without_a_single_right_answer():
    with pytest.raises(
        TaskError,
        match=r"rule exactMatch compares .*, but task rush_hour has no single right answer; use rule task",
    ):
        load("rush_hour")
    task = load("graph_color", rewards=[{"rule": "task"}])
    prompt = task.prompt(0)
    assert not prompt.solved
    assert not task.score(prompt, "x").exact
    example = json.dumps(prompt.item["metadata"]["possible_answer"])
    assert task.score(prompt, example).exact
    with pytest.raises(
        TaskError, match=r"task graph_color has no single right answer to learn from; set task.answerTemplate"
    ):
        task.solution(prompt)
    solved = load("graph_color", answerTemplate="{metadata[possible_answer]:json}")
    assert solved.solution(solved.prompt(0))[0].text.startswith("{")


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("chain_sums", {}, r"task.name: reasoning-gym has no generator 'chain_sums'; nearest: chain_sum"),
        ("@", {}, r"task.name: reasoning-gym has no generator '@'; it has ab, acre, "),
        (
            "chain_sum",
            {"min_term": 2},
            r"task.args.min_term: generator chain_sum has no such argument; nearest: min_terms",
        ),
        (
            "chain_sum",
            {"colour": 2},
            r"task.args.colour: generator chain_sum has no such argument; it has allow_negation, ",
        ),
        (
            "chain_sum",
            {"min_terms": 5, "max_terms": 2},
            r"task.args: generator chain_sum refuses its arguments: max_terms must be >= min_terms",
        ),
        (
            "chain_sum",
            {"min_terms": "two"},
            r"task.args: generator chain_sum refuses its arguments: '>' not supported",
        ),
        ("chain_sum", {"seed": 1}, r"task.args.seed: not allowed, as prompts follow the run's seed"),
        ("chain_sum", {"size": 1}, r"task.args.size: not allowed, as prompts never end"),
        (
            "number_sorting",
            {"min_value": 0, "max_value": 10**400},
            r"task.args: generator number_sorting failed to make a prompt: OverflowError",
        ),
        (
            "composite",
            {},
            r"task.args.datasets: generator composite needs a list of \{name, weight, config\}, found None",
        ),
        (
            "composite",
            {"datasets": [{"name": "chain_sums"}]},
            r"task.args.datasets\[0\].name: .* nearest: chain_sum",
        ),
        (
            "composite",
            {"datasets": ["chain_sum"]},
            r"task.args.datasets\[0\]: found 'chain_sum', allowed: a mapping",
        ),
    ],
)
def test_wrong_names_and_arguments(name, args, message):
    with pytest.raises(TaskError, match=message):
        load(name, args=args)


def test_several_generators_mixed():
    parts = [
        {"name": "chain_sum", "weight": 1},
        {"name": "gcd", "config": {"min_numbers": 2, "max_numbers": 2}},
    ]
    task = load("composite", args={"datasets": parts}, rewards=[{"rule": "task"}])
    prompts = [task.prompt(index) for index in range(20)]
    assert {prompt.item["metadata"]["source_dataset"] for prompt in prompts} == {"chain_sum", "gcd"}
    assert all(task.score(prompt, prompt.answer).exact for prompt in prompts)


@pytest.mark.parametrize(
    "args", [("ransom_note", {}), ("composite", {"datasets": [{"name": "ransom_note"}]})]
)
def test_generators_that_depend_on_the_order_of_hashes(args, monkeypatch):
    name, arguments = args
    monkeypatch.setattr(
        module, "sys", SimpleNamespace(flags=SimpleNamespace(hash_randomization=1), modules=sys.modules)
    )
    with pytest.raises(
        TaskError,
        match=r"generator ransom_note gives other prompts in every Python process unless PYTHONHASHSEED is 0",
    ):
        load(name, args=arguments)
    monkeypatch.setattr(
        module, "sys", SimpleNamespace(flags=SimpleNamespace(hash_randomization=0), modules=sys.modules)
    )
    assert load(name, args=arguments).prompt(0).text


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        TaskError, match=r"reasoning-gym cannot be imported \(.*\); install rltrain\[trainer\]"
    ):
        load("chain_sum")


EVALUATING = sorted(LITERALS | ARITHMETIC | FORMULAS)


@pytest.fixture
def fixed_hashes(monkeypatch):
    flags = SimpleNamespace(hash_randomization=0)
    monkeypatch.setattr(module, "sys", SimpleNamespace(flags=flags, modules=sys.modules))


@pytest.mark.parametrize("name", EVALUATING)
def test_scorers_that_evaluate_run_nothing_and_stay_quick(name, fixed_hashes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = ReasoningGym(name, {})
    entry = source.draw(0, 0)
    touch = "__import__('pathlib').Path('touched').touch()"
    attacks = [touch, f"[{touch}]", f"{touch} or 24", f"1 + 0*len(str({touch}))", f"(lambda: {touch})()"]
    attacks += [
        "9**9**9**9",
        "[9**9**9**9]",
        "x**99999999",
        "factorial(10**8)",
        "(" * 500,
        "[" * 5000,
        "1" * 100_000,
    ]
    attacks += ["((9**99)**99)**99", "x.__class__", "0or 24", "'" + "\\d" + "'"]
    for attack in attacks:
        started = time.thread_time()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert source.score(entry, attack) < 0.1
        assert time.thread_time() - started < 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", EVALUATING)
def test_scorers_that_evaluate_still_know_their_answers(name, fixed_hashes):
    source, task = ReasoningGym(name, {}), load(name, rewards=[{"rule": "task"}])
    for index in range(6):
        prompt = task.prompt(index)
        assert source.score(prompt.item, prompt.answer) == 1, prompt.answer


def test_lists_and_sums_are_still_read():
    source = ReasoningGym("spiral_matrix", {})
    entry = source.draw(0, 0)
    assert source.score(entry, str(entry["metadata"]["solution"])) == pytest.approx(0.1)
    source = ReasoningGym("countdown", {})
    entry = source.draw(0, 0)
    assert source.score(entry, f"  ({entry['answer']}) ") == 1
    assert source.score(entry, "1+1") == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("-3*x**2/2 + sin(x)*exp(2*x) + C", True),
        ("x**(3/2) - sqrt(x) + E + pi", True),
        ("x**n", True),
        ("1.5*x", True),
        ("log(x) + atanh(y)", True),
        ("2x", False),
        ("x if x else y", False),
        ("open(x)", False),
        ("log(x, 2)", False),
        ("x.y", False),
        ("[x]", False),
        ("'x'", False),
        ("1j", False),
        ("True", False),
        ("spam", False),
        ("x**2000", False),
        ("(x+1)**50", True),
        ("(x+1)**50**50", False),
        ("9" * 700, False),
        ("x" * 1001, False),
        ("\u03c0", False),
        ("", False),
    ],
)
def test_what_is_a_formula(text, formula):
    assert is_formula(text) is formula


def test_a_generator_that_prints_is_silenced(capsys):
    task = load("bf")
    assert [task.prompt(index).answer != "" for index in range(8)] == [True] * 8
    assert capsys.readouterr().out == ""


def test_the_import_is_quiet_and_leaves_plots_out():
    code = (
        "import sys; from rl_api.task import TaskSpec; from rl_trainer.tasks import load_task;"
        "spec = {'environment': 'reasoning-gym', 'name': 'game_of_life'};"
        "load_task(TaskSpec.model_validate(spec), 0).prompt(0);"
        "print([m for m in sys.modules if m.startswith('matplotlib')]);"
        "import matplotlib.pyplot; print(hasattr(matplotlib.pyplot, 'plot'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    assert run.stderr == ""
    assert run.stdout.split() == ["[]", "True"]
