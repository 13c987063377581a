"""Gymnasium's own environments as dialogues."""

import sys

import pytest

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task

LAKE = {"make": {"is_slippery": False}, "actions": "LDRU"}


def games(name="FrozenLake-v1", search=None, **fields):
    spec = {"environment": "gymnasium", "name": name, "rewards": [{"rule": "task"}], **fields}
    return load_task(TaskSpec.model_validate({"maxTurns": 50, **spec}), 0, search=search)


def play(task, moves, index=0, member=0):
    episode = task.environment(task.prompt(index), member)
    episode.reset()
    return [episode.step(move) for move in moves]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Functions of a user's, in a module beside the run file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lakes_of_mine.py").write_text(
        "def lake(rng): return {'map_name': rng.choice(['4x4', '8x8'])}\n"
        "def seen(observation, info, env): return f'{env.unwrapped.ncol}:{observation}'\n"
        "def number(observation, info, env): return observation\n"
        "def move(text, env): return 'LDRU'.index(text[-1])\n"
        "def cost(reward, observation, info): return reward - 0.25\n"
        "def way(env): return list('DDRRDR')\n"
    )
    yield tmp_path
    sys.modules.pop("lakes_of_mine", None)


def test_the_goal_is_worth_what_the_game_says():
    task = games(args=LAKE)
    assert task.prompt(0).text == "0"
    answers = play(task, "RRDDDR")
    assert [answer.observation for answer in answers] == ["1", "2", "6", "10", "14", "15"]
    assert [answer.done for answer in answers] == [False] * 5 + [True]
    assert answers[-1].score.reward == 1.0
    assert answers[-1].score.exact


def test_a_hole_is_the_end():
    (*_, last) = play(games(args=LAKE), "RD")
    assert last.done
    assert not last.score.exact


@pytest.mark.parametrize("turn", ["X", "", "RR", "9"])
def test_what_is_no_action_changes_nothing(turn):
    first, said, then = play(games(args=LAKE | {"invalid": -0.5}), ["R", turn, "R"])
    assert (first.observation, said.observation, said.reward) == ("1", "?1", -0.5)
    assert then.observation == "2"


def test_a_game_that_takes_too_long_is_over():
    answers = play(games(args=LAKE | {"make": {"is_slippery": False, "max_episode_steps": 3}}), "LLL")
    assert [answer.done for answer in answers] == [False, False, True]


def test_chance_differs_by_member_and_repeats():
    task = games(args={"actions": "LDRU"})

    def walk(member):
        return [answer.observation for answer in play(task, "UUUUUUUU", member=member)]

    assert walk(0) == walk(0)
    assert len({tuple(walk(member)) for member in range(8)}) > 1


def test_observations_of_few_numbers_and_their_precision():
    task = games("CartPole-v1", args={"precision": 1})
    assert task.prompt(0).text == "0.0 0.0 0.0 0.0"
    assert len({games("CartPole-v1").prompt(index).text for index in range(5)}) == 5
    (answer,) = play(task, ["1"])
    assert answer.reward == 1.0


def test_actions_of_a_box():
    task = games("Pendulum-v1")
    right, wrong, far, words = play(task, ["0.5", "0.5 0.5", "7", "a"])
    assert not right.observation.startswith("?")
    assert {answer.observation for answer in (wrong, far, words)} == {f"?{right.observation}"}


def test_functions_of_the_user(own):
    fields = {
        "instance": "lake",
        "observation": "seen",
        "action": "move",
        "reward": "cost",
        "solution": "way",
    }
    args = {name: f"lakes_of_mine:{value}" for name, value in fields.items()}
    task = games(search=own, args={"make": {"is_slippery": False}, **args})
    prompts = [task.prompt(index) for index in range(20)]
    assert {prompt.text for prompt in prompts} == {"4:0", "8:0"}
    small = next(prompt for prompt in prompts if prompt.text == "4:0")
    answers = play(task, ["go R", "go R"], index=small.index)
    assert [(answer.observation, answer.reward) for answer in answers] == [("4:1", -0.25), ("4:2", -0.25)]
    said = task.solution(small)
    assert [segment.text for segment in said if segment.trained] == list("DDRRDR")


def test_random_play_shows_what_a_turn_looks_like():
    task = games(args=LAKE)
    seen = {
        "".join(one.text for one in task.solution(task.prompt(index)) if one.trained) for index in range(20)
    }
    assert len(seen) > 5
    assert set("".join(seen)) == set("LDRU")
    assert max(map(len, seen)) <= 8


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("FrozenLeak-v1", {}, r"task.name: FrozenLeak-v1 is no environment of Gymnasium \(.*FrozenLake"),
        ("no_module:Game-v0", {}, r"task.name: no_module:Game-v0 is no environment of Gymnasium"),
        (
            "FrozenLake-v1",
            {"moves": "LDRU"},
            r"task.args.moves: environment gymnasium has no such argument; it has",
        ),
        ("FrozenLake-v1", {"make": []}, r"task.args.make: found \[\], allowed: an object"),
        (
            "FrozenLake-v1",
            {"make": {"size": 3}},
            r"task.args.make: FrozenLake-v1 cannot be made with {'size': 3}",
        ),
        (
            "FrozenLake-v1",
            {"make": {"render_mode": "human"}},
            r"task.args.make: found {'render_mode': 'human'}, allowed: an object without render_mode: human",
        ),
        (
            "FrozenLake-v1",
            {"actions": "LDRL"},
            r"task.args.actions: found 'LDRL', allowed: names of the actions, each of which there is once",
        ),
        (
            "FrozenLake-v1",
            {"actions": "LR"},
            r"task.args.actions: found 2 names, allowed: one for each of the 4",
        ),
        (
            "FrozenLake-v1",
            {"precision": -1},
            r"task.args.precision: found -1, allowed: a whole number from 0 to 9",
        ),
        ("FrozenLake-v1", {"invalid": "x"}, r"task.args.invalid: found 'x', allowed: a finite number"),
        ("FrozenLake-v1", {"reward": 5}, r"task.args.reward: found 5, allowed: module:function"),
        (
            "FrozenLake-v1",
            {"observation": "lakes_of_mine:number"},
            r"task.args.observation: it returned 0, allowed: text",
        ),
        (
            "FrozenLake-v1",
            {"action": "lakes_of_mine:mvoe"},
            r"has no 'mvoe'.*did you mean lakes_of_mine:move",
        ),
        (
            "Pendulum-v1",
            {"actions": "ab"},
            r"task.args.actions: found names, allowed: none, as actions are Box",
        ),
    ],
)
def test_wrong_arguments(own, name, args, message):
    with pytest.raises(TaskError, match=message):
        games(name, own, args=args)


def test_actions_that_nobody_can_write():
    task = games("Pendulum-v1")
    with pytest.raises(TaskError, match=r"warmStart: actions of Box.* set task.args.solution"):
        task.solution(task.prompt(0))
