import sys
from statistics import mean

import pytest

from rl_api.errors import RewardError, TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import Segment, load_task
from rl_trainer.tasks.types import Score, StepResult


def calculator(seed=0, **fields):
    spec = {"environment": "tool-use", "name": "calculator", **fields}
    return load_task(TaskSpec.model_validate(spec), seed)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Writes a user's environment; returns (class body, spec fields) -> task."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(body: str, **fields):
        text = "from rl_trainer.tasks import StepResult\nclass World:\n" + body
        (tmp_path / "worlds_of_mine.py").write_text(text)
        sys.modules.pop("worlds_of_mine", None)
        spec = {"environment": "tool-use", "name": "worlds_of_mine:World", **fields}
        return load_task(TaskSpec.model_validate(spec), 0, search=tmp_path)

    yield make
    sys.modules.pop("worlds_of_mine", None)


GUESS = """\
    def __init__(self, item, args):
        self.item = item
    @staticmethod
    def generate(rng, args):
        return {"secret": rng.randint(0, args["most"]), "name": rng.random()}
    @staticmethod
    def solution(item, args):
        return ["0", str(item["secret"] or 1), str(item["secret"])][: 1 if item["secret"] == 0 else 2]
    def reset(self):
        self.tries = 0
        return f"Guess {self.item['name']}"
    def step(self, completion):
        self.tries += 1
        secret = self.item["secret"]
        if completion.strip() == str(secret):
            return StepResult("", reward=1.0 / self.tries, done=True)
        return StepResult("more" if completion < str(secret) else "less", reward=-0.1)
"""


def test_a_dialogue_is_scored_at_its_end():
    task = calculator(rewards=[{"right": 5, "wrong": -5}])
    prompt = task.prompt(0)
    episode = task.environment(prompt)
    assert episode.reset() == prompt.text
    assert episode.step("<1+1>") == StepResult("2\n")
    assert episode.step("<1+>") == StepResult("error: not arithmetic\n")
    last = episode.step(prompt.answer)
    assert last.done
    assert last.score == Score(5.0, True, {"exactMatch": 5.0})


def test_a_wrong_answer():
    task = calculator()
    episode = task.environment(task.prompt(0))
    assert episode.step("no").score == Score(0.0, False, {"exactMatch": 0.0})


def test_the_last_turn_allowed_ends_the_dialogue_without_an_answer():
    task = calculator(maxTurns=2, rewards=[{"rule": "number", "wrong": -1}])
    prompt = task.prompt(0)
    episode = task.environment(prompt)
    episode.reset()
    assert not episode.step("<1+1>").done
    # The number in the call is the right one, but a call is not an answer.
    last = episode.step(f"<0+{prompt.answer}>")
    assert last.done
    assert last.score == Score(-1.0, False, {"number": -1.0})


def test_a_dialogue_that_is_cut_off_has_a_score():
    task = calculator(rewards=[{"wrong": -1}])
    episode = task.environment(task.prompt(0))
    episode.step("<1+1>")
    assert episode.final_score() == Score(-1.0, False, {"exactMatch": -1.0})


def test_reset_begins_again():
    task = calculator(maxTurns=2)
    prompt = task.prompt(0)
    episode = task.environment(prompt)
    episode.step("<1>")
    episode.reset()
    assert not episode.step("<1>").done
    assert episode.step(prompt.answer).score.exact


def test_latency_is_exponential_and_follows_from_prompt_member_and_turn():
    task = calculator(toolLatency={"mean": "2s"}, maxTurns=1000)

    def delays(index, member, turns=3):
        episode = task.environment(task.prompt(index), member)
        episode.reset()
        return [episode.step("<1>").delay_seconds for _ in range(turns)]

    assert delays(3, 1) == delays(3, 1)
    different = [*delays(0, 0), *delays(0, 1), *delays(1, 0)]
    assert len(set(different)) == 9
    many = [delay for index in range(4) for delay in delays(index, 0, 500)]
    assert mean(many) == pytest.approx(2, rel=0.1)
    assert sum(delay > 2 for delay in many) / len(many) == pytest.approx(0.368, abs=0.04)  # exp(-1)
    other = calculator(seed=1, toolLatency={"mean": "2s"})
    assert other.environment(other.prompt(3), 1).step("<1>").delay_seconds != delays(3, 1)[0]


def test_no_latency_for_the_answer_and_none_unless_asked():
    task = calculator(toolLatency={"mean": "2s"})
    assert task.environment(task.prompt(0)).step("3").delay_seconds == 0
    task = calculator()
    assert task.environment(task.prompt(0)).step("<3>").delay_seconds == 0


def test_the_solution_is_the_whole_dialogue():
    task = calculator(toolLatency={"mean": "2s"}, maxTurns=1)
    prompt = task.prompt(5)
    expression = prompt.item["expression"]
    assert task.solution(prompt) == [
        Segment(f"<{expression}>"),
        Segment(f"{prompt.answer}\n", trained=False),
        Segment(prompt.answer),
    ]


