"""Where a model that scores computes, and for how long one that was lost may stay away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from scored import scored

from rl_api.errors import ActorDied, RLTrainError
from rl_api.run import RunSpec, TinyModelSpec
from rl_api.task import RewardModelSpec
from rl_trainer.buffer.actor import Batch
from rl_trainer.flow.worker_group import Handle, WorkerGroup
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.rollout.reward_actor import RewardModelActor
from rl_trainer.rollout.reward_model import RewardModel
from rl_trainer.rollout.task_workers import READY_SECONDS, TaskWorkers
from rl_trainer.run.actors import Actors
from rl_trainer.run.ending import is_over
from rl_trainer.tasks.answers import LostError
from rl_trainer.tasks.scoring import Completion

ASKED = [Completion(number, f"{number}+1=", None, "4", "7" * number) for number in range(5)]
JUDGE = RewardModelSpec.model_validate(
    {"source": "there", "kind": "judge", "answers": ["1", "0"], "batchSize": 2}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "judge"
    write_tiny(folder, TinyModelSpec(), 3)
    return folder


def actor_with(gpus: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> RewardModelActor:
    """One to which Ray has given these GPUs."""
    monkeypatch.setattr("ray.get_gpu_ids", lambda: gpus)
    return RewardModelActor(0, JUDGE, SharedFolder(folder, "", "", (), 0))


def values(actor: RewardModelActor) -> list[float | str]:
    found: dict[int, float | str] = {}
    for some in actor.score(ASKED):
        found |= some
    return [found[place] for place in range(len(ASKED))]


def test_a_worker_without_a_gpu_scores_on_cores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = actor_with([], folder, monkeypatch)
    actor.ready()
    assert values(actor) == scored(RewardModel(folder, JUDGE), ASKED)


def test_a_worker_with_a_gpu_scores_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same values up to rounding; where Ray has a GPU that torch cannot use, it says so when it is asked whether it is
    ready, and what is on the GPU is not computed on cores instead."""
    actor = actor_with([0], folder, monkeypatch)
    if not torch.cuda.is_available():
        with pytest.raises(RLTrainError, match=r"^task\.rewardModel: its GPU cannot be used \(") as raised:
            actor.ready()
        assert not is_over(raised.value, 1, 3, False), "another attempt may have another GPU"
        return
    actor.ready()
    assert torch.cuda.memory_allocated() > 0
    assert values(actor) == pytest.approx(scored(RewardModel(folder, JUDGE), ASKED), abs=1e-4)


def test_a_pass_that_a_gpu_has_no_room_for_says_what_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RewardModel(folder, JUDGE)
    before = scored(model, ASKED[:1])

    def full(self: Any, rows: Any) -> list[float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(RewardModel, "_logits", full)
    with pytest.raises(
        RLTrainError, match=r"no room for a pass of 2 texts of up to \d+ tokens; lower .*batchSize$"
    ) as raised:
        scored(model, ASKED)
    assert not is_over(raised.value, 1, 3, False), "the next attempt may put other texts into a pass"
    monkeypatch.undo()
    assert scored(model, ASKED[:1]) == before


class Worker:
    """Stands for an actor: what is asked of it is its method's name."""

    def __getattr__(self, name: str) -> Worker:
        return self

    def options(self, **options: Any) -> Worker:
        return self

    def remote(self, *args: Any) -> str:
        return "asked"


def simulators() -> WorkerGroup:
    return WorkerGroup("simulator", [Worker()])


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Deadlines in seconds for what workers do until they are there; they die at all else."""
    limits: list[float] = []

    def wait(handle: Handle, phase: str, timeout: float) -> None:
        if not phase.startswith("loading"):
            raise ActorDied(phase)
        limits.extend(timeout for _ in handle.calls)

    monkeypatch.setattr(Handle, "wait", wait)
    return limits


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("60s", READY_SECONDS), ("10m", READY_SECONDS), ("30m", 1800.0)]
)
def test_workers_may_be_away_for_as_long_as_pods_may_take_to_be_placed(
    timeout: str, seconds: float, waited: list[float]
) -> None:
    """And ten minutes at least, and what a model takes to be read."""
    task: dict[str, Any] = {"environment": "tool-use", "name": "calculator", "simulators": {}}
    alone = {"model": {"source": "tiny"}, "placement": {"timeout": timeout}}
    launched = TaskWorkers.launch(
        RunSpec.model_validate(alone | {"task": {"environment": "reasoning-gym", "name": "chain_sum"}}),
        None,  # type: ignore[arg-type]
        None,
    )
    model = SharedFolder(Path(), "", "", (), size=10**9)
    workers = replace(
        launched, simulators=simulators(), reward_models=WorkerGroup("reward model", [Worker()]), opened=model
    )
    workers.wait_ready()
    assert waited == [seconds, seconds + 20.0]
    waited.clear()
    scored_too = task | {"rewards": [{"rule": "model"}], "rewardModel": {"source": "org/judge"}}
    spec = RunSpec.model_validate(alone | {"task": scored_too})
    (simulator,), (scorer,) = workers.targets(spec), workers.scorers(spec)
    for _ in range(2):  # it is lost, and then waited for
        with pytest.raises(LostError):
            simulator.call(1.0, "step")
    scorer.wait_ready()
    assert waited == [seconds, seconds + 20.0]


def test_a_batch_is_waited_for_longer_than_workers_may_be_away(waited: list[float]) -> None:
    """Else the attempt would end before the sentence that says which of them did not come back."""
    about = {"model": {"source": "tiny"}, "placement": {"timeout": "3h"}}
    alone = RunSpec.model_validate(about | {"task": {"environment": "reasoning-gym", "name": "chain_sum"}})
    task = {"environment": "tool-use", "name": "calculator", "simulators": {}}
    spec = RunSpec.model_validate(about | {"task": task})
    replace(TaskWorkers.launch(alone, MagicMock(), None), simulators=simulators()).wait_ready()
    buffer, samplers = MagicMock(), MagicMock()
    samplers.wait_for.return_value = Batch(0, [])
    Actors(spec, buffer, MagicMock(), samplers, MagicMock(), MagicMock()).next_part(0, 1, lambda: False)
    (at_buffer, *_), (*_, here, _) = buffer.take_ref.call_args.args, samplers.wait_for.call_args.args
    assert waited == [3 * 3600.0]
    assert here > at_buffer > waited[0]
