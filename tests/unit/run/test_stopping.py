from __future__ import annotations

import queue
import signal
from pathlib import Path

import pytest

from rl_api.errors import ActorDied, RLTrainError
from rl_trainer import driver
from rl_trainer.cli import main
from rl_trainer.error_text import RESUME_HINT
from rl_trainer.run.stopping import StopRequest

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_a_signal_asks_for_a_stop_and_tells_the_exit_code():
    told = queue.SimpleQueue()
    with StopRequest() as request:
        request.begin(told.put)
        assert not request.requested
        signal.raise_signal(signal.SIGTERM)
        assert request.requested
        assert request.exit_code == 143
        assert told.get(timeout=30).startswith("SIGTERM: stopping after this step")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ActorDied("learner 0 died"), ", as Ray was stopped too"),
        (RLTrainError("an engine of its own gave up"), ": an engine of its own gave up"),
        (RuntimeError("Ray\nis not there"), ": Ray"),
    ],
)
@pytest.mark.parametrize("signalled", [True, False])
def test_what_fails_after_a_signal_is_a_stop(
    error: Exception,
    why: str,
    signalled: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever else the signal reached may end as well, in whatever way the step at hand then fails."""

    def train(run: object, folder: object, console: object, stop: StopRequest, **_: bool) -> None:
        stop.begin(lambda text: None)
        if signalled:
            signal.raise_signal(signal.SIGTERM)
        raise error

    monkeypatch.setattr(driver, "train", train)
    code = main(["run", str(EXAMPLES / "quickstart.yaml"), "--out", str(tmp_path)])
    said = capsys.readouterr().err
    if not signalled:
        assert code == 1
        return
    assert code == 143
    assert said == f"rltrain: stopped before the step's checkpoint could be written{why}; {RESUME_HINT}\n"
