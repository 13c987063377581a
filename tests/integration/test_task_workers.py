"""Workers beside the samplers: real actors, asked as a sampler asks them, killed, and in a run that learns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from statistics import mean
from typing import Any, cast

import pytest
import ray
import torch
from scored import scored
from train_here import train_here
from transformers import AutoConfig, AutoModelForSequenceClassification
from two_nodes import in_a_process

from rl_api import load_run
from rl_api.errors import PlacementError, RLTrainError
from rl_api.planner.profile import load_profile
from rl_api.task import TaskSpec
from rl_trainer.buffer.actor import Batch
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.shared_folder import share_folder
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.observe.metrics import METRICS_FILE, read_metrics
from rl_trainer.observe.timeline import TIMELINE_FILE, read_timeline
from rl_trainer.placement.places import place_run
from rl_trainer.rollout.reward_model import RewardModel
from rl_trainer.rollout.simulator_actor import SimulatorActor
from rl_trainer.rollout.task_workers import (
    QUEUE_SECONDS,
    TaskWorkers,
    WorkerScorer,
    WorkerTarget,
)
from rl_trainer.run.actors import Actors
from rl_trainer.run.local_ray.processes import only_needed_processes, patient
from rl_trainer.tasks import load_task
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.scoring import Completion
from rl_trainer.trajectory import Trajectory

EXAMPLES = Path(__file__).parents[2] / "examples"
LAKE = EXAMPLES / "frozen-lake.yaml"
TASK = load_run(LAKE).spec.task


def pid_of(actor: Any) -> int:
    call = actor.__ray_call__.options(max_task_retries=-1).remote(lambda _: os.getpid())
    return ray.get(call, timeout=240)  # type: ignore[no-any-return]


def test_dialogues_go_on_where_they_were_when_a_simulator_is_killed(local_ray: None) -> None:
    spec = TaskSpec.model_validate(TASK.model_dump(by_alias=True))
    group = WorkerGroup.launch(
        "simulator", SimulatorActor, {0: (0, spec, None)}, lambda _: {"num_cpus": 0.5, "max_restarts": -1}
    )
    actor = group.actors[0]
    task = load_task(spec, 1, simulators=[WorkerTarget(group, 0, 60.0)])
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


def shown(run: Path, row: str) -> set[str]:
    """What the timeline has on rows that are called so."""
    return {span.name for span in read_timeline(run / TIMELINE_FILE) if span.actor.startswith(row)}


def test_a_game_is_learned_while_simulators_step_it(tmp_path: Path, local_ray: None) -> None:
    changes = (
        "stop={maxSteps: 14}",
        "task.simulators.replicas=2",
        "task.evaluation.everySteps=14",
        "warmStart.maxSteps=25",
    )
    run = load_run(LAKE, changes)
    summary = train_here(run, tmp_path / "run")
    curve = summary["reward_curve"]
    assert mean(curve[-4:]) > mean(curve[:4]) + 0.15
    assert summary["groups_dropped"] == {}
    found = load_profile(tmp_path / "run")
    assert (found.devices.simulators, found.devices.reward_models, found.judge_seconds) == (2, 0, 0.0)
    # Of what an answer waits, each of its turns at least the way to a worker and back, a part is work for it.
    assert found.tool_seconds > found.simulator_seconds + found.queued_seconds
    assert found.simulator_seconds > 0
    assert shown(tmp_path / "run", "environments of sampler ") == {"environment"}


def write_classifier(folder: Path) -> None:
    """A reward model: the preset's decoder and tokenizer, and a head."""
    run = load_run(EXAMPLES / "quickstart.yaml").spec
    assert run.model.tiny is not None
    write_tiny(folder, run.model.tiny, 5)
    config = AutoConfig.from_pretrained(str(folder))
    config.num_labels, config.pad_token_id = 1, 0
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(model.score.weight, std=0.3)
    model.save_pretrained(str(folder))