def test_templates_apply_to_the_question():
    task = calculator(promptTemplate="Q: {question}", answerTemplate="A: {answer}")
    prompt = task.prompt(0)
    assert prompt.text == f"Q: {prompt.item['question']}"
    assert task.environment(prompt).reset() == prompt.text
    assert task.environment(prompt).step(f"A: {prompt.item['answer']}").score.exact


def test_a_users_environment_with_its_own_reward(world):
    task = world(
        GUESS, args={"most": 9}, rewards=[{"rule": "task", "weight": 2.0}], evaluation={"samples": 5}
    )
    assert not {p.text for p in task.heldout()} & {task.prompt(i).text for i in range(50)}
    prompt = task.prompt(0)
    secret = prompt.item["secret"]
    episode = task.environment(prompt)
    assert episode.reset() == prompt.text == f"Guess {prompt.item['name']}"
    assert episode.step("x").observation == "less"
    last = episode.step(str(secret))
    assert last.score.parts == {"task": pytest.approx(2 * (0.5 - 0.1))}
    assert not last.score.exact  # not the full score of 1
    assert task.environment(prompt).step(str(secret)).score.exact


def test_its_solution_is_played(world):
    task = world(GUESS, args={"most": 9}, rewards=[{"rule": "task"}])
    prompt = next(p for p in map(task.prompt, range(50)) if p.item["secret"] > 0)
    assert task.solution(prompt) == [
        Segment("0"),
        Segment("more", False),
        Segment(str(prompt.item["secret"])),
    ]


def test_no_answer_and_a_rule_that_needs_one(world):
    with pytest.raises(
        TaskError, match=r"rule exactMatch compares .* has no single right answer; use rule task, function"
    ):
        world(GUESS, args={"most": 9})


def test_a_file_may_hold_the_items(world, tmp_path):
    (tmp_path / "items.jsonl").write_text("".join(f'{{"secret": {i}, "name": "n{i}"}}\n' for i in range(6)))
    task = world(GUESS, file="items.jsonl", rewards=[{"rule": "task"}], evaluation={"samples": 2})
    trained = {task.prompt(i).text for i in range(20)}
    assert trained | {p.text for p in task.heldout()} == {f"Guess n{i}" for i in range(6)}
    assert len(trained) == 4


def test_chat_messages_as_the_question(world):
    task = world(
        """\
    def __init__(self, item, args): pass
    @staticmethod
    def generate(rng, args): return {"answer": "a"}
    def reset(self): return [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    def step(self, completion): return StepResult(done=True)
""",
        promptTemplate="<{question}>",
    )
    prompt = task.prompt(0)
    assert prompt.content == ({"role": "system", "content": "s"}, {"role": "user", "content": "<u>"})
    assert prompt.text == "s\n<u>"
    assert task.environment(prompt).reset() == prompt.content


PLAIN = """\
    def __init__(self, item, args): self.args = args
    @staticmethod
    def generate(rng, args): return {"answer": "a"}
    def reset(self): return "q"
    def step(self, completion): STEP
"""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            "raise KeyError('x')",
            r"environment worlds_of_mine:World: step raised KeyError: 'x' \(.*mine.py:7\), at turn 1",
        ),
        (
            "return 'text'",
            r"step returned 'text', allowed: a StepResult, at turn 1 of prompt 0",
        ),
        ("return StepResult(3)", r"observation is 3, allowed: text, at turn 1"),
        ("return StepResult(reward=float('nan'))", r"reward is nan, allowed: a finite number"),
        ("return StepResult(reward='1')", r"reward is '1', allowed"),
        ("return StepResult(delay_seconds=-1)", r"delay_seconds is -1, allowed"),
    ],
)
def test_what_a_step_does_wrong_is_a_sentence(world, step, message):
    task = world(PLAIN.replace("STEP", step))
    with pytest.raises(RewardError, match=message):
        task.environment(task.prompt(0)).step("x")


def test_a_delay_of_the_environment_itself_is_kept(world):
    task = world(PLAIN.replace("STEP", "return StepResult('o', delay_seconds=0.5)"))
    assert task.environment(task.prompt(0)).step("x").delay_seconds == 0.5


HANGS = """\
    def __init__(self, item, args): self.count = item["first"]
    @staticmethod
    def generate(rng, args): return {"answer": "a", "first": rng.randint(0, 99)}
    def reset(self): return f"q{self.count}"
    def step(self, completion):
        while completion == "hang":
            pass
        self.count += ADD
        return StepResult(f"{self.count}", reward=0.5, done=completion == "end")
"""


def hang(dialogue, monkeypatch):
    """Has the process killed. What other calls take a busy machine may take longer for."""
    dialogue.reset()
    with monkeypatch.context() as soon, pytest.raises(RewardError, match="has not returned"):
        soon.setattr(dialogue._maker, "_seconds", 0.2)
        dialogue.step("hang")


