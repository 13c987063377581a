"""Whether the end of an attempt is the end of its run, and what is given back then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from rl_api.errors import (
    DeadlineExceeded,
    EndpointError,
    Interrupted,
    ModelError,
    ProgramFailed,
    RewardError,
    RunFolderBusy,
)
from rl_trainer.run import actors as actors_module
from rl_trainer.run import ending
from rl_trainer.run.actors import Actors
from rl_trainer.run.ending import STOP_SECONDS, CheckpointRequests, is_over
from rl_trainer.run.session import Session
from rl_trainer.run.stopping import StopNow


@pytest.mark.parametrize(
    ("error", "over", "asked", "only"),
    [
        # error, then whether the run is over: in general, after a checkpoint that was asked for, without retries.
        (None, True, True, True),
        (EndpointError("lost"), False, False, True),
        (DeadlineExceeded("late"), False, False, True),
        (ProgramFailed("exit code 1"), False, False, True),
        (KeyError("a bug"), False, False, True),
        (ModelError("no such folder"), True, True, True),
        (RewardError("raised"), True, True, True),
        (Interrupted("SIGTERM"), False, True, False),
        (StopNow(143), False, True, False),
        (RunFolderBusy("taken over"), False, False, False),
    ],
)
def test_whether_the_operator_begins_another_attempt(
    error: BaseException | None, over: bool, asked: bool, only: bool
) -> None:
    assert is_over(error, 1, 3, False) is over
    assert is_over(error, 1, 3, True) is asked
    assert is_over(error, 1, 0, False) is only
    alone = not isinstance(error, RunFolderBusy)
    assert is_over(error, None, 3, False) is alone, "nobody begins one by itself"


def test_a_checkpoint_is_on_purpose_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(ending, "time", SimpleNamespace(monotonic=lambda: now))
    requests = CheckpointRequests()
    assert not requests.recent
    assert not requests.take()
    requests.ask()
    assert requests.recent
    assert requests.take()
    assert not requests.take()
    requests.answered()
    now += STOP_SECONDS - 1
    assert requests.recent
    now += 1
    assert not requests.recent


@pytest.mark.parametrize(
    ("error", "given_back"), [(EndpointError("lost"), 0), (ModelError("other"), 1), (None, 1)]
)
def test_a_server_stays_for_the_next_attempt(error: Exception | None, given_back: int) -> None:
    session: Any = Session.__new__(Session)
    session.ended_by, session._requests = error, CheckpointRequests()
    session.folder, session.spec = SimpleNamespace(attempt=1), SimpleNamespace(retry=SimpleNamespace(limit=3))
    close = MagicMock()
    session._give_back(close)
    assert close.call_count == given_back


def test_samplers_are_known_before_they_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("share_folder", "Buffer", "BufferConfig", "Pulse", "Watch", "Learners", "Samplers"):
        monkeypatch.setattr(actors_module, name, MagicMock())
    samplers: Any = actors_module.Samplers
    samplers.return_value.wait_ready.side_effect = DeadlineExceeded("sampler 0 does not answer")
    begun: list[object] = []
    given: list[Any] = [MagicMock() for _ in range(8)]
    given[0].retry.liveness_timeout.seconds, given[0].shared_samplers = 60.0, 0
    given[0].task.workers, given[0].placement.timeout.seconds = {}, 60.0
    with pytest.raises(DeadlineExceeded):
        Actors.start(*given, begun=begun.append)
    assert begun == [samplers.return_value]


@pytest.mark.parametrize("residency", ["keep", "swap"])
def test_learners_take_turns_before_they_load_or_are_alone(
    residency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keep they load beside samplers, which are there by then; with swap before anybody else is."""
    for name in ("share_folder", "Buffer", "BufferConfig", "Pulse", "Watch", "Broadcasts", "Turn"):
        monkeypatch.setattr(actors_module, name, MagicMock())
    monkeypatch.setattr(actors_module, "TaskWorkers", MagicMock())
    order: list[str] = []
    learners = MagicMock(turn=None)
    learners.start.side_effect = lambda *_: order.append("alone" if learners.turn is None else "in a turn")
    launch = MagicMock(side_effect=lambda *_, **__: order.append("samplers") or MagicMock())
    monkeypatch.setattr(actors_module, "Learners", MagicMock(launch=lambda *_: learners))
    monkeypatch.setattr(actors_module, "Samplers", launch)
    given: list[Any] = [MagicMock() for _ in range(8)]
    given[0].retry.liveness_timeout.seconds, given[0].shared_samplers = 60.0, 1
    given[0].placement.residency = residency
    given[4].learner_gpus, given[4].samplers = 0, 1
    Actors.start(*given)
    assert order == (["samplers", "in a turn"] if residency == "keep" else ["alone", "samplers"])
