"""When the driver looks whether a checkpoint that learners write in the background is written."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trajectories import scored

from rl_api import RunSpec
from rl_api.errors import CheckpointError
from rl_trainer.algorithms.advantages import AdvantageStats
from rl_trainer.buffer.actor import Batch
from rl_trainer.flow import worker_group
from rl_trainer.rollout.fleet import Samplers
from rl_trainer.run import session as session_module
from rl_trainer.run.checkpoints import Checkpoints
from rl_trainer.run.session import Session
from rl_trainer.run.step import Step


class OneCheckpoint:
    """Of step 3; finished at the `looks`-th look."""

    def __init__(self, looks: int):
        self.unfinished_step: int | None = 3
        self.left, self.exported = looks, list[Path]()

    def finished(self) -> Any:
        """As `Checkpoints`."""
        self.left -= 1
        return self.wait() if self.left == 0 else None

    def wait(self) -> Any:
        """As `Checkpoints`."""
        self.unfinished_step = None
        return SimpleNamespace(step=3)

    def export(self, learned: object, model: object, target: Path) -> None:
        """As `Checkpoints`."""
        assert self.unfinished_step is None
        self.exported.append(target)


def a_session(checkpoints: Any) -> Any:
    session: Any = Session.__new__(Session)
    session.checkpoints, session.shown, session.failed = checkpoints, [], []
    session.counters = SimpleNamespace(step=4, checkpointed_step=0, finish_step=lambda *_: None)
    session.server = SimpleNamespace(
        show_checkpoint=session.shown.append, checkpoint_failed=session.failed.append
    )
    session.console = SimpleNamespace(phase=lambda text: None)
    session.actors = SimpleNamespace(
        spans=SimpleNamespace(span=lambda name: nullcontext()),
        learners=SimpleNamespace(state=lambda: None),
        update=lambda *_: SimpleNamespace(metrics={}),
    )
    session.inputs, session._checkpoint, session.spec = (
        SimpleNamespace(model=None),
        None,
        RunSpec.model_validate(
            {
                "model": {"source": "tiny"},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "algorithm": {"promptsPerStep": 1},
                "stop": {"maxSteps": 10},
            }
        ),
    )
    return session


def test_it_is_ended_while_the_next_batch_is_awaited(monkeypatch: pytest.MonkeyPatch):
    session = a_session(OneCheckpoint(looks=2))
    samplers: Any = Samplers.__new__(Samplers)
    samplers._samplers, samplers._elasticity, samplers._watch, samplers._restarts = {}, None, None, 0
    waits: list[float] = []

    def wait(calls: list[str], timeout: float) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        return (calls, []) if len(waits) == 3 else ([], calls)

    monkeypatch.setattr(worker_group, "ray", SimpleNamespace(wait=wait))
    monkeypatch.setattr(worker_group, "answer", lambda call, *_: call)
    session.actors.next_part = lambda begin, end, meanwhile: samplers.wait_for(
        "batch", "buffer", "x", 9e9, meanwhile
    )
    assert list(session.parts()) == ["batch"]
    assert [one.step for one in session.shown] == [3]
    assert session.counters.checkpointed_step == 3
    assert waits[0] == worker_group.MEANWHILE_SECONDS
    assert min(waits[1:]) > 1e9, "nothing is left to look for"


def test_it_is_ended_as_soon_as_learners_have_updated(monkeypatch: pytest.MonkeyPatch):
    session = a_session(OneCheckpoint(looks=1))
    monkeypatch.setattr(session_module, "check_agreement", lambda *_: None)
    session._step = Step()
    session.learn(Batch(0, [scored(0, [1.0], [3])]), [0.0], AdvantageStats(0, 1.0, 0.0))
    session.update()
    assert [one.step for one in session.shown] == [3]


def test_a_failure_meanwhile_ends_the_wait_and_is_told(monkeypatch: pytest.MonkeyPatch):
    checkpoints = OneCheckpoint(looks=1)

    def full() -> None:
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoints, "finished", full)
    session = a_session(checkpoints)
    session.actors.next_part = lambda begin, end, meanwhile: meanwhile()
    with pytest.raises(CheckpointError, match=r"^the disk is full$"):
        list(session.parts())
    assert session.failed == ["the disk is full"]


def test_the_policy_is_exported_after_the_checkpoint_that_is_being_written(tmp_path: Path):
    checkpoints = OneCheckpoint(looks=9)
    session = a_session(checkpoints)
    session._export(tmp_path)
    assert checkpoints.exported == [tmp_path]
    assert [one.step for one in session.shown] == [3]
    busy: Any = Checkpoints.__new__(Checkpoints)
    busy._unfinished = object()
    learned = SimpleNamespace(write=lambda *_: pytest.fail("learners are asked"))
    with pytest.raises(AssertionError, match="learners would drop the checkpoint"):
        Checkpoints.export(busy, learned, tmp_path, tmp_path / "policy")  # type: ignore[arg-type]