def test_a_step_that_hangs_is_killed(world, monkeypatch):
    monkeypatch.setattr("rl_trainer.tasks.environments.episode.STEP_SECONDS", 1.0)
    task = world(HANGS.replace("ADD", "1"))
    prompt = task.prompt(4)
    with pytest.raises(
        RewardError,
        match=r"environment worlds_of_mine:World: step has not returned after 1 s and stands "
        r"at .*worlds_of_mine.py:(8|9), at turn 1 of prompt 4",
    ):
        task.environment(prompt).step("hang")


def test_dialogues_go_on_where_they_were_when_another_has_hung(world, monkeypatch):
    task = world(HANGS.replace("ADD", "1"), rewards=[{"rule": "task"}])
    prompt = task.prompt(0)
    first = prompt.item["first"]
    one, begun, hangs = (task.environment(prompt, member) for member in range(3))
    begun.reset()
    assert [one.step("a").observation, one.step("b").observation] == [f"{first + 1}", f"{first + 2}"]
    hang(hangs, monkeypatch)
    assert one.step("c").observation == f"{first + 3}"
    assert begun.step("c").observation == f"{first + 1}"
    assert one.step("end").score.parts == {"task": 2.0}


def test_a_dialogue_that_cannot_be_played_again_says_so(world, monkeypatch):
    task = world(HANGS.replace("ADD", "__import__('os').getpid()"))
    prompt = task.prompt(0)
    one = task.environment(prompt)
    one.step("a")
    hang(task.environment(prompt), monkeypatch)
    with pytest.raises(
        RewardError,
        match=r"its process was replaced, and played again, step gave another answer, at turn 1 of prompt 0",
    ):
        one.step("b")


def test_dialogues_that_have_ended_are_forgotten(world):
    body = PLAIN.replace("STEP", "return StepResult(str(__import__('gc').collect() and 0 or len(LIVE)))")
    task = world(
        "    def __new__(cls, *_):\n        one = object.__new__(cls); LIVE.add(one); return one\n"
        + body
        + "import weakref\nLIVE = weakref.WeakSet()\n"
    )
    prompt = task.prompt(0)
    for _ in range(5):
        task.environment(prompt).reset()
    last = task.environment(prompt)
    assert last.step("x").observation == "1"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    pass\n", r"task.name: class worlds_of_mine:World has no reset and no step; see docs/tasks.md"),
        (
            "    def reset(self): pass\n    def step(self, c): pass\n",
            r"World has no generate\(rng, args\), so task.file or task.dataset must hold",
        ),
        (
            PLAIN.replace('return "q"', "return 5").replace("STEP", "pass"),
            r"reset returned 5, allowed: text or chat messages, at item 0",
        ),
        (
            PLAIN.replace('return "q"', 'return ["q"]').replace("STEP", "pass"),
            r"environment worlds_of_mine:World: reset, message 0: found 'q'",
        ),
        (
            PLAIN.replace('return "q"', "return 1 / 0").replace("STEP", "pass"),
            r"reset raised ZeroDivisionError: .* at item 0",
        ),
        (
            PLAIN.replace('{"answer": "a"}', "None").replace("STEP", "pass"),
            r"generate returned None, allowed: a dict, at item 0",
        ),
    ],
)
def test_classes_that_cannot_be_used(world, body, message):
    with pytest.raises(TaskError, match=message):
        world(body)


def test_a_class_without_a_solution_or_with_a_wrong_one(world):
    task = world(PLAIN.replace("STEP", "return StepResult(done=True)"))
    with pytest.raises(
        TaskError, match=r"warmStart: environment worlds_of_mine:World has no solution\(item, args\)"
    ):
        task.solution(task.prompt(0))
    body = (
        PLAIN.replace("STEP", "return StepResult(done=True)")
        + "    @staticmethod\n    def solution(i, a): return 'ab'\n"
    )
    task = world(body)
    with pytest.raises(TaskError, match="its own solution ends after turn 1 of 2"):
        task.solution(task.prompt(0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "calculater",
            r"task.name: found 'calculater', allowed: calculator, search, or a class .*; did you mean calculator\?",
        ),
        (
            "sudoku",
            r"task.name: found 'sudoku', allowed: calculator, search, or a class of yours as module:Class$",
        ),
        ("not_there:World", r"task.name: there is no module 'not_there'"),
    ],
)
def test_unknown_environments(name, message):
    with pytest.raises(TaskError, match=message):
        load_task(TaskSpec.model_validate({"environment": "tool-use", "name": name}), 0)


def test_wrong_arguments_of_the_calculator():
    with pytest.raises(TaskError, match=r"^task.args.digits: calculator has no such argument"):
        calculator(args={"digits": 2})
