"""Workers beside the samplers: real actors, asked as a sampler asks them, killed, and in a run that learns."""

from __future__ import annotations

import os
import signal
from concurrent.futures import wait
from pathlib import Path
from statistics import mean
from typing import Any

import ray

from rl_api import load_run
from rl_api.task import TaskSpec
from rl_trainer.driver import train
from rl_trainer.observe.console import Console
from rl_trainer.rollout.task_workers import SimulatorActor, WorkerTarget
from rl_trainer.run.run_folder import RunFolder
from rl_trainer.run.stopping import StopRequest
from rl_trainer.tasks import load_task

LAKE = Path(__file__).parents[2] / "examples" / "frozen-lake.yaml"
TASK = load_run(LAKE).spec.task


def pid_of(actor: Any) -> int:
    return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))  # type: ignore[no-any-return]


def test_dialogues_go_on_where_they_were_when_a_simulator_is_killed(local_ray: None) -> None:
    spec = TaskSpec.model_validate(TASK.model_dump(by_alias=True))
    actor = ray.remote(SimulatorActor).options(num_cpus=0.5, max_restarts=-1).remote(spec, None)
    task = load_task(spec, 1, simulators=[WorkerTarget(actor, "simulator 0", 60.0)])
    start = next(prompt for prompt in map(task.prompt, range(100)) if prompt.text == "0")
    games = [task.environment(start, member) for member in range(3)]

    def step(moves: str) -> list[Any]:
        futures = [game.step(move) for game, move in zip(games, moves, strict=True)]  # type: ignore[union-attr]
        wait(futures, 120)
        return [future.result(0) for future in futures]

    assert [answer.observation for answer in step("RRD")] == ["1", "1", "5"]
    os.kill(pid_of(actor), signal.SIGKILL)
    assert [answer.observation for answer in step("RRD")] == ["2", "2", "10"]
    assert [answer.observation for answer in step("RDU")] == ["3", "7", "5"]
    ray.kill(actor)


def test_a_game_is_learned_while_simulators_step_it(tmp_path: Path, local_ray: None) -> None:
    changes = (
        "stop={maxSteps: 14}",
        "task.simulators.replicas=2",
        "task.evaluation.everySteps=14",
        "warmStart.maxSteps=25",
    )
    run = load_run(LAKE, changes)
    with (
        StopRequest() as stop,
        RunFolder(tmp_path / "run") as folder,
        (tmp_path / "console.txt").open("w") as stream,
        Console(run.name, max_steps=14, stream=stream) as console,
    ):
        summary = train(run, folder, console, stop)
    curve = summary["reward_curve"]
    assert mean(curve[-4:]) > mean(curve[:4]) + 0.15
    assert summary["groups_dropped"] == {}