def test_a_run_is_rewarded_by_a_model_whose_worker_is_killed(
    tmp_path: Path, local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost, and every reward is what the model gives the completion alone."""
    write_classifier(tmp_path / "judge")
    changes = (
        "stop={maxSteps: 4}",
        "warmStart=null",
        "task.evaluation={samples: 8, everySteps: 2}",
        "task.rewards=[{rule: model, weight: 2}]",
        f"task.rewardModel={{source: {tmp_path / 'judge'}, cpu: 0.5}}",
        "algorithm.promptsPerStep=8",
    )
    run = load_run(EXAMPLES / "quickstart.yaml", changes)
    workers: list[Any] = []
    pids: list[int] = []
    trained: list[tuple[int, Trajectory]] = []
    launch, next_part = TaskWorkers.launch, Actors.next_part

    def launched(*args: Any) -> TaskWorkers:
        found = launch(*args)
        workers.extend(found.reward_models.actors.values())
        return found

    def taken(actors: Actors, begin: int, end: int, meanwhile: Any) -> Batch:
        pids.append(pid_of(workers[0]))
        if len(pids) == 2:
            os.kill(pids[-1], signal.SIGKILL)
        batch = next_part(actors, begin, end, meanwhile)
        for group, payload in zip(
            batch.groups, fetch_payloads([one.payload for one in batch.groups]), strict=True
        ):
            trained.extend((group.group_id, one) for one in group.trajectories(payload))
        return batch

    monkeypatch.setattr(TaskWorkers, "launch", launched)
    monkeypatch.setattr(Actors, "next_part", taken)
    summary = train_here(run, tmp_path / "run")
    found = load_profile(tmp_path / "run")
    assert (found.devices.reward_models, found.devices.simulators, found.tool_seconds) == (1, 0, 0.0)
    assert found.judge_seconds > 0
    assert found.score_seconds < found.judge_seconds, "samplers decode meanwhile"
    assert shown(tmp_path / "run", "reward models of sampler ") == {"judge"}
    assert sum(record.time_judge for record in read_metrics(tmp_path / "run" / METRICS_FILE)) > 0
    assert len(set(pids)) == 2
    assert (summary["groups_dropped"], len(summary["reward_curve"])) == ({}, 4)
    assert run.spec.task.reward_model is not None
    model = RewardModel(tmp_path / "judge", run.spec.task.reward_model)
    tokenizer = load_tokenizer(tmp_path / "judge")
    task = load_task(run.spec.task, run.spec.seed, heldout=8)
    asked = []
    for index, one in trained:
        said = one.tokens[one.mask].tolist()
        text = tokenizer.decode(said[:-1] if said[-1] in tokenizer.stop_ids else said)
        asked.append(Completion.of(task.prompt(index), text))
    assert len(asked) == 4 * 8 * run.spec.algorithm.group_size
    wanted = [2 * float(scored(model, [one])[0]) for one in asked]
    assert [one.reward for _, one in trained] == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_a_run_whose_models_have_no_gpus_does_not_begin(tmp_path: Path, local_ray: None) -> None:
    write_classifier(tmp_path / "judge")
    changes = (
        "task.rewards=[{rule: model}]",
        f"task.rewardModel={{source: {tmp_path / 'judge'}, accelerators: 1, replicas: 1024}}",
    )
    run = load_run(EXAMPLES / "quickstart.yaml", changes)
    wanted = r"^placement: 1024 reward models need a GPU each \(task\.rewardModel\.accelerators\), and found \d+; add GPUs"
    with pytest.raises(PlacementError, match=wanted):
        train_here(run, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def score_where_ray_has_a_gpu(folder: Path) -> None:
    changes = (
        "task.rewards=[{rule: model}]",
        f"task.rewardModel={{source: {folder}, accelerators: 1, cpu: 0.5}}",
        "learner.resources={accelerators: 0}",
    )
    spec = load_run(EXAMPLES / "quickstart.yaml", changes).spec
    with patient(), only_needed_processes():
        ray.init(address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False)
    placement = place_run(spec, print)
    workers = TaskWorkers.launch(spec, placement.reservation, None, share_folder(folder))
    (actor,) = workers.reward_models.actors.values()
    asked = actor.__ray_call__.remote(lambda _: ray.get_gpu_ids())
    assert len(ray.get(asked, timeout=120)) == 1, "the worker has it, and no other actor of the run"
    if not torch.cuda.is_available():
        with pytest.raises(RLTrainError, match=r"^task\.rewardModel: its GPU cannot be used \("):
            workers.wait_ready()
        return
    workers.wait_ready()
    assert all(
        isinstance(value, float)
        for value in workers.scorers(spec)[0].score([Completion(0, "q", None, "", "a")])
    )


def test_a_model_is_where_ray_has_a_gpu_for_it(tmp_path: Path) -> None:
    """On a machine without one, where Ray believes in one, its worker says so."""
    write_classifier(tmp_path / "judge")
    in_a_process(score_where_ray_has_a_gpu, tmp_path / "judge")


def test_a_reward_model_that_hangs_is_replaced(
    tmp_path: Path, local_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging:
        """Hangs once: its second life, which the file tells it of, scores."""

        def __init__(self, told: Path) -> None:
            self.hangs = not told.exists()
            told.touch()

        def ready(self) -> None:
            pass

        def score(self, completions: Any) -> Iterator[dict[int, float]]:
            yield {}
            while self.hangs:
                signal.pause()
            yield dict.fromkeys(range(len(completions)), 1.0)

    actor = ray.remote(Hanging).options(num_cpus=0, max_restarts=-1).remote(tmp_path / "told")
    group = WorkerGroup("reward model", [actor])
    scorers = [WorkerScorer(group, 0, 0.5, 60.0, notice=1.0) for _ in range(2)]
    for scorer in scorers:
        scorer.wait_ready()
    both, following = threading.Barrier(2), WorkerScorer._next

    def once_both_have_asked(scorer: WorkerScorer, passes: Any, limit: float) -> Any:
        if limit == QUEUE_SECONDS:  # the second would find the next life if it asked later
            both.wait(60)
        return following(scorer, passes, limit)

    with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(WorkerScorer, "_next", once_both_have_asked)
        scored = [pool.submit(scorer.score, [Completion(0, "q", None, "", "a")]) for scorer in scorers]
        lost = [one.exception(60) for one in scored]
    # The one behind it has not hung, and is not counted as if it had.
    assert sorted(cast(LostError, one).begun for one in lost) == [False, True]
    scorer = scorers[0]
    scorer.wait_ready()
    scorer._limit = 120.0  # its second life does not hang, but may have no processor for a while
    assert scorer.score([Completion(0, "q", None, "", "a")]) == [1.0]
    ray.kill(actor)
